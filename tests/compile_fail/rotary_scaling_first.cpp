// SPDX-License-Identifier: Apache-2.0
// expect: mha: Rotary<Pairing, Scaling> takes Halves or Interleaved, then Unscaled
#include <mha/mha.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::Rotary<mha::Llama3Scaling>> layer(config);
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::Rotary<mha::Halves, mha::Llama3Scaling>> layer(config);
#endif
