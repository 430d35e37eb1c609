// SPDX-License-Identifier: Apache-2.0
// expect only: mha: two dropouts: keep one
#include <mha/mha.hpp>

#ifdef MHA_FAIL
mha::MultiHeadAttention<float, mha::Cpu, mha::Dropout, mha::Dropout>* layer = nullptr;
#else
mha::MultiHeadAttention<float, mha::Cpu, mha::Dropout, mha::Causal>* layer = nullptr;
#endif
const auto size = sizeof(*layer);
