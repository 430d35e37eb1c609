// SPDX-License-Identifier: Apache-2.0
// expect: mha: the constructor got a backend of another type than the layer's
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu> layer(config, mha::Reference{});
#else
mha::MultiHeadAttention<float, mha::Cpu> layer(config, mha::Cpu(mha::ThreadPool(2)));
#endif
