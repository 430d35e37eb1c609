// SPDX-License-Identifier: Apache-2.0
// expect: mha: this policy has a member without a default: give its value to the constructor
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::SlidingWindow> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::SlidingWindow> layer(config, mha::SlidingWindow{.left = 4});
#endif
