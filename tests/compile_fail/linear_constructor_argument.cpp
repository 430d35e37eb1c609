// SPDX-License-Identifier: Apache-2.0
// expect: mha: the constructor of a Linear takes a backend and an activation of the types that it names
#include <mha/block.hpp>

#ifdef MHA_FAIL
mha::FeedForward<float> ff({.d_model = 4, .d_hidden = 8}, mha::Relu{});
#else
mha::FeedForward<float> ff({.d_model = 4, .d_hidden = 8}, mha::Gelu{});
#endif
