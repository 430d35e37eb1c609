// SPDX-License-Identifier: Apache-2.0
// expect: mha: two projection policies
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::FusedProjection, mha::PerHeadProjection> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::PerHeadProjection> layer(config);
#endif
