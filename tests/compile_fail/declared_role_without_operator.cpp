// SPDX-License-Identifier: Apache-2.0
// expect: mha: a functor is neither a mask
#include <mha/mha.hpp>

// It says that it is a mask, but returns int.
struct Says {
  static constexpr mha::Role role = mha::Role::mask;
  int operator()(int, int, int q, int k) const { return k <= q; }
};
struct Does {
  static constexpr mha::Role role = mha::Role::mask;
  bool operator()(int, int, int q, int k) const { return k <= q; }
};

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, Says> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, Does> layer(config);
#endif
