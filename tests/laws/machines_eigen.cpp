// SPDX-License-Identifier: Apache-2.0
#include "law.hpp"

namespace laws {

LAWS_ON_EIGEN(LAWS_DEFINE, mha::EigenCpu)
LAWS_ON_EIGEN(LAWS_DEFINE, SerialEigenCpu)

}  // namespace laws
