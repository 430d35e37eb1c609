// SPDX-License-Identifier: Apache-2.0
// expect: mha: two masks
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::Causal, mha::CausalTopLeft> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::And<mha::Causal, mha::CausalTopLeft>> layer(config);
#endif
