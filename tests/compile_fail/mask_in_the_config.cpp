// SPDX-License-Identifier: Apache-2.0
// expect: mha: a mask is a policy and no member of Config
#include <mha/mha.hpp>

#ifdef MHA_FAIL
mha::MultiHeadAttention<float> layer({.d_model = 8, .num_heads = 2, .causal = true});
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer({.d_model = 8, .num_heads = 2});
#endif
