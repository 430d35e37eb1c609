// SPDX-License-Identifier: Apache-2.0
// expect: mha: the Linear's scalar and the input's differ: convert the input
#include <mha/block.hpp>

auto result(const mha::Linear<float>& linear, [[maybe_unused]] const mha::Tensor<double, 2>& wide,
            [[maybe_unused]] const mha::Tensor<float, 2>& x) {
#ifdef MHA_FAIL
  return linear(wide);
#else
  return linear(x);
#endif
}
