// SPDX-License-Identifier: Apache-2.0
// expect only: mha: an activation is a function of one number
#include <mha/block.hpp>

#ifdef MHA_FAIL
mha::FeedForward<float, mha::Cpu, mha::Dropout> feed_forward({.d_model = 4, .d_hidden = 8});
#else
mha::FeedForward<float> feed_forward({.d_model = 4, .d_hidden = 8}, mha::Dropout{.p = 0.1f});
#endif
