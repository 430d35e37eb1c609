// SPDX-License-Identifier: Apache-2.0
// expect only: mha: attention_into() of a constant out
#include <mha/mha.hpp>

using Tensor = mha::Tensor<float, 2>;

void run(const Tensor& q, [[maybe_unused]] Tensor& out, [[maybe_unused]] const Tensor& constant) {
#ifdef MHA_FAIL
  mha::attention_into(constant, q, q, q);
#else
  mha::attention_into(out, q, q, q);
#endif
}
