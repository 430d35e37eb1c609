// SPDX-License-Identifier: Apache-2.0
// expect: mha: Dense takes a table of bool with 2 to 4 axes
#include <mha/mha.hpp>

mha::Tensor<float, 2> weights(4, 4);
mha::Tensor<bool, 2> visible(4, 4);

#ifdef MHA_FAIL
mha::Dense mask{weights};
#else
mha::Dense mask{visible};
#endif
