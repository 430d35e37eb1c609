// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

/// Compiler facts: the only place that asks which compiler this is.
#if defined(__CUDACC__)
#define MHA_HOST_DEVICE __host__ __device__
#else
/// Put it before operator() of a mask or score that should also run on CUDA; elsewhere it is nothing.
#define MHA_HOST_DEVICE
#endif

#if !defined(__GNUC__)
#error "mha: needs g++ 12, clang 14 or newer (vector types and function-level target attributes)"
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "mha: needs IEEE arithmetic, where hidden logits are -infinity and NaN is NaN: compile without -ffast-math"
#endif

#define MHA_ALWAYS_INLINE inline __attribute__((always_inline))
/// Whether vector broadcasts need help: see backend/simd/vector.hpp.
#if defined(__x86_64__) && !defined(__clang__)
#define MHA_BROADCAST_BY_ASM 1
#else
#define MHA_BROADCAST_BY_ASM 0
#endif

/// Whether assembly may take 512-bit operands in a function that is inlined into one compiled for them; clang wants the
/// function itself to be.
#define MHA_WIDE_ASM MHA_BROADCAST_BY_ASM

#define MHA_NO_INLINE __attribute__((noinline))

namespace mha::inline v0 {

/// A position or a count along one axis. Strides and offsets in memory are std::ptrdiff_t.
using Index = int;

/// In a template argument: the count is given at run time.
inline constexpr Index Dynamic = -1;

/// Where data lies.
enum class Memory : unsigned char { host, device };

}  // namespace mha::inline v0
