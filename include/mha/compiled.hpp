// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door of a program that compiles its kernels once: all its units are compiled with -DMHA_COMPILED, and one of
/// them includes this, which defines what mha.hpp and systolic.hpp then only declare. The CMake target mha::compiled
/// does both.
// clang-format off
#include "macros_begin.hpp"
// clang-format on

#include "config.hpp"

#if defined(MHA_COMPILED) && MHA_NVCC
#error \
    "mha: mha/compiled.hpp is compiled by nvcc, whose units take no kernels from elsewhere: include it in a file of C++"
#include <mha needs a file of C++ here>
#endif

#include "backend/crew.hpp"
#include "compiled/cpu.hpp"
#include "compiled/systolic.hpp"
#include "mha.hpp"
#include "systolic.hpp"

#if defined(MHA_COMPILED) && !MHA_KERNELS_ELSEWHERE
#error \
    "mha: -DMHA_COMPILED=n has another n than this file: 1 without -march=, 2 AVX, 3 AVX2, 4 AVX-512, 4 more without exceptions"
#endif

MHA_CPU_KERNELS()
MHA_SYSTOLIC_KERNELS()

// clang-format off
#include "macros_end.hpp"
// clang-format on
