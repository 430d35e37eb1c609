// SPDX-License-Identifier: Apache-2.0
// expect only: mha: an activation is a function of one number
#include <mha/block.hpp>

#ifdef MHA_FAIL
mha::Linear<float, mha::Cpu, mha::Causal> linear({.inputs = 4, .outputs = 3});
#else
mha::Linear<float, mha::Cpu, mha::Relu> linear({.inputs = 4, .outputs = 3});
#endif
