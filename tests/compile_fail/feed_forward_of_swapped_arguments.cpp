// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the second template argument is no backend; one comes before the activation
#include <mha/block.hpp>

#ifdef MHA_FAIL
mha::FeedForward<float, mha::Gelu, mha::Cpu> feed_forward({.d_model = 4, .d_hidden = 8});
#else
mha::FeedForward<float, mha::Cpu, mha::Gelu> feed_forward({.d_model = 4, .d_hidden = 8});
#endif
