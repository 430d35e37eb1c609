// SPDX-License-Identifier: Apache-2.0
#include <mha/backend/crew.hpp>
#include <mha/compiled/cpu.hpp>

MHA_POOL_THREADS()
MHA_REVISION()
MHA_CPU_TILES(, float)
MHA_CPU_SCALAR(, float, float)
