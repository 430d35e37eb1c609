// SPDX-License-Identifier: Apache-2.0
// expect: mha: two concat policies
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::ConcatHeads, mha::GatedHeads> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::GatedHeads> layer(config);
#endif
