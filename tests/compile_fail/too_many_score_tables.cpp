// SPDX-License-Identifier: Apache-2.0
// expect only: mha: at most 4 tables of scores have gradients in one call
#include <mha/mha.hpp>

auto result(const mha::Tensor<float, 4>& x, const mha::AttentionTape<float, mha::Reference>& tape,
            const mha::RelativeBias& table) {
#ifdef MHA_FAIL
  return mha::attention_backward(x, x, x, x, x, tape, table, table, table, table, table);
#else
  return mha::attention_backward(x, x, x, x, x, tape, table, table, table, table);
#endif
}
