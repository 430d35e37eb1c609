// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a gradient goes to a tensor, not a constant one, of the call's scalar or of its accumulator
#include <mha/mha.hpp>

void result([[maybe_unused]] mha::Tensor<double, 4>& wider, [[maybe_unused]] mha::Tensor<float, 4>& x) {
#ifdef MHA_FAIL
  mha::GradientTo<mha::half> to = wider;
#else
  mha::GradientTo<mha::half> to = x;
#endif
  static_cast<void>(to);
}
