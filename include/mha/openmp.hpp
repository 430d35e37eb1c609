// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door of the component mha::openmp: the executor OpenMp, for mha::CpuWith<mha::OpenMp>.
// clang-format off
#include "macros_begin.hpp"
// clang-format on

#include "backend/openmp.hpp"
#include "mha.hpp"

// clang-format off
#include "macros_end.hpp"
// clang-format on
