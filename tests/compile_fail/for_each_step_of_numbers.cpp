// SPDX-License-Identifier: Apache-2.0
// expect only: mha: for_each(gradients, step) calls step(numbers, of_numbers) with two spans
#include <mha/mha.hpp>

void run(mha::MultiHeadAttention<float>& layer, const mha::LayerGradients<float>& gradients) {
#ifdef MHA_FAIL
  layer.update([&](auto& p) { p.for_each(gradients, [](float& x, float of_x) { x -= of_x; }); });
#else
  layer.update([&](auto& p) { p.for_each(gradients, [](auto x, auto of_x) { x[0] -= of_x[0]; }); });
#endif
}
