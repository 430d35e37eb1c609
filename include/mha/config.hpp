// SPDX-License-Identifier: Apache-2.0
#pragma once

// A file that is not there ends the compiler's run: what it would say after the sentence are thousands of lines.
#if __cplusplus < 202002L
#error "mha: needs C++20: compile with -std=c++20 (g++ 12, clang 14 or newer)"
#include <mha needs -std=c++20>
#endif

/// Compiler facts: the only place that asks which compiler this is.
#if defined(__CUDACC__)
#define MHA_HOST_DEVICE __host__ __device__
#define MHA_KERNEL __device__ __forceinline__
#define MHA_UNROLL _Pragma("unroll")
#define MHA_ROLL _Pragma("unroll 1")
#define MHA_UNROLL_TERMS
// nvcc leaves the pragma to the host's compiler and would tell the user so in a remark.
#define MHA_UNROLL_HOST(n) \
  _Pragma("nv_diagnostic push") _Pragma("nv_diag_suppress 1675") MHA_PRAGMA(GCC unroll n) _Pragma("nv_diagnostic pop")
#else
/// Put it before operator() of a mask or score that should also run on CUDA; elsewhere it is nothing.
#define MHA_HOST_DEVICE
/// Before a kernel body and its helpers: device code under nvcc, an ordinary function elsewhere.
#define MHA_KERNEL inline
/// Before a loop over registers.
#define MHA_UNROLL
/// Before a loop that is rare or long, and not worth its code many times over.
#define MHA_ROLL
/// Before the loop over the terms of a polynomial; nvcc unrolls it unasked.
#define MHA_UNROLL_TERMS MHA_UNROLL_HOST(16)
#define MHA_UNROLL_HOST(n) MHA_PRAGMA(GCC unroll n)
#endif
#define MHA_PRAGMA(...) _Pragma(#__VA_ARGS__)
/// Before a loop of the processor's kernels: so many passes at a time.
#define MHA_UNROLL_2 MHA_UNROLL_HOST(2)
#define MHA_UNROLL_4 MHA_UNROLL_HOST(4)
#define MHA_UNROLL_8 MHA_UNROLL_HOST(8)
#define MHA_UNROLL_16 MHA_UNROLL_HOST(16)

/// Whether this text is being compiled for a CUDA device.
#if defined(__CUDA_ARCH__)
#define MHA_ON_DEVICE 1
/// Its compute capability, 800 for 8.0.
#define MHA_DEVICE_CAPABILITY __CUDA_ARCH__
#else
#define MHA_ON_DEVICE 0
#endif

#if !defined(__GNUC__)
#error "mha: needs g++ 12, clang 14 or newer (vector types and function-level target attributes)"
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "mha: needs IEEE arithmetic, where hidden logits are -infinity and NaN is NaN: compile without -ffast-math"
#endif

#define MHA_ALWAYS_INLINE inline __attribute__((always_inline))
/// Whether __builtin_shufflevector takes an expanded pack: nvcc loses the expansion on its way to the host's compiler.
#if defined(__CUDACC__)
#define MHA_SHUFFLEVECTOR 0
#else
#define MHA_SHUFFLEVECTOR 1
#endif

/// Whether vectors of __fp16 are converted by the instructions of the caller a body is inlined in.
#if defined(__x86_64__) && defined(__clang__)
#define MHA_HALF_VECTORS 1
#else
#define MHA_HALF_VECTORS 0
#endif

// How asm names a vector register where the compiler fuses products and additions of different statements.
#if !defined(__clang__) && defined(__x86_64__)
#define MHA_VECTOR_REGISTER "v"
#elif !defined(__clang__) && defined(__aarch64__)
#define MHA_VECTOR_REGISTER "w"
#endif

/// Whether assembly in a body compiled for no instruction set may take the registers of its caller's: g++ asks when it
/// has inlined the body, clang before.
#if defined(__x86_64__) && !defined(__clang__)
#define MHA_WIDE_ASM 1
#else
#define MHA_WIDE_ASM 0
#endif

/// Beside a target with 512-bit registers: for a processor that clang's -march= takes to be faster with 256 bits, it
/// would cut each of them in two, and the sums of a tile would no longer fit.
#if defined(__clang__)
#define MHA_WHOLE_REGISTERS __attribute__((min_vector_width(512)))
#else
#define MHA_WHOLE_REGISTERS
#endif

#define MHA_NO_INLINE __attribute__((noinline))
#define MHA_FLATTEN __attribute__((flatten))

namespace mha::inline v0 {

/// A position or a count along one axis. Strides and offsets in memory are std::ptrdiff_t.
using Index = int;

/// In a template argument: the count is given at run time.
inline constexpr Index Dynamic = -1;

/// Where data lies.
enum class Memory : unsigned char { host, device };

}  // namespace mha::inline v0
