// SPDX-License-Identifier: Apache-2.0
// expect: mha: LogSumExp has the accumulator's scalar
#include <mha/attention.hpp>

auto result(const mha::Tensor<mha::half, 4>& x, [[maybe_unused]] mha::Tensor<mha::half, 3>& narrow,
            [[maybe_unused]] mha::Tensor<float, 3>& wide) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, mha::LogSumExp{narrow});
#else
  return mha::attention(x, x, x, mha::LogSumExp{wide});
#endif
}
