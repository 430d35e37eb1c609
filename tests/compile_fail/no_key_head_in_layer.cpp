// SPDX-License-Identifier: Apache-2.0
// expect: mha: GroupedQuery<n> needs at least one key/value head
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<0>> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<1>> layer(config);
#endif
