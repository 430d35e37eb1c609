// SPDX-License-Identifier: Apache-2.0
// expect: mha: the tape is of another scalar or backend than the call
#include <mha/mha.hpp>

auto result(const mha::Tensor<double, 4>& x, [[maybe_unused]] mha::AttentionTape<float, mha::Reference>& narrow,
            [[maybe_unused]] mha::AttentionTape<double, mha::Reference>& tape) {
#ifdef MHA_FAIL
  return mha::attention<mha::Reference>(x, x, x, mha::record(narrow));
#else
  return mha::attention<mha::Reference>(x, x, x, mha::record(tape));
#endif
}
