// SPDX-License-Identifier: Apache-2.0
// expect: mha: attention over a source records no tape: its backward pass takes tensors
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& q, const mha::PagedKv<float>& pages,
            [[maybe_unused]] mha::AttentionTape<float, mha::Reference>& tape) {
#ifdef MHA_FAIL
  return mha::attention<mha::Reference>(q, pages, mha::record(tape));
#else
  return mha::attention<mha::Reference>(q, pages);
#endif
}
