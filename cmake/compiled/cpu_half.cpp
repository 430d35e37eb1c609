// SPDX-License-Identifier: Apache-2.0
#include <mha/compiled/cpu.hpp>

MHA_CPU_SCALAR(, float, mha::half)
MHA_CPU_NARROW(, float, mha::half)
