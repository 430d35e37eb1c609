// SPDX-License-Identifier: Apache-2.0
// expect: mha: a functor is neither a mask
#include <mha/mha.hpp>

// Almost a mask: it returns int.
struct ReturnsInt {
  int operator()(int, int, int q, int k) const { return k <= q; }
};
struct ReturnsBool {
  bool operator()(int, int, int q, int k) const { return k <= q; }
};

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, ReturnsInt> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, ReturnsBool> layer(config);
#endif
