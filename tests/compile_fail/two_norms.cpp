// SPDX-License-Identifier: Apache-2.0
// expect: mha: two norms
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::NoNorm, mha::QkNorm> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::QkNorm> layer(config);
#endif
