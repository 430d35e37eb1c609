// SPDX-License-Identifier: Apache-2.0
// expect: mha: Dense borrows its table, and a temporary one would be gone
#include <mha/core/tensor.hpp>
#include <mha/policy/mask/dense.hpp>

mha::Tensor<bool, 2> table(2, 2);

#ifdef MHA_FAIL
mha::Dense mask{mha::Tensor<bool, 2>(2, 2)};
#else
mha::Dense mask{table};
#endif
