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
///   void store_global(V* to, V x)     the one way to write global memory, but for what a thread has for itself alone,
///                                     the sums of a user's accumulate(); V of 2, 4, 8 or 16 bytes
///   V load_global<V>(const V* from)   what this launch wrote, by whatever block; V a SharedWord
///   void fence()                      the writes before it, this thread's and those a barrier ordered before it, are
///                                     seen by every thread that sees a later write of this one
///   unsigned atomic_wrap(unsigned* counter, unsigned last)
///                                     the counter before; it goes 0, 1, …, last, 0, …: after last + 1 blocks it is as
///                                     it was. The last block merges the partial results of all: they store and sync;
///                                     one thread fences, counts, fences and tells the block; sync; load_global. What
///                                     it fenced before the sync would not be what the others wrote
///
///   T shuffle_xor(T x, int mask)      collective; the x of lane ^ mask; T float, double or uint32_t
///   bool any(bool), all(bool)          collective
///   bool sync_any(bool)               sync(), and whether any thread of the block says so
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
  { m.sync_any(p) } -> std::same_as<bool>;
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

/// Four warps whose first one's number is a multiple of 4: what multiplies together on a WarpgroupMachine.
inline constexpr int warpgroup_size = 4 * warp_size;

/// A machine with the asynchronous products of warpgroups, those of compute capability 9.0a. All 128 threads of a
/// warpgroup make such a call together; l is the lane and w the warp in the warpgroup, thread() / 32 % 4.
///
/// Their operands in shared memory are panels of SharedPanels (tiles.hpp): rows of 128 bytes, the chunk c of row r in
/// place c ^ r % 8, a panel aligned to 1024. An address names the chunk where an operand begins in row 0, a multiple
/// of 8 rows: its row r lies 128 r bytes further.
///
///   void wgmma<T, N>(float (&d)[N / 8][4], Shared a, Shared b, bool add)
///                                     d (64 × N) = a (64 × 16) · b (N × 16)ᵀ, added to what d was if so told; an
///                                     operand's 16 columns are two chunks of one panel. d[n] of a thread is the
///                                     accumulator of mma_m16n8k16 of rows 16 w … 16 w + 15 and columns 8 n … 8 n + 7
///   void wgmma<T, N>(float (&d)[N / 8][4], const uint32_t (&a)[4], Shared b, Shared panel)
///                                     d (64 × N) += a (64 × 16) · b (16 × N); a as in mma_m16n8k16, of rows 16 w, …;
///                                     b's columns 64 p … 64 p + 63 are in a panel that begins p · panel bytes further
///   void wgmma_fence()                before the first wgmma of a group: orders what was done to registers before it
///   void wgmma_commit()               closes the group of the warpgroup's products
///   void wgmma_wait<N>()              until all but the last N groups are done. Before that nothing may touch their
///                                     accumulators, their a, and their shared memory but to read it
///   void hold(float (&)[M][4]), hold(uint32_t (&)[M][4])
///                                     after a wait, what was in flight: a compiler moves no use of it before this
///   int uniform(int x)                collective; x, the same in all lanes, so that it is kept once for the warp
///   void fence_proxy()                what this thread has written to shared memory, copies that landed too, is seen
///                                     by products of the threads that meet it at the next sync
template <class M>
concept WarpgroupMachine = Machine<M> &&
    requires(M m, float (&d)[8][4], const std::uint32_t (&a)[4], std::uint32_t (&fragments)[4][4], Shared at, bool p) {
  m.template wgmma<bfloat16, 64>(d, at, at, p);
  m.template wgmma<half, 64>(d, a, at, at);
  m.wgmma_fence();
  m.wgmma_commit();
  m.template wgmma_wait<1>();
  m.hold(d);
  m.hold(fragments);
  m.fence_proxy();
  { m.uniform(0) } -> std::same_as<int>;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
