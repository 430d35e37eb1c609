// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door: attention and layers as a TPU computes them, on the matrix unit of this processor where it has one.
// clang-format off
#include "macros_begin.hpp"
// clang-format on

#include "backend/systolic/array.hpp"
#include "backend/systolic/emulation.hpp"
#include "backend/systolic/precision.hpp"
#include "backend/systolic/systolic.hpp"
#include "backend/systolic/unit.hpp"
#include "config.hpp"
#include "mha.hpp"
#if MHA_KERNELS_ELSEWHERE
#include "compiled/systolic.hpp"
#endif

// clang-format off
#include "macros_end.hpp"
// clang-format on
