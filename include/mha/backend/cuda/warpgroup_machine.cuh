// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "device_machine.cuh"
#include "error.hpp"

/// Whether this pass of the compiler makes code for sm_90a, which alone has the products of warpgroups.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MHA_HAS_WARPGROUPS 1
#else
#define MHA_HAS_WARPGROUPS 0
#endif

namespace mha::inline MHA_NAMESPACE::cuda {

// What an asm names: %0 … of the sums, and the sums themselves, by the columns of a product.
// clang-format off
#define MHA_TEN(t) "%" t "0,%" t "1,%" t "2,%" t "3,%" t "4,%" t "5,%" t "6,%" t "7,%" t "8,%" t "9,"
#define MHA_NAMES_64 MHA_TEN("") MHA_TEN("1") MHA_TEN("2") "%30,%31"
#define MHA_TO_59 MHA_TEN("") MHA_TEN("1") MHA_TEN("2") MHA_TEN("3") MHA_TEN("4") MHA_TEN("5")
#define MHA_NAMES_128 MHA_TO_59 "%60,%61,%62,%63"
#define MHA_NAMES_256 MHA_TO_59 MHA_TEN("6") MHA_TEN("7") MHA_TEN("8") MHA_TEN("9") MHA_TEN("10") MHA_TEN("11") \
  "%120,%121,%122,%123,%124,%125,%126,%127"
#define MHA_SUM(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define MHA_SUMS(n) MHA_SUM(n), MHA_SUM(n + 1), MHA_SUM(n + 2), MHA_SUM(n + 3), \
  MHA_SUM(n + 4), MHA_SUM(n + 5), MHA_SUM(n + 6), MHA_SUM(n + 7)
#define MHA_SUMS_64 MHA_SUMS(0)
#define MHA_SUMS_128 MHA_SUMS(0), MHA_SUMS(8)
#define MHA_SUMS_256 MHA_SUMS(0), MHA_SUMS(8), MHA_SUMS(16), MHA_SUMS(24)
#define MHA_WGMMA(n, type) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" MHA_NAMES_##n "}, "
// Behind the sums: the operands' numbers in the text.
#define MHA_OF_SHARED(n, type, a, b, add)                                                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" add ", 0;\n" MHA_WGMMA(n, type) "%" a ", %" b               \
               ", p, 1, 1, 0, 0;\n}" : MHA_SUMS_##n : "l"(left), "l"(right), "r"(added) : "memory")
#define MHA_OF_REGISTERS(n, type, a0, a1, a2, a3, b)                                                            \
  asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n" MHA_WGMMA(n, type)                                    \
               "{%" a0 ",%" a1 ",%" a2 ",%" a3 "}, %" b ", p, 1, 1, 1;\n}" : MHA_SUMS_##n                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right) : "memory")
#define MHA_OF_TYPE(product, n, ...)                                                                            \
  if constexpr (std::is_same_v<T, bfloat16>) product(n, "bf16", __VA_ARGS__); else product(n, "f16", __VA_ARGS__)
// clang-format on

/// The machine of a kernel with warpgroups, compiled for sm_90a. On any other architecture the operations that it adds
/// do nothing: no such kernel is to be launched there, see runs_warpgroup_products().
///
/// Source    PTX ISA, "Asynchronous warpgroup level matrix instructions"
struct HopperMachine : DeviceMachine {
  template <class T, int N>
  MHA_KERNEL void wgmma([[maybe_unused]] float (&d)[N / 8][4], [[maybe_unused]] Shared a, [[maybe_unused]] Shared b,
                        [[maybe_unused]] bool add) const {
    static_assert(N == 64 || N == 128 || N == 256);
#if MHA_HAS_WARPGROUPS
    const std::uint64_t left = descriptor(a, 16), right = descriptor(b, 16);
    const int added = add;
    if constexpr (N == 64) {
      MHA_OF_TYPE(MHA_OF_SHARED, 64, "32", "33", "34");
    } else if constexpr (N == 128) {
      MHA_OF_TYPE(MHA_OF_SHARED, 128, "64", "65", "66");
    } else {
      MHA_OF_TYPE(MHA_OF_SHARED, 256, "128", "129", "130");
    }
#endif
  }
  template <class T, int N>
  MHA_KERNEL void wgmma([[maybe_unused]] float (&d)[N / 8][4], [[maybe_unused]] const std::uint32_t (&a)[4],
                        [[maybe_unused]] Shared b, [[maybe_unused]] Shared panel) const {
    static_assert(N == 64 || N == 128 || N == 256);
#if MHA_HAS_WARPGROUPS
    const std::uint64_t right = descriptor(b, panel);
    if constexpr (N == 64) {
      MHA_OF_TYPE(MHA_OF_REGISTERS, 64, "32", "33", "34", "35", "36");
    } else if constexpr (N == 128) {
      MHA_OF_TYPE(MHA_OF_REGISTERS, 128, "64", "65", "66", "67", "68");
    } else {
      MHA_OF_TYPE(MHA_OF_REGISTERS, 256, "128", "129", "130", "131", "132");
    }
#endif
  }
  MHA_KERNEL void wgmma_fence() const {
#if MHA_HAS_WARPGROUPS
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }
  MHA_KERNEL void wgmma_commit() const {
#if MHA_HAS_WARPGROUPS
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
  }
  template <int N> MHA_KERNEL void wgmma_wait() const {
#if MHA_HAS_WARPGROUPS
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
  }
  template <int M> MHA_KERNEL void hold(float (&x)[M][4]) const {
    MHA_UNROLL
    for (int i = 0; i < M * 4; ++i) asm volatile("" : "+f"(x[i / 4][i % 4])::"memory");
  }
  template <int M> MHA_KERNEL void hold(std::uint32_t (&x)[M][4]) const {
    MHA_UNROLL
    for (int i = 0; i < M * 4; ++i) asm volatile("" : "+r"(x[i / 4][i % 4])::"memory");
  }
  MHA_KERNEL int uniform(int x) const { return __shfl_sync(all_lanes, x, 0); }
  MHA_KERNEL void fence_proxy() const {
#if MHA_HAS_WARPGROUPS
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

 private:
  /// Of an operand of rows of 128 permuted bytes, 8 of which take 1024. `leading` is what lies between panels; what is
  /// read within one panel does without.
  MHA_KERNEL static constexpr std::uint64_t descriptor(Shared at, Shared leading) {
    return (static_cast<std::uint64_t>(at) & 0x3ffff) >> 4 | static_cast<std::uint64_t>(leading >> 4) << 16 |
           std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
  }
};

#undef MHA_TEN
#undef MHA_NAMES_64
#undef MHA_TO_59
#undef MHA_NAMES_128
#undef MHA_NAMES_256
#undef MHA_SUM
#undef MHA_SUMS
#undef MHA_SUMS_64
#undef MHA_SUMS_128
#undef MHA_SUMS_256
#undef MHA_WGMMA
#undef MHA_OF_SHARED
#undef MHA_OF_REGISTERS
#undef MHA_OF_TYPE

/// Tells by its shared memory whether it was compiled for sm_90a: the host sees no other difference.
inline constexpr int warpgroup_mark = 4096;
static __global__ void warpgroup_probe() {
#if MHA_HAS_WARPGROUPS
  __shared__ volatile int mark[warpgroup_mark / sizeof(int)];
  mark[threadIdx.x] = 0;
#endif
}

/// Whether this unit has code with warpgroup products for the current device. Static, as the probe is: the units of a
/// program may be compiled for different architectures.
static inline bool runs_warpgroup_products() {
  static std::atomic<std::uint64_t> asked{0}, has{0};  // one bit per device, of the first 64
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
  if ((asked.load(std::memory_order_acquire) & bit) != 0) return (has.load(std::memory_order_relaxed) & bit) != 0;
  cudaFuncAttributes probe{};
  if (cudaFuncGetAttributes(&probe, reinterpret_cast<const void*>(warpgroup_probe)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  const bool answer = probe.sharedSizeBytes >= warpgroup_mark;
  if (answer) has.fetch_or(bit, std::memory_order_relaxed);
  asked.fetch_or(bit, std::memory_order_release);
  return answer;
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
