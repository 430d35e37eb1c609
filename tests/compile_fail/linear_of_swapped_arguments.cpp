// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the second template argument is no backend; one comes before the activation
#include <mha/block.hpp>

#ifdef MHA_FAIL
mha::Linear<float, mha::Gelu, mha::Cpu> linear({.inputs = 4, .outputs = 3});
#else
mha::Linear<float, mha::Cpu, mha::Gelu> linear({.inputs = 4, .outputs = 3});
#endif
