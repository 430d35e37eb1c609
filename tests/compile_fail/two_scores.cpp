// SPDX-License-Identifier: Apache-2.0
// expect: mha: two scores
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::Alibi, mha::NoScore> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::Chain<mha::Alibi, mha::NoScore>> layer(config);
#endif
