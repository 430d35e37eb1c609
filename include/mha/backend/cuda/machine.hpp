// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "../../config.hpp"
#include "../../core/scalar.hpp"

/// What a kernel body is written against: the operations of one thread of a block, and nothing else of the hardware.
///
/// A body is a function template over its machine, marked MHA_KERNEL (config.hpp). DeviceMachine (device_machine.cuh)
/// turns each operation into an instruction; the tests run the same body on a host model of a thread block
/// (tests/support/gpu_model).
namespace mha::inline MHA_NAMESPACE::cuda {

/// Which block of the grid this is.
struct BlockIndex {
  int x = 0, y = 0, z = 0;
};

/// 16 bytes: what a thread moves at once.
struct alignas(16) Chunk {
  std::uint32_t word[4];
};

/// A byte address in the shared memory of the block: a number on every machine, never a pointer.
using Shared = int;

/// The threads that run together, the width of every collective.
inline constexpr int warp_size = 32;

/// What turns exponents of e into those of 2, and back. Functions, because a kernel names no variable of the host's.
template <class A> MHA_KERNEL constexpr A log2e() { return A(1.44269504088896340736); }
template <class A> MHA_KERNEL constexpr A ln2() { return A(0.69314718055994530942); }

/// What a thread moves between registers and shared memory at once.
template <class V>
concept SharedWord = std::is_trivially_copyable_v<V> &&(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);

/// The operations of a machine. All threads of a block run the body; "collective" says that all 32 lanes of a warp make
/// the call together, and lane is thread() % 32.
///
///   int thread()                      number in the block, read anew at each call: what is derived from it is computed
///                                     again rather than kept in registers across a loop
///   BlockIndex block()
///   Shared shared()                   where the block's shared memory begins; aligned to 1024, undefined at first
///   void sync()                       all threads of the block arrive; orders their shared and global accesses
///   void sync_warp()                  collective; orders the shared accesses of the warp
///
///   void mma_m16n8k16<T>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
///                                     collective; d (16 × 8) += a (16 × 16) · b (16 × 8), T bfloat16 or half in pairs.
///                                     Lane l holds rows l/4 and l/4 + 8 of a and d, column l/4 of b; along the other
///                                     axis 2 (l%4), + 1, and for a and b also + 8, + 9. Lower index in the lower half;
///                                     d[2r + c] and a[2s + r]: row half r, column c, column half s; b0, b1: row half
///   void ldmatrix_x4(uint32_t (&r)[4], Shared row)
///                                     collective; four 8 × 8 matrices of 2-byte elements. Lanes 8j … 8j + 7 name the
///                                     rows (16 bytes, aligned) of matrix j; r[j] takes row l/4, columns 2 (l%4), + 1
///   void ldmatrix_x4_trans(…)         likewise, of the transposed matrices
///   void cp_async16(Shared to, const void* from, bool valid)
///                                     begins to copy 16 aligned bytes of global memory, or 16 zeros without reading
///   void commit()                     closes the thread's group of copies; always, be it empty
///   void wait<N>()                    until all but the last N groups have landed: seen by this thread, by others
///                                     after the next barrier
///
///   V load<V>(Shared from)            V a SharedWord, its address a multiple of its size
///   void store(Shared to, V x)
///   void store_global(V* to, V x)     the one way to write global memory; V of 2, 4, 8 or 16 bytes
///   V load_global<V>(const V* from)   what this launch wrote, by whatever block; V a SharedWord
///   void fence()                      the writes before it, this thread's and those a barrier ordered before it, are
///                                     seen by whoever sees a later write of this thread's
///   unsigned atomic_wrap(unsigned* counter, unsigned last)
///                                     the counter before; it goes 0, 1, …, last, 0, …: after last + 1 blocks it is as
///                                     it was. The last block merges the partial results of all: they store and sync;
///                                     one thread fences, counts, fences and tells the block; sync; load_global. What
///                                     it fenced before the sync would not be what the others wrote
///
///   T shuffle_xor(T x, int mask)      collective; the x of lane ^ mask; T float, double or uint32_t
///   bool any(bool), all(bool)          collective
///
///   T exp2(T), log(T), fma(T, T, T), max(T, T)             T float or double. exp2 of a float is the approximation of
///                                     the hardware (2 ulp, subnormals flushed); max leaves out a NaN, as fmax does
///   uint32_t pack<T>(float low, float high)                T bfloat16 or half, rounded to nearest even
///
/// Rules     what lives in a body is trivially destructible; shared memory is reached through the machine alone, inputs
///           through plain pointers or cp_async16; no __CUDA_ARCH__: two architectures are two machines
template <class M>
concept Machine = requires(M m, int i, bool p, float x, double y, std::uint32_t u, std::uint32_t (&r)[4],
                           const std::uint32_t (&a)[4], float (&d)[4], Shared at, Chunk chunk, void* memory,
                           unsigned* counter) {
  { m.thread() } -> std::same_as<int>;
  { m.block() } -> std::same_as<BlockIndex>;
  { m.shared() } -> std::same_as<Shared>;
  m.sync();
  m.sync_warp();
  m.template mma_m16n8k16<bfloat16>(d, a, u, u);
  m.template mma_m16n8k16<half>(d, a, u, u);
  m.ldmatrix_x4(r, at);
  m.ldmatrix_x4_trans(r, at);
  m.cp_async16(at, memory, p);
  m.commit();
  m.template wait<0>();
  { m.template load<Chunk>(at) } -> std::same_as<Chunk>;
  m.store(at, chunk);
  m.store_global(&chunk, chunk);
  { m.template load_global<double>(&y) } -> std::same_as<double>;
  m.fence();
  { m.atomic_wrap(counter, u) } -> std::same_as<unsigned>;
  { m.shuffle_xor(x, i) } -> std::same_as<float>;
  { m.shuffle_xor(y, i) } -> std::same_as<double>;
  { m.shuffle_xor(u, i) } -> std::same_as<std::uint32_t>;
  { m.any(p) } -> std::same_as<bool>;
  { m.all(p) } -> std::same_as<bool>;
  { m.exp2(x) } -> std::same_as<float>;
  { m.exp2(y) } -> std::same_as<double>;
  { m.log(x) } -> std::same_as<float>;
  { m.log(y) } -> std::same_as<double>;
  { m.fma(x, x, x) } -> std::same_as<float>;
  { m.fma(y, y, y) } -> std::same_as<double>;
  { m.max(x, x) } -> std::same_as<float>;
  { m.max(y, y) } -> std::same_as<double>;
  { m.template pack<bfloat16>(x, x) } -> std::same_as<std::uint32_t>;
  { m.template pack<half>(x, x) } -> std::same_as<std::uint32_t>;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
