// SPDX-License-Identifier: Apache-2.0
// expect: mha: a type in the list is not a policy
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::Workspace> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer(config);
#endif
