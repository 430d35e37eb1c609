// SPDX-License-Identifier: Apache-2.0
#include "shared_kernels.hpp"

MHA_SHARED_KERNELS()
