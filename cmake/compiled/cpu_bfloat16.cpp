// SPDX-License-Identifier: Apache-2.0
#include <mha/compiled/cpu.hpp>

MHA_CPU_SCALAR(, float, mha::bfloat16)
MHA_CPU_NARROW(, float, mha::bfloat16)
