// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine.hpp"

#if !MHA_NVCC
#error "mha: mha/cuda.cuh is for units that nvcc compiles: in a file of C++ include mha/backend/cuda/device_tensor.hpp"
#include <mha needs nvcc here>
#endif
#if MHA_ON_DEVICE && __CUDA_ARCH__ < 800
#error "mha: Cuda needs compute capability 8.0: compile with -arch=sm_80 or newer, CMAKE_CUDA_ARCHITECTURES=80"
#endif

namespace mha::inline MHA_NAMESPACE::cuda {

/// The machine of a kernel on the device, sm_80 and newer: every operation is the instruction it is named after.
///
/// Source    PTX ISA, "Warp-level matrix instructions", "Data movement and conversion instructions"
struct DeviceMachine {
  MHA_KERNEL int thread() const {
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
  }
  MHA_KERNEL BlockIndex block() const {
    return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
  }
  MHA_KERNEL Shared shared() const {
    extern __shared__ __align__(1024) unsigned char mha_shared_memory[];
    return static_cast<Shared>(__cvta_generic_to_shared(mha_shared_memory));
  }
  MHA_KERNEL void sync() const { __syncthreads(); }
  MHA_KERNEL void sync_warp() const { __syncwarp(); }

  template <class T>
  MHA_KERNEL void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) const {
    if constexpr (std::is_same_v<T, bfloat16>)
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  MHA_KERNEL void ldmatrix_x4(std::uint32_t (&r)[4], Shared row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
  }
  MHA_KERNEL void ldmatrix_x4_trans(std::uint32_t (&r)[4], Shared row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
  }
  MHA_KERNEL void cp_async16(Shared to, const void* from, bool valid) const {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
  }
  MHA_KERNEL void commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int N> MHA_KERNEL void wait() const { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

  template <SharedWord V> MHA_KERNEL V load(Shared from) const {
    if constexpr (sizeof(V) == 4) {
      std::uint32_t x;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
      return __builtin_bit_cast(V, x);
    } else if constexpr (sizeof(V) == 8) {
      std::uint64_t x;
      asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(from) : "memory");
      return __builtin_bit_cast(V, x);
    } else {
      Chunk x;
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                   : "r"(from)
                   : "memory");
      return __builtin_bit_cast(V, x);
    }
  }
  template <SharedWord V> MHA_KERNEL void store(Shared to, V value) const {
    if constexpr (sizeof(V) == 4) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(__builtin_bit_cast(std::uint32_t, value)) : "memory");
    } else if constexpr (sizeof(V) == 8) {
      asm volatile("st.shared.b64 [%0], %1;" ::"r"(to), "l"(__builtin_bit_cast(std::uint64_t, value)) : "memory");
    } else {
      const Chunk x = __builtin_bit_cast(Chunk, value);
      asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]),
                   "r"(x.word[3])
                   : "memory");
    }
  }
  template <class V> MHA_KERNEL void store_global(V* to, V value) const {
    if constexpr (sizeof(V) == 2) {
      asm volatile("st.global.b16 [%0], %1;" ::"l"(to), "h"(__builtin_bit_cast(std::uint16_t, value)) : "memory");
    } else if constexpr (sizeof(V) == 4) {
      asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(__builtin_bit_cast(std::uint32_t, value)) : "memory");
    } else if constexpr (sizeof(V) == 8) {
      asm volatile("st.global.b64 [%0], %1;" ::"l"(to), "l"(__builtin_bit_cast(std::uint64_t, value)) : "memory");
    } else {
      const Chunk x = __builtin_bit_cast(Chunk, value);
      asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]),
                   "r"(x.word[3])
                   : "memory");
    }
  }
  /// From the cache that all multiprocessors share.
  template <SharedWord V> MHA_KERNEL V load_global(const V* from) const {
    if constexpr (sizeof(V) == 4) {
      std::uint32_t x;
      asm volatile("ld.global.cg.b32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
      return __builtin_bit_cast(V, x);
    } else if constexpr (sizeof(V) == 8) {
      std::uint64_t x;
      asm volatile("ld.global.cg.b64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
      return __builtin_bit_cast(V, x);
    } else {
      Chunk x;
      asm volatile("ld.global.cg.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                   : "l"(from)
                   : "memory");
      return __builtin_bit_cast(V, x);
    }
  }
  MHA_KERNEL void fence() const { __threadfence(); }
  MHA_KERNEL unsigned atomic_wrap(unsigned* counter, unsigned last) const { return atomicInc(counter, last); }

  template <class T> MHA_KERNEL T shuffle_xor(T x, int mask) const { return __shfl_xor_sync(all_lanes, x, mask); }
  MHA_KERNEL bool any(bool x) const { return __any_sync(all_lanes, x) != 0; }
  MHA_KERNEL bool all(bool x) const { return __all_sync(all_lanes, x) != 0; }
  MHA_KERNEL bool sync_any(bool x) const { return __syncthreads_or(x) != 0; }

  MHA_KERNEL float exp2(float x) const {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  MHA_KERNEL double exp2(double x) const { return ::exp2(x); }
  MHA_KERNEL float log(float x) const { return ::logf(x); }
  MHA_KERNEL double log(double x) const { return ::log(x); }
  MHA_KERNEL float fma(float a, float b, float c) const { return ::fmaf(a, b, c); }
  MHA_KERNEL double fma(double a, double b, double c) const { return ::fma(a, b, c); }
  MHA_KERNEL float max(float a, float b) const { return ::fmaxf(a, b); }
  MHA_KERNEL double max(double a, double b) const { return ::fmax(a, b); }

  template <class T> MHA_KERNEL std::uint32_t pack(float low, float high) const {
    std::uint32_t pair;
    if constexpr (std::is_same_v<T, bfloat16>)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }

 protected:
  static constexpr unsigned all_lanes = 0xffffffffu;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
