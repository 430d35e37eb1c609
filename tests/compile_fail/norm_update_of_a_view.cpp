// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a view takes no elements by assignment
#include <mha/block.hpp>

void run(mha::LayerNorm<float>& norm, const mha::TensorView<float, 1>& w) {
#ifdef MHA_FAIL
  norm.update([&](auto& p) { p.weight = w; });
#else
  norm.update([&](auto& p) { p.weight(0) = w(0); });
#endif
}
