// SPDX-License-Identifier: Apache-2.0
// expect: mha: the constructor got a policy value that the layer's type does not name
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer(config, mha::SlidingWindow{.left = 4});
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer(config, mha::Causal{});
#endif
