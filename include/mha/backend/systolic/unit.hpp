// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "../../config.hpp"
#include "../../core/check.hpp"
#include "../simd/isa.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What multiplies bfloat16 pairs into float32 sums: Intel's tiles (AMX), the dot products of AVX512_BF16, or plain
/// vector code of any processor. MHA_MATRIX_UNIT=portable|dot_product|amx in the environment, or force_unit(), chooses.
enum class MatrixUnit : int { portable = 0, dot_product = 1, amx = 2 };

constexpr const char* to_string(MatrixUnit unit) {
  return unit == MatrixUnit::amx ? "amx" : unit == MatrixUnit::dot_product ? "dot_product" : "portable";
}

namespace detail::systolic {

inline constexpr MatrixUnit all_units[] = {MatrixUnit::portable, MatrixUnit::dot_product, MatrixUnit::amx};

#if defined(__x86_64__)
struct CpuidLeaf {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// All zero for a leaf that the processor does not have.
inline CpuidLeaf cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  CpuidLeaf r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

/// Which registers the system saves for a thread: XCR0, or 0 where it may not be read.
inline std::uint64_t saved_state() {
  if ((cpuid(1, 0).ecx >> 27 & 1u) == 0) return 0;
  std::uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

/// Asks the kernel, for the whole process, for the registers that it saves only on request.
inline bool request_tile_data() {
#if defined(__linux__)
  constexpr long arch_req_xcomp_perm = 0x1023, xfeature_xtiledata = 18;
  return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xfeature_xtiledata) == 0;
#else
  return false;
#endif
}

/// What is missing for AMX: `features` is EDX of CPUID leaf 7, `saved` is XCR0, request() asks the kernel for tiles
/// and is called only when all the rest is there.
///
/// Leaf 0x1D, which lists tile palettes, is hidden in some virtual machines; palette 1 is the only one there is.
template <class Request> std::string missing_amx(std::uint32_t features, std::uint64_t saved, const Request& request) {
  if ((features >> 24 & 1u) == 0) return "the processor has no tiles (AMX-TILE)";
  if ((features >> 22 & 1u) == 0) return "the processor's tiles do not multiply bfloat16 (AMX-BF16)";
  if ((saved >> 17 & 3u) != 3) return "the system does not save tile registers (XCR0 bits 17 and 18)";
  if (!request()) return "the kernel refuses tile registers to this process (ARCH_REQ_XCOMP_PERM)";
  return {};
}
inline std::string find_missing_amx() { return missing_amx(cpuid(7, 0).edx, saved_state(), request_tile_data); }

/// What is missing for dot products: `features` is EAX of CPUID leaf 7, subleaf 1.
inline std::string missing_dot_product(std::uint32_t features, IsaLevel best) {
  if ((features >> 5 & 1u) == 0) return "the processor has no bfloat16 dot products (AVX512_BF16)";
  if (best != IsaLevel::avx512)
    return MHA_ISA_MAX < 2 ? "the program has no kernels for AVX-512 (MHA_ISA_MAX)"
                           : "the system does not offer AVX-512";
  return {};
}
inline std::string find_missing_dot_product() { return missing_dot_product(cpuid(7, 1).eax, best_isa()); }

/// On Intel's cores a bfloat16 dot product runs at half the rate of float32: of use for tests, not for speed.
inline bool dot_product_pays() {
  const CpuidLeaf vendor = cpuid(0, 0);
  return vendor.ebx == 0x68747541 && vendor.edx == 0x69746e65 && vendor.ecx == 0x444d4163;  // "AuthenticAMD"
}
#else
inline std::string find_missing_amx() { return "AMX is of x86-64 processors"; }
inline std::string find_missing_dot_product() { return "AVX512_BF16 is of x86-64 processors"; }
inline bool dot_product_pays() { return false; }
#endif

}  // namespace detail::systolic

/// Why this machine cannot run a unit, in half a sentence; empty if it can. The first question about AMX asks the
/// kernel for tiles, which makes every signal frame larger; no other does.
inline const std::string& missing(MatrixUnit unit) {
  if (unit == MatrixUnit::amx) {
    static const std::string reason = detail::systolic::find_missing_amx();
    return reason;
  }
  if (unit == MatrixUnit::dot_product) {
    static const std::string reason = detail::systolic::find_missing_dot_product();
    return reason;
  }
  static const std::string nothing;
  return nothing;
}

/// The fastest unit of this machine: AMX, then AVX512_BF16 where it beats float32, then vector code.
inline MatrixUnit best_unit() {
  if (missing(MatrixUnit::amx).empty()) return MatrixUnit::amx;
  if (missing(MatrixUnit::dot_product).empty() && detail::systolic::dot_product_pays()) return MatrixUnit::dot_product;
  return MatrixUnit::portable;
}

namespace detail::systolic {

/// The unit that MHA_MATRIX_UNIT asks for; one that this machine lacks, or an unknown name, is an error and no guess.
inline MatrixUnit unit_from_environment() {
  const char* const asked = std::getenv("MHA_MATRIX_UNIT");
  if (asked == nullptr || *asked == '\0') return best_unit();
  for (const MatrixUnit unit : all_units)
    if (std::string_view(asked) == to_string(unit)) {
      require(missing(unit).empty(), "MHA_MATRIX_UNIT: ", asked, " was asked for but ", missing(unit));
      return unit;
    }
  fail("MHA_MATRIX_UNIT: '", asked, "' is none of portable, dot_product, amx");
}

inline std::atomic<MatrixUnit>& chosen_unit() {
  static std::atomic<MatrixUnit> unit{unit_from_environment()};
  return unit;
}

}  // namespace detail::systolic

/// The unit that products run on now.
///
/// Errors    ShapeError if MHA_MATRIX_UNIT names no unit of this machine
inline MatrixUnit current_unit() { return detail::systolic::chosen_unit().load(std::memory_order_relaxed); }

/// Use this unit from the next call on, in every thread.
///
/// Errors    ShapeError if the machine does not have it
inline void force_unit(MatrixUnit unit) {
  detail::require(missing(unit).empty(), "force_unit: ", to_string(unit), " was asked for but ", missing(unit));
  detail::systolic::chosen_unit().store(unit, std::memory_order_relaxed);
}

namespace detail::systolic {

#if defined(__x86_64__)
/// Before every function that add_dot_products() is inlined into, the body that Avx512Bf16 runs among them: a compiler
/// takes 512-bit operands of an instruction only in a function that is itself compiled for them.
#define MHA_TARGET_DOT_PRODUCT \
  __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma"))) MHA_WHOLE_REGISTERS

/// A tag like simd::Avx512 whose bodies may use bfloat16 dot products too.
struct Avx512Bf16 {
  static constexpr IsaLevel level = IsaLevel::avx512;
  static constexpr int register_bytes = 64;
  static constexpr int registers = 32;
  template <class Body, class... Args> MHA_TARGET_DOT_PRODUCT MHA_NO_INLINE static void run(Args... args) {
    Body::template run<Avx512Bf16>(args...);
  }
};

/// sum (16 floats) += the dot products of 16 pairs of a and b: odd elements first, then even ones, each fused; numbers
/// below the normal range count as zero.
template <class Sum, class Pairs>
MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE void add_dot_products(Sum& sum, const Pairs& a, const Pairs& b) {
  static_assert(sizeof(Sum) == 64 && sizeof(Pairs) == 64);
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

/// to (64 bytes) ← the bfloat16 numbers nearest to 16 floats and 16 more; numbers below the normal range become zero.
template <class Floats, class Words>
MHA_TARGET_DOT_PRODUCT MHA_ALWAYS_INLINE void narrow(const Floats& a, const Floats& b, Words& to) {
  static_assert(sizeof(Floats) == 64 && sizeof(Words) == 64);
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(to) : "v"(b), "v"(a));
}

/// Whether the processor has these and kernels of this level may use them.
inline bool rounds_to_bfloat16(IsaLevel level) {
  return level == IsaLevel::avx512 && missing(MatrixUnit::dot_product).empty();
}
#else
inline bool rounds_to_bfloat16(IsaLevel) { return false; }
#endif

}  // namespace detail::systolic

}  // namespace mha::inline MHA_NAMESPACE
