// SPDX-License-Identifier: Apache-2.0
// expect only: mha: quantize() keeps weights in 8 or 4 bits on the host's backends, such as Cpu; on a GPU use bfloat16
#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/layer/multi_head_attention.hpp>

#include "../support/far_backend.hpp"

#ifdef MHA_FAIL
using Machine = support::Far;
#else
using Machine = mha::Cpu;
#endif

void run(mha::MultiHeadAttention<float, Machine>& layer) { layer.quantize(); }
