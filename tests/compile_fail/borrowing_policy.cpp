// SPDX-License-Identifier: Apache-2.0
// expect: mha: a policy borrows the data of one call, so a layer cannot own it
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::Padding> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer(config);
#endif
