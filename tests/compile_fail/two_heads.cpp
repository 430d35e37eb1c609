// SPDX-License-Identifier: Apache-2.0
// expect: mha: two heads policies
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::MultiQuery, mha::GroupedQuery<2>> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::MultiQuery> layer(config);
#endif
