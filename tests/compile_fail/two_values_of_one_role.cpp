// SPDX-License-Identifier: Apache-2.0
// expect: mha: the constructor got two values for one policy: keep one
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};
const mha::SlidingWindow near{.left = 4}, far{.left = 9};

using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::SlidingWindow>;

#ifdef MHA_FAIL
const Layer layer(config, near, far);
#else
const Layer layer(config, near), other(config, far);
#endif
