// SPDX-License-Identifier: Apache-2.0
// expect: mha: a functor can be called as a mask and as a score
#include <mha/mha.hpp>

struct Either {
  bool operator()(int, int, int, int) const { return true; }
  float operator()(float s, int, int, int, int) const { return s; }
};
struct Declared : Either {
  static constexpr mha::Role role = mha::Role::mask;
};

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, Either> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, Declared> layer(config);
#endif
