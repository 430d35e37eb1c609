// SPDX-License-Identifier: Apache-2.0
#include "law.hpp"

namespace laws {

LAWS_ON_CPU(LAWS_DEFINE, mha::Cpu)
LAWS_ON_CPU(LAWS_DEFINE, SerialCpu)
LAWS_ON_OTHERS(LAWS_DEFINE)

}  // namespace laws
