// SPDX-License-Identifier: Apache-2.0
// expect: mha: the header of this backend is missing: include <mha/systolic.hpp> for Systolic
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Systolic<>, mha::Causal> layer(config);
#else
mha::MultiHeadAttention<float, mha::Reference, mha::Causal> layer(config);
#endif
