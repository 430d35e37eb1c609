// SPDX-License-Identifier: Apache-2.0
// expect only: mha: for_each() of a layer with a trained score or a Sink is given weights alone
#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Sink>;

void run(Layer& layer, const mha::LayerGradients<float>& d) {
#ifdef MHA_FAIL
  layer.update([&](auto& p) { p.for_each(layer.parameters(), [&](auto x, auto y) { x[0] = y[0] * d.sink(0); }); });
#else
  layer.update([&](auto& p) { p.for_each(d, [&](auto x, auto y) { x[0] = y[0] * d.sink(0); }); });
#endif
}
