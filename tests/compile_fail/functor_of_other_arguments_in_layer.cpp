// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a functor is neither a mask, 'bool operator()(Index b, Index h, Index q, Index k)
#include <mha/mha.hpp>

struct OfTwo {
  bool operator()(int q, int k) const { return k <= q; }
};
struct OfFour {
  bool operator()(int, int, int q, int k) const { return k <= q; }
};

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, OfTwo> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, OfFour> layer(config);
#endif
