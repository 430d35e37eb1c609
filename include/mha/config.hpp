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
#define MHA_UNCHECKED_CALLEE _Pragma("nv_exec_check_disable")
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
/// Before an MHA_HOST_DEVICE function of a template that calls what a user may have written for the host alone.
#define MHA_UNCHECKED_CALLEE
/// Before a kernel body and its helpers: device code under nvcc, an ordinary function elsewhere.
#define MHA_KERNEL inline
/// Before a loop over registers.
#define MHA_UNROLL
/// Before a loop that is rare or long, and not worth its code many times over.
#define MHA_ROLL
/// Before the loop over the terms of a polynomial; nvcc unrolls it without being told.
#define MHA_UNROLL_TERMS MHA_UNROLL_HOST(32)
#define MHA_UNROLL_HOST(n) MHA_PRAGMA(GCC unroll n)
#endif
#define MHA_PRAGMA(...) _Pragma(#__VA_ARGS__)
/// Before a loop of the processor's kernels: so many passes at a time.
#define MHA_UNROLL_2 MHA_UNROLL_HOST(2)
#define MHA_UNROLL_4 MHA_UNROLL_HOST(4)
#define MHA_UNROLL_8 MHA_UNROLL_HOST(8)
#define MHA_UNROLL_16 MHA_UNROLL_HOST(16)
#define MHA_UNROLL_32 MHA_UNROLL_HOST(32)

/// Whether this text is being compiled for a CUDA device.
#if defined(__CUDA_ARCH__)
#define MHA_ON_DEVICE 1
#else
#define MHA_ON_DEVICE 0
#endif

#if defined(__GNUC__) && (defined(__clang__) ? __clang_major__ < 14 : __GNUC__ < 12)
#error "mha: needs g++ 12, clang 14 or newer"
#include <mha needs g++ 12, clang 14 or newer>
#endif

#if defined(min) || defined(max) || defined(near) || defined(far) || defined(small) || defined(slots) || defined(I) || \
    defined(check) || defined(require)
#error \
    "mha: min, max, near, far, small, slots, I, check and require are names in this header: include mha/mha.hpp, which puts macros of these names aside"
#include <mha needs min, max, near, far, small, slots, I, check and require to be no macros>
#endif

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "mha: needs IEEE arithmetic: compile without -ffast-math, -funsafe-math-optimizations and -fassociative-math"
#endif

#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "mha: needs sums that are rounded to their type: on 32-bit x86 compile with -msse2 -mfpmath=sse"
#include <mha needs -msse2 -mfpmath=sse>
#endif

/// Whether errors are thrown. Under -fno-exceptions an error prints its sentence and ends the program.
#if defined(__cpp_exceptions)
#define MHA_EXCEPTIONS 1
#define MHA_TRY try
#define MHA_CATCH(...) catch (__VA_ARGS__)
#define MHA_RETHROW throw
#else
#define MHA_EXCEPTIONS 0
#define MHA_TRY if constexpr (true)
#define MHA_CATCH(...) else
#define MHA_RETHROW static_cast<void>(0)
#endif

/// Of a variable that each shared library has its own of, because one that is closed takes with it what it points to.
#if defined(__ELF__) || defined(__APPLE__)
#define MHA_OF_LIBRARY __attribute__((visibility("hidden")))
#else
#define MHA_OF_LIBRARY
#endif

/// Whether the compiler has what the kernels of backend/simd, cpu and systolic are written in: vector types and
/// attributes of functions. Everything else, EigenCpu among it, does without.
#if defined(__GNUC__)
#define MHA_VECTOR_KERNELS 1
#define MHA_ALWAYS_INLINE inline __attribute__((always_inline))
// Also for entry points: one called by a user's functor is not to become part of the kernel that the functor is in,
// which would take minutes to compile and give it the bits of another instruction set.
#define MHA_NO_INLINE __attribute__((noinline))
#define MHA_FLATTEN __attribute__((flatten))
// Of what runs once or never, as errors do: compiled for size, which takes less time.
#define MHA_COLD __attribute__((cold))
#else
#define MHA_VECTOR_KERNELS 0
#define MHA_ALWAYS_INLINE inline
#define MHA_NO_INLINE
#define MHA_FLATTEN
#define MHA_COLD
#undef MHA_UNROLL_HOST
#define MHA_UNROLL_HOST(n)
#endif

/// Whether nvcc compiles this unit.
#if defined(__CUDACC__)
#define MHA_NVCC 1
#else
#define MHA_NVCC 0
#endif

/// Whether vectors of __fp16 are converted by the instructions of the caller a body is inlined in. Without optimization
/// the sanitizers keep the body as well, which would call functions of compiler-rt that a link with libgcc lacks.
#if defined(__x86_64__) && defined(__clang__) && defined(__OPTIMIZE__)
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

/// Whether the instructions of aarch64 are named where compilers make several of a vector expression.
#if defined(__aarch64__) && defined(__ARM_NEON) && defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MHA_NEON_ASM 1
#else
#define MHA_NEON_ASM 0
#endif

/// Beside a target with 512-bit registers: for a processor that clang's -march= takes to be faster with 256 bits, it
/// would cut each of them in two, and the sums of a tile would no longer fit.
#if defined(__clang__)
#define MHA_WHOLE_REGISTERS __attribute__((min_vector_width(512)))
#else
#define MHA_WHOLE_REGISTERS
#endif

/// The inline namespace of everything in mha: its name tells the version, the instruction set that the unit is compiled
/// for and whether errors are thrown, so that the linker never joins functions of different versions, or of units with
/// different -march= of these four classes, whose registers and whose alignment of Eigen's memory differ. Units of all
/// kinds may stand in one program; a type of mha in a signature between them is an undefined reference that names both
/// namespaces.
#if defined(__AVX512F__)
#define MHA_UNIT_ISA v0_1_avx512
#define MHA_UNIT_NUMBER 4
#elif defined(__AVX2__) && defined(__FMA__)
#define MHA_UNIT_ISA v0_1_avx2
#define MHA_UNIT_NUMBER 3
#elif defined(__AVX__)
#define MHA_UNIT_ISA v0_1_avx
#define MHA_UNIT_NUMBER 2
#else
#define MHA_UNIT_ISA v0_1
#define MHA_UNIT_NUMBER 1
#endif
/// The highest level of IsaLevel that kernels are compiled for, of machines without AVX-512 for instance: the compiler
/// takes less time. What runs on a matrix unit is compiled all the same. The units of a program have one value, as the
/// namespace says.
#if !defined(MHA_ISA_MAX) || MHA_ISA_MAX == 2
#define MHA_UNIT_LEVELS MHA_UNIT_ISA
#elif MHA_ISA_MAX == 1
#define MHA_UNIT_LEVELS MHA_JOINED(MHA_UNIT_ISA, _to_avx2)
#elif MHA_ISA_MAX == 0
#define MHA_UNIT_LEVELS MHA_JOINED(MHA_UNIT_ISA, _to_baseline)
#else
#error "mha: MHA_ISA_MAX is 0 for the baseline, 1 for AVX2 or 2 for AVX-512"
#include <mha needs MHA_ISA_MAX to be 0, 1 or 2>
#endif
#if !defined(MHA_ISA_MAX)
#define MHA_ISA_MAX 2
#endif
#if MHA_EXCEPTIONS
#define MHA_NAMESPACE MHA_UNIT_LEVELS
#define MHA_NAMESPACE_NUMBER MHA_UNIT_NUMBER
#else
#define MHA_NAMESPACE MHA_JOINED(MHA_UNIT_LEVELS, _aborts)
#define MHA_NAMESPACE_NUMBER (MHA_UNIT_NUMBER + 4)
#endif
#define MHA_JOINED(a, b) MHA_JOIN(a, b)
#define MHA_JOIN(a, b) a##b

/// Whether this unit takes its kernels from a library, as it does for -DMHA_COMPILED=n, n the number of the library's
/// namespace: a unit of another namespace compiles its own, and so does nvcc. Without a number n is 1: no -march=.
#if defined(MHA_COMPILED) && !defined(__CUDACC__)
#define MHA_KERNELS_ELSEWHERE (MHA_COMPILED == MHA_NAMESPACE_NUMBER)
#else
#define MHA_KERNELS_ELSEWHERE 0
#endif

/// What x expands to, as a literal.
#define MHA_TEXT_OF(x) MHA_TEXT_OF_ARGUMENT(x)
#define MHA_TEXT_OF_ARGUMENT(x) #x

#include <cstddef>

namespace mha::inline MHA_NAMESPACE {

/// A position or a count along one axis. Strides and offsets in memory are std::ptrdiff_t.
using Index = int;

/// In a template argument: the count is given at run time.
inline constexpr Index Dynamic = -1;

/// Alignment of memory that the library owns: one cache line, one AVX-512 register.
inline constexpr std::size_t alignment = 64;

/// Where data lies.
enum class Memory : unsigned char { host, device };

#if defined(__clang__) && !defined(__CUDACC__)
namespace detail {

/// clang has no macro for sums in any order, which make exp wrong by 40 %: it is caught when it takes x + 1 - x for 1.
void require_ieee_sums() __attribute__((error(
    "mha: needs IEEE arithmetic: compile without -ffast-math, -funsafe-math-optimizations and -fassociative-math")));
/// Nor for infinities alone, or NaNs alone, that are taken not to be: it knows then without x whether x is one.
void require_infinities() __attribute__((
    error("mha: needs IEEE arithmetic: compile without -ffast-math, -fno-honor-infinities and -fno-honor-nans")));
__attribute__((used)) inline void check_arithmetic(float x) {
  if (__builtin_constant_p((x + 1.f) - x)) require_ieee_sums();
  if (__builtin_constant_p(__builtin_isinf(x)) || __builtin_constant_p(__builtin_isnan(x))) require_infinities();
}

}  // namespace detail
#endif

}  // namespace mha::inline MHA_NAMESPACE
