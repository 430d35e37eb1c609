// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <mha/backend/cuda/machine.hpp>

namespace support::gpu {

using mha::cuda::Shared;
using mha::cuda::warp_size;

/// What a kernel did that the hardware does not define: a race, a collective without all of its lanes, a bad address.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The shared memory of a block, NaN at first, that remembers who touched each word since the last barrier.
///
/// Two accesses to a word, one of them a write, by different threads are a race unless a barrier lies between: of the
/// block, or of the warp where both are of one warp. A word under a cp.async that has not landed belongs to nobody.
/// The asynchronous proxy, by which products of warpgroups read, sees what its writer has fenced before a barrier.
class SharedMemory {
 public:
  SharedMemory(int threads, Shared bytes)
      : warps_(static_cast<std::size_t>(threads / warp_size)),
        memory_(size(bytes)),
        words_(size(bytes) / 4),
        readers_(size(bytes) / 4 * warps_),
        warp_epoch_(warps_, 1),
        fenced_(static_cast<std::size_t>(threads)),
        visible_(fenced_) {}

  void clear() {
    std::fill(memory_.begin(), memory_.end(), static_cast<unsigned char>(0xff));  // a NaN in every floating-point type
    std::fill(words_.begin(), words_.end(), Word{});
    sync();
  }
  void sync() {
    ++epoch_;
    visible_ = fenced_;
  }
  void sync_warp(int thread) { ++warp_epoch_[warp(thread)]; }
  void fence_proxy(int thread) { fenced_[static_cast<std::size_t>(thread)] = writes_; }
  std::uint64_t epoch() const { return epoch_; }
  /// How many words have been written so far.
  std::uint64_t writes() const { return writes_; }

  /// lanes: who of the thread's warp receives these bytes.
  ///
  /// Most of the model's time passes here, without optimization: few calls, no indexing.
  void read(int thread, std::uint32_t lanes, Shared address, Shared bytes, void* to) {
    const unsigned char* const from = at(address, bytes);
    const std::size_t own = warp(thread), first = size(address) / 4;
    const std::uint64_t epoch = epoch_, warp_epoch = warp_epoch_[own];
    const Word *x = words_.data() + first, *const end = x + size(bytes) / 4;
    for (Readers* r = readers_.data() + first * warps_ + own; x != end; ++x, r += warps_) {
      if (x->flying || x->writer < 0 || x->epoch == epoch) expect_readable(*x, thread, lanes);
      if (r->epoch != epoch || r->warp_epoch != warp_epoch) *r = {epoch, warp_epoch, 0};
      r->lanes |= lanes;
    }
    std::memcpy(to, from, size(bytes));
  }

  /// Of a product of the thread's warpgroup that was begun when writes() was `begun`, for its whole warp.
  void read_by_proxy(int thread, std::uint64_t begun, Shared address, Shared bytes, void* to) {
    read(thread, 0xffffffffu, address, bytes, to);
    for (std::size_t w = size(address) / 4; w < size(address + bytes) / 4; ++w) {
      const Word& x = words_[w];
      if (x.written > begun)
        throw Fault(name("read", w) + " that thread " + std::to_string(x.writer) +
                    " has written while the product was in flight");
      if (x.written > visible_[static_cast<std::size_t>(x.writer)])
        throw Fault(name("read", w) + " that thread " + std::to_string(x.writer) +
                    " has written but not fenced for the asynchronous proxy");
    }
  }

  void write(int thread, Shared address, Shared bytes, const void* from) {
    unsigned char* const to = at(address, bytes);
    claim(thread, address, bytes, false);
    std::memcpy(to, from, size(bytes));
  }

  /// A cp.async begins: its target is NaN until it lands.
  void begin_copy(int thread, Shared address, Shared bytes) {
    unsigned char* const to = at(address, bytes);
    claim(thread, address, bytes, true);
    std::memset(to, 0xff, size(bytes));
  }
  void land_copy(int thread, Shared address, Shared bytes, const void* from) {
    const std::size_t first = size(address) / 4;
    for (Word *x = words_.data() + first, *const end = x + size(bytes) / 4; x != end; ++x) *x = mark(thread, false);
    std::memcpy(at(address, bytes), from, size(bytes));
  }

 private:
  struct Word {
    int writer = -1;
    bool flying = false;
    std::uint64_t epoch = 0, warp_epoch = 0, written = 0;
  };
  struct Readers {
    std::uint64_t epoch = 0, warp_epoch = 0;
    std::uint32_t lanes = 0;
  };

  static std::size_t warp(int thread) { return static_cast<std::size_t>(thread / warp_size); }
  static std::uint32_t lane_bit(int thread) { return std::uint32_t{1} << thread % warp_size; }
  static std::size_t size(Shared bytes) { return static_cast<std::size_t>(bytes); }
  static std::string name(const char* what, std::size_t word) {
    return std::string(what) + " of shared byte " + std::to_string(word * 4);
  }
  Word mark(int thread, bool flying) { return {thread, flying, epoch_, warp_epoch_[warp(thread)], ++writes_}; }

  /// Written since the last barrier that orders the write before this warp.
  bool unordered(const Word& x, std::size_t by_warp) const {
    return x.writer >= 0 && x.epoch == epoch_ && !(warp(x.writer) == by_warp && x.warp_epoch < warp_epoch_[by_warp]);
  }

  void expect_readable(const Word& x, int thread, std::uint32_t lanes) const {
    const auto w = static_cast<std::size_t>(&x - words_.data());
    if (x.flying)
      throw Fault(name("read", w) + " while the cp.async of thread " + std::to_string(x.writer) +
                  " is in flight: its wait, or the barrier after it, is missing");
    if (x.writer < 0) throw Fault(name("read", w) + " that nobody wrote");
    const bool own = warp(x.writer) == warp(thread) && lanes == lane_bit(x.writer);
    if (!own && unordered(x, warp(thread)))
      throw Fault(name("read", w) + " races with the write of thread " + std::to_string(x.writer));
  }

  unsigned char* at(Shared address, Shared bytes) {
    if (address % bytes != 0)
      throw Fault("shared address " + std::to_string(address) + " is no multiple of " + std::to_string(bytes));
    if (address < 0 || size(address) + size(bytes) > memory_.size())
      throw Fault("shared address " + std::to_string(address) + " is past the " + std::to_string(memory_.size()) +
                  " bytes of the block");
    return memory_.data() + size(address);
  }

  void claim(int thread, Shared address, Shared bytes, bool flying) {
    const std::size_t own = warp(thread), first = size(address) / 4;
    const std::uint64_t epoch = epoch_;
    const Readers* r = readers_.data() + first * warps_;
    Word *x = words_.data() + first, *const end = x + size(bytes) / 4;
    for (; x != end; ++x) {
      if (x->flying || (x->epoch == epoch && x->writer != thread)) expect_writable(*x, own);
      for (const Readers* const last = r + warps_; r != last; ++r)
        if (r->epoch == epoch) expect_not_read(*r, thread);
      *x = mark(thread, flying);
    }
  }
  void expect_writable(const Word& x, std::size_t by_warp) const {
    const auto w = static_cast<std::size_t>(&x - words_.data());
    if (x.flying) throw Fault(name("write", w) + " while a cp.async to it is in flight");
    if (unordered(x, by_warp))
      throw Fault(name("write", w) + " races with the write of thread " + std::to_string(x.writer));
  }
  void expect_not_read(const Readers& r, int thread) const {
    const auto at = static_cast<std::size_t>(&r - readers_.data());
    const std::size_t v = at % warps_;
    if (v == warp(thread) && (r.warp_epoch != warp_epoch_[v] || (r.lanes & ~lane_bit(thread)) == 0)) return;
    throw Fault(name("write", at / warps_) + " races with a read in warp " + std::to_string(v));
  }

  std::size_t warps_;
  std::vector<unsigned char> memory_;
  std::vector<Word> words_;
  std::vector<Readers> readers_;
  std::vector<std::uint64_t> warp_epoch_;
  std::vector<std::uint64_t> fenced_, visible_;  // by thread: the writes up to which the asynchronous proxy …
  std::uint64_t epoch_ = 0, writes_ = 0;
};

}  // namespace support::gpu
