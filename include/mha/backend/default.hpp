// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "executor.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class Threads> class CpuWith;

/// The default backend, by name only: all threads of the machine, or MHA_NUM_THREADS. backend/cpu/cpu.hpp defines it,
/// so that a program on another backend compiles none of its kernels.
using Cpu = CpuWith<ThreadPool>;

// The other backends by name, so that naming one whose header is missing is one sentence.
template <Index Rows, Index Columns, Index Depth> struct SystolicArray;
using AmxArray = SystolicArray<16, 16, 32>;
struct DefaultPrecision;
template <class Array = AmxArray, class Precision = DefaultPrecision, class Threads = ThreadPool> class Systolic;
struct Cuda;

namespace detail {

template <class B> inline constexpr bool is_defined = requires { sizeof(B); };

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
