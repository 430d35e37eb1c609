// SPDX-License-Identifier: Apache-2.0
// expect: mha: this backend or activation has no default constructor: give its value to the constructor
#include <mha/mha.hpp>

struct Fixed : mha::Serial {
  explicit Fixed(int) {}
};
const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::CpuWith<Fixed>> layer(config);
#else
mha::MultiHeadAttention<float, mha::CpuWith<Fixed>> layer(config, mha::CpuWith(Fixed(3)));
#endif
