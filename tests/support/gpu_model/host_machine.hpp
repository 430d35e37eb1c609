// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <type_traits>

#include <mha/core/scalar.hpp>

#include "block.hpp"

namespace support::gpu {

using mha::cuda::Chunk;

/// One thread of a block on the host model: every operation of mha/backend/cuda/machine.hpp.
///
/// It cannot show the text of the PTX, the order in which tensor cores add, the bits of ex2.approx, or speed.
class HostMachine {
 public:
  HostMachine(Block& block, int thread) : block_(block), thread_(thread) {}

  int thread() const { return thread_; }
  mha::cuda::BlockIndex block() const { return block_.index(); }
  Shared shared() const { return 0; }
  void sync() { block_.sync(); }
  bool sync_any(bool x) { return block_.sync_any(x); }
  void sync_warp() {
    int none = 0;
    block_.meet(thread_, "sync_warp", none, [&](auto&) { block_.memory.sync_warp(thread_); });
  }

  // PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".
  template <class T> void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    struct Slot {
      float* d;
      const std::uint32_t* a;
      std::uint32_t b[2];
    } mine{d, a, {b0, b1}};
    block_.meet(thread_, std::is_same_v<T, mha::half> ? "mma of half" : "mma of bfloat16", mine, [&](auto& lane) {
      float left[16][16], right[8][16];
      for (int t = 0; t < warp_size; ++t) {
        const int group = t / 4, pair = t % 4 * 2;
        for (int r = 0; r < 4; ++r) halves<T>(lane[t]->a[r], &left[group + r % 2 * 8][pair + r / 2 * 8]);
        for (int r = 0; r < 2; ++r) halves<T>(lane[t]->b[r], &right[group][pair + r * 8]);
      }
      for (int t = 0; t < warp_size; ++t)
        for (int i = 0; i < 4; ++i) {
          const float *const row = left[t / 4 + i / 2 * 8], *const column = right[t % 4 * 2 + i % 2];
          float sum = lane[t]->d[i];
          for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
          lane[t]->d[i] = sum;
        }
      ++block_.count.mma;
    });
  }
  void ldmatrix_x4(std::uint32_t (&r)[4], Shared row) { ldmatrix(r, row, false); }
  void ldmatrix_x4_trans(std::uint32_t (&r)[4], Shared row) { ldmatrix(r, row, true); }

  /// The bytes land in wait(); until then they belong to nobody.
  void cp_async16(Shared to, const void* from, bool valid) {
    check16("cp_async16 from", from);
    Copy copy{to, group_, {}};
    if (valid) std::memcpy(copy.data.word, from, 16);
    block_.memory.begin_copy(thread_, to, 16);
    copies_.push_back(copy);
    ++block_.count.copies;
  }
  void commit() { ++group_; }
  template <int N> void wait() {
    for (; !copies_.empty() && copies_.front().group < group_ - N; copies_.pop_front())
      block_.memory.land_copy(thread_, copies_.front().to, 16, copies_.front().data.word);
  }

  template <mha::cuda::SharedWord V> V load(Shared from) {
    V x;
    block_.memory.read(thread_, std::uint32_t{1} << thread_ % warp_size, from, static_cast<Shared>(sizeof(V)), &x);
    return x;
  }
  template <mha::cuda::SharedWord V> void store(Shared to, V x) {
    block_.memory.write(thread_, to, static_cast<Shared>(sizeof(V)), &x);
  }

  template <class V> void store_global(V* to, V x) {
    static_assert(std::is_trivially_copyable_v<V> && (sizeof(V) == 2 || mha::cuda::SharedWord<V>));
    block_.global.store(block_.actor(thread_), to, sizeof(V), &x);
  }
  template <mha::cuda::SharedWord V> V load_global(const V* from) {
    V x;
    block_.global.load(block_.actor(thread_), from, sizeof(V), &x);
    return x;
  }
  void fence() { block_.global.fence(block_.actor(thread_)); }
  unsigned atomic_wrap(unsigned* counter, unsigned last) {
    return block_.global.atomic_wrap(block_.actor(thread_), counter, last);
  }

  template <class T> T shuffle_xor(T x, int mask) {
    struct Slot {
      T in, out;
      int mask;
    } mine{x, x, mask};
    const char* const what = sizeof(T) == 8 ? "shuffle_xor of double" : "shuffle_xor";
    block_.meet(thread_, what, mine, [](auto& lane) {
      for (int t = 0; t < warp_size; ++t) {
        const int from = t ^ lane[t]->mask;
        if (from < 0 || from >= warp_size) throw Fault("shuffle_xor of lane " + std::to_string(from));
        lane[t]->out = lane[from]->in;
      }
    });
    return mine.out;
  }
  bool any(bool x) { return vote("any", x) != 0; }
  bool all(bool x) { return vote("all", x) == 0xffffffffu; }

  float exp2(float x) const { return flushed(std::exp2(flushed(x))); }
  double exp2(double x) const { return std::exp2(x); }
  float log(float x) const { return std::log(x); }
  double log(double x) const { return std::log(x); }
  float fma(float a, float b, float c) const { return std::fma(a, b, c); }
  double fma(double a, double b, double c) const { return std::fma(a, b, c); }
  float max(float a, float b) const { return std::fmax(a, b); }
  double max(double a, double b) const { return std::fmax(a, b); }

  template <class T> std::uint32_t pack(float low, float high) const {
    return T(low).bits | static_cast<std::uint32_t>(T(high).bits) << 16;
  }

  /// The thread has come to the end of the body.
  void leave() const {
    if (!copies_.empty()) throw Fault("left the kernel with a cp.async in flight");
  }

 protected:
  Block& block_;
  int thread_;

 private:
  struct Copy {
    Shared to;
    int group;
    Chunk data;
  };

  template <class T> static void halves(std::uint32_t pair, float* x) {
    x[0] = T::from_bits(static_cast<std::uint16_t>(pair & 0xffffu));
    x[1] = T::from_bits(static_cast<std::uint16_t>(pair >> 16));
  }
  static float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x; }
  static void check16(const char* what, const void* p) {
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0)
      throw Fault(std::string(what) + " an address that is no multiple of 16");
  }

  std::uint32_t vote(const char* what, bool x) {
    struct Slot {
      bool in;
      std::uint32_t out;
    } mine{x, 0};
    block_.meet(thread_, what, mine, [&](auto& lane) {
      std::uint32_t lanes = 0;
      for (int t = 0; t < warp_size; ++t) lanes |= static_cast<std::uint32_t>(lane[t]->in) << t;
      for (int t = 0; t < warp_size; ++t) lane[t]->out = lanes;
      ++block_.count.votes;
    });
    return mine.out;
  }

  // PTX ISA, "ldmatrix": lanes 8 j … 8 j + 7 name the rows of matrix j.
  void ldmatrix(std::uint32_t (&r)[4], Shared row, bool transposed) {
    struct Slot {
      std::uint32_t* r;
      Shared row;
    } mine{r, row};
    block_.meet(thread_, transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4", mine, [&](auto& lane) {
      for (int j = 0; j < 4; ++j) {
        std::uint16_t tile[8][8];
        int visits[8] = {};  // 8 rows of 16 bytes cover the 32 banks once, or some of them again and again
        for (int i = 0; i < 8; ++i) {
          const Shared from = lane[8 * j + i]->row;
          block_.memory.read(thread_, 0xffffffffu, from, 16, tile[i]);
          ++visits[from / 16 % 8];
        }
        block_.count.bank_conflicts += *std::max_element(visits, visits + 8) - 1;
        for (int t = 0; t < warp_size; ++t) {
          const int x = t / 4, y = t % 4 * 2;
          const std::uint16_t low = transposed ? tile[y][x] : tile[x][y];
          const std::uint16_t high = transposed ? tile[y + 1][x] : tile[x][y + 1];
          lane[t]->r[j] = low | static_cast<std::uint32_t>(high) << 16;
        }
      }
      ++block_.count.ldmatrix;
    });
  }

  int group_ = 0;
  std::deque<Copy> copies_;
};

static_assert(mha::cuda::Machine<HostMachine>);

}  // namespace support::gpu
