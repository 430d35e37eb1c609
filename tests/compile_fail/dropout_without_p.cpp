// SPDX-License-Identifier: Apache-2.0
// expect: mha: this policy has a member without a default: give its value to the constructor
#include <mha/mha.hpp>

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::Dropout> layer({.d_model = 8});
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::Dropout> layer({.d_model = 8}, mha::Dropout{.p = 0.1f});
#endif
