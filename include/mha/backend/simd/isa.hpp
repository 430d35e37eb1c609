// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "../../config.hpp"
#include "../../core/check.hpp"

#if !MHA_VECTOR_KERNELS
#error \
    "mha: the kernels need g++ or clang (vector types and attributes of functions): include mha/eigen.hpp, use EigenCpu"
#endif

namespace mha::inline MHA_NAMESPACE {

/// An instruction-set level of the CPU kernels. The best one of the machine is chosen at run time, so a program
/// compiled without flags uses it. MHA_ISA=baseline|avx2|avx512 in the environment, or force_isa(), lowers it. On other
/// processors than x86-64 there is the baseline alone, which is NEON on aarch64.
enum class IsaLevel : int { baseline = 0, avx2 = 1, avx512 = 2 };

constexpr const char* to_string(IsaLevel level) {
  return level == IsaLevel::avx512 ? "avx512" : level == IsaLevel::avx2 ? "avx2" : "baseline";
}

#if defined(__x86_64__)
namespace detail {

/// F16C, which clang 14 has no name for in __builtin_cpu_supports.
inline bool converts_half() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

/// Whether the processor forgets requests for memory in advance while as many as it holds are on their way, where
/// others let them wait. As far as was measured, AMD's from Zen 5 on do: of family 1Ah.
inline bool forgets_requests() {
  static const bool forgets = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0 || ebx != signature_AMD_ebx || ecx != signature_AMD_ecx ||
        edx != signature_AMD_edx || __get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0)
      return false;
    return (eax >> 8 & 15) + (eax >> 20 & 255) >= 0x1a;
  }();
  return forgets;
}

}  // namespace detail
#else
namespace detail {
constexpr bool forgets_requests() { return false; }
}  // namespace detail
#endif

/// The best level this machine runs, of those that are compiled (MHA_ISA_MAX).
inline IsaLevel best_isa() {
#if defined(__x86_64__)
  static const IsaLevel best = [] {
    __builtin_cpu_init();
    if (MHA_ISA_MAX == 0 || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !detail::converts_half())
      return IsaLevel::baseline;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return avx512 && MHA_ISA_MAX > 1 ? IsaLevel::avx512 : IsaLevel::avx2;
  }();
  return best;
#else
  return IsaLevel::baseline;
#endif
}

namespace detail {

/// What of the two, the program or the machine, ends at best_isa().
inline std::string_view runs_up_to() {
  const bool machine = MHA_ISA_MAX == 2 || best_isa() < static_cast<IsaLevel>(MHA_ISA_MAX);
  return machine ? "this machine runs up to " : "this program (MHA_ISA_MAX) runs up to ";
}

/// The level that MHA_ISA asks for; a level above the machine's, or an unknown name, is an error and not a guess.
MHA_COLD inline IsaLevel isa_from_environment() {
  const char* const asked = std::getenv("MHA_ISA");
  if (asked == nullptr || *asked == '\0') return best_isa();
  for (const IsaLevel level : {IsaLevel::baseline, IsaLevel::avx2, IsaLevel::avx512})
    if (std::string_view(asked) == to_string(level)) {
      require(level <= best_isa(), "MHA_ISA: ", runs_up_to(), to_string(best_isa()), " but ", asked, " was asked for");
      return level;
    }
  fail("MHA_ISA: '", asked, "' is none of baseline, avx2, avx512");
}

inline std::atomic<IsaLevel>& chosen_isa() {
  static std::atomic<IsaLevel> level{isa_from_environment()};
  return level;
}

}  // namespace detail

/// The level the kernels use now.
///
/// Errors    ShapeError if MHA_ISA names no level of this machine
[[nodiscard]] inline IsaLevel current_isa() { return detail::chosen_isa().load(std::memory_order_relaxed); }

/// Use this level from the next call on, in every thread.
///
/// Errors    ShapeError if the machine does not run it, or the program is compiled without it (MHA_ISA_MAX)
inline void force_isa(IsaLevel level) {
  detail::require(level <= best_isa(), "force_isa: ", detail::runs_up_to(), to_string(best_isa()), " but ",
                  to_string(level), " was asked for");
  detail::chosen_isa().store(level, std::memory_order_relaxed);
}

namespace detail::simd {

// One tag per level: the width of its registers and a way to run a body compiled for it. A body is a class with
// `template <class Isa> static void run(args...)`, always_inline, so that it takes on the instructions of its caller;
// what it calls, a user's policy perhaps, is inlined too.

struct Baseline {
  static constexpr IsaLevel level = IsaLevel::baseline;
  static constexpr int register_bytes = 16;
#if defined(__aarch64__)
  static constexpr int registers = 32;
#else
  static constexpr int registers = 16;
#endif
  /// Whether few machines run it, so that it has one shape of each kernel: every x86-64 processor since 2015 has AVX2.
#if defined(__x86_64__)
  static constexpr bool minimal = true;
#else
  static constexpr bool minimal = false;
#endif
  template <class Body, class... Args> MHA_NO_INLINE MHA_FLATTEN static void run(Args... args) {
    Body::template run<Baseline>(args...);
  }
};

#if defined(__x86_64__)
struct Avx2 {
  static constexpr IsaLevel level = IsaLevel::avx2;
  static constexpr int register_bytes = 32;
  static constexpr int registers = 16;
  static constexpr bool minimal = false;
  template <class Body, class... Args>
  __attribute__((target("avx2,fma,f16c"))) MHA_NO_INLINE MHA_FLATTEN static void run(Args... args) {
    Body::template run<Avx2>(args...);
  }
};

struct Avx512 {
  static constexpr IsaLevel level = IsaLevel::avx512;
  static constexpr int register_bytes = 64;
  static constexpr int registers = 32;
  static constexpr bool minimal = false;
  template <class Body, class... Args>
  __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")))
  MHA_WHOLE_REGISTERS MHA_NO_INLINE MHA_FLATTEN static void
  run(Args... args) {
    Body::template run<Avx512>(args...);
  }
};
#endif

/// Whether registers are many and short, as NEON's: more of them hold as much.
template <class Isa> inline constexpr bool short_registers = Isa::registers == 32 && Isa::register_bytes == 16;

/// f(tag) for the level in use.
template <class F> auto with_isa(IsaLevel level, F&& f) {
#if defined(__x86_64__) && MHA_ISA_MAX > 1
  if (level == IsaLevel::avx512) return f(Avx512{});
#endif
#if defined(__x86_64__) && MHA_ISA_MAX > 0
  if (level == IsaLevel::avx2) return f(Avx2{});
#endif
  static_cast<void>(level);
  return f(Baseline{});
}

}  // namespace detail::simd

}  // namespace mha::inline MHA_NAMESPACE
