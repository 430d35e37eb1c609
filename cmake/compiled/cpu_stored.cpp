// SPDX-License-Identifier: Apache-2.0
#include <mha/compiled/cpu.hpp>

MHA_CPU_STORED(, float, mha::scaled_int8)
MHA_CPU_WEIGHTS(, float, mha::scaled_int4)
