// SPDX-License-Identifier: Apache-2.0
// expect: mha: AdditiveBias borrows its table, and a temporary one would be gone
#include <mha/core/tensor.hpp>
#include <mha/policy/score/additive_bias.hpp>

mha::Tensor<float, 2> table(2, 2);

#ifdef MHA_FAIL
mha::AdditiveBias<float> score{mha::Tensor<float, 2>(2, 2)};
#else
mha::AdditiveBias<float> score{table};
#endif
