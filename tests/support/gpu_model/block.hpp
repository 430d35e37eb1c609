// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "fibers.hpp"
#include "global_memory.hpp"
#include "shared_memory.hpp"

namespace support::gpu {

using mha::cuda::BlockIndex;
using mha::cuda::warpgroup_size;

/// What a launch did. bank_conflicts: passes of ldmatrix beyond the one per matrix.
struct Counters {
  long mma = 0, wgmma = 0, ldmatrix = 0, bank_conflicts = 0, copies = 0, syncs = 0, votes = 0;

  Counters& operator+=(const Counters& c) {
    mma += c.mma, wgmma += c.wgmma, ldmatrix += c.ldmatrix, bank_conflicts += c.bank_conflicts;
    copies += c.copies, syncs += c.syncs, votes += c.votes;
    return *this;
  }
};

/// One thread block: its threads as fibers, its barriers, the meetings of its warps and warpgroups, its shared memory.
class Block {
 public:
  Counters count;
  SharedMemory memory;
  GlobalMemory& global;

  Block(int threads, Shared bytes, GlobalMemory& memory_of_launch)
      : memory(threads, bytes),
        global(memory_of_launch),
        fibers_(threads),
        warps_(static_cast<std::size_t>(threads / warp_size)),
        warpgroups_(static_cast<std::size_t>((threads + warpgroup_size - 1) / warpgroup_size)),
        waits_(static_cast<std::size_t>(threads)) {
    if (threads <= 0 || threads % warp_size != 0)
      throw Fault("a block of " + std::to_string(threads) + " threads is no whole number of warps");
  }

  BlockIndex index() const { return index_; }
  GlobalMemory::Actor actor(int thread) const { return {number_, thread, memory.epoch()}; }

  /// Runs the body for all threads of block `index`, the number-th of the launch, to their ends.
  void run(BlockIndex index, int number, Fibers::Body body) {
    index_ = index;
    number_ = number;
    memory.clear();
    global.begin_block();
    arrived_ = ended_ = 0;
    any_ = any_arrived_ = false;
    for (auto& w : warps_) w = {};
    for (auto& w : warpgroups_) w = {};
    for (Wait& w : waits_) w = Wait{};
    fibers_.restart(body);
    const int threads = fibers_.count();
    while (ended_ < threads) {  // a round that resumes nobody is a deadlock
      bool moved = false;
      for (int t = 0; t < threads; ++t) {
        Wait& wait = waits_[static_cast<std::size_t>(t)];
        if (fibers_.ended(t) || (wait.gate != nullptr && *wait.gate == wait.ticket)) continue;
        wait.gate = nullptr;
        moved = true;
        resume(t);
        ended_ += fibers_.ended(t) ? 1 : 0;
      }
      if (!moved) deadlock();
    }
  }

  /// The lanes of a warp meet, each with a slot; the last to come applies the operation to all 32 slots.
  template <class Slot, class Apply> void meet(int thread, const char* what, Slot& slot, Apply&& apply) {
    meet(warps_, "warp", thread, what, slot, apply);
  }
  /// The threads of a warpgroup likewise.
  template <class Slot, class Apply> void meet_warpgroup(int thread, const char* what, Slot& slot, Apply&& apply) {
    meet(warpgroups_, "warpgroup", thread, what, slot, apply);
  }

  void sync() { sync("sync", false); }
  bool sync_any(bool x) {
    sync("sync_any", x);
    return any_;  // until all threads have come to the next barrier
  }

 private:
  template <std::size_t Threads> struct Meeting {
    std::size_t arrived = 0;
    unsigned meetings = 0;
    const char* what = "";
    void* slot[Threads] = {};
  };
  struct Wait {
    const unsigned* gate = nullptr;
    unsigned ticket = 0;
    const char* what = "";
  };

  template <std::size_t Threads, class Slot, class Apply>
  void meet(std::vector<Meeting<Threads>>& all, const char* who, int thread, const char* what, Slot& slot,
            Apply& apply) {
    Meeting<Threads>& m = all[static_cast<std::size_t>(thread) / Threads];
    if (m.arrived > 0) expect_same(who, what, m.what);
    m.what = what;
    m.slot[static_cast<std::size_t>(thread) % Threads] = &slot;
    if (++m.arrived < Threads) return wait_for(m.meetings, what);
    Slot* lane[Threads];
    for (std::size_t i = 0; i < Threads; ++i) lane[i] = static_cast<Slot*>(m.slot[i]);
    apply(lane);
    m.arrived = 0;
    ++m.meetings;
  }

  void sync(const char* what, bool x) {
    if (ended_ > 0) throw Fault(std::string(what) + ", but other threads have left the kernel");
    if (arrived_ > 0) expect_same("block", what, barrier_);
    barrier_ = what;
    any_arrived_ = any_arrived_ || x;
    if (++arrived_ < fibers_.count()) return wait_for(barriers_, what);
    any_ = any_arrived_;
    any_arrived_ = false;
    arrived_ = 0;
    ++barriers_;
    ++count.syncs;
    memory.sync();
  }

  static void expect_same(const char* who, const char* what, const char* others) {
    if (what != others && std::strcmp(what, others) != 0)
      throw Fault(std::string("the ") + who + " diverges: " + what + " meets " + others);
  }

  void wait_for(const unsigned& gate, const char* what) {
    waits_[static_cast<std::size_t>(fibers_.current())] = {&gate, gate, what};
    fibers_.pause();
  }

  void resume(int thread) {
    try {
      fibers_.resume(thread);
    } catch (const Fault& fault) {
      throw Fault("block (" + std::to_string(index_.x) + ", " + std::to_string(index_.y) + ", " +
                  std::to_string(index_.z) + ") thread " + std::to_string(thread) + ": " + fault.what());
    }
  }

  [[noreturn]] void deadlock() const {
    for (int t = 0;; ++t)
      if (!fibers_.ended(t))
        throw Fault("deadlock: thread " + std::to_string(t) + " waits in " + waits_[static_cast<std::size_t>(t)].what +
                    ", the others never come");
  }

  Fibers fibers_;
  std::vector<Meeting<warp_size>> warps_;
  std::vector<Meeting<warpgroup_size>> warpgroups_;
  std::vector<Wait> waits_;
  BlockIndex index_{};
  int number_ = 0, arrived_ = 0, ended_ = 0;
  unsigned barriers_ = 0;
  const char* barrier_ = "";
  bool any_ = false, any_arrived_ = false;  // of the last sync_any, of the one that is not yet complete
};

}  // namespace support::gpu
