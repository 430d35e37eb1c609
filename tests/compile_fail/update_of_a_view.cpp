// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a view takes no elements by assignment
#include <mha/mha.hpp>

void run(mha::MultiHeadAttention<float>& layer, const mha::TensorView<float, 1>& b) {
#ifdef MHA_FAIL
  layer.update([&](auto& p) { p.output.bias = b; });
#else
  layer.update([&](auto& p) { p.output.bias(0) = b(0); });
#endif
}
