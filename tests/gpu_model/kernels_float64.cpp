// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"

MHA_MODEL_FLOAT64(template);
