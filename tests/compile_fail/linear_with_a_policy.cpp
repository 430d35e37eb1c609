// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the type of a Linear or FeedForward names a scalar, a backend and an activation; Dropout is a value
#include <mha/block.hpp>

#ifdef MHA_FAIL
mha::Linear<float, mha::Cpu, mha::Gelu, mha::Dropout> linear({.inputs = 4, .outputs = 3}, mha::Dropout{.p = 0.1f});
#else
mha::Linear<float, mha::Cpu, mha::Gelu> linear({.inputs = 4, .outputs = 3}, mha::Dropout{.p = 0.1f});
#endif
