// SPDX-License-Identifier: Apache-2.0
// expect: mha: a view of a temporary would point at memory that is gone: name its owner first
#include <mha/core/tensor.hpp>

mha::Tensor<float, 2> owner(2, 2);

#ifdef MHA_FAIL
auto view = mha::view(mha::Tensor<float, 2>(2, 2));
#else
auto view = mha::view(owner);
#endif
