// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "fibers.hpp"
#include "global_memory.hpp"
#include "shared_memory.hpp"

namespace support::gpu {

using mha::cuda::BlockIndex;

/// What a launch did. bank_conflicts: passes of ldmatrix beyond the one per matrix.
struct Counters {
  long mma = 0, ldmatrix = 0, bank_conflicts = 0, copies = 0, syncs = 0, votes = 0;

  Counters& operator+=(const Counters& c) {
    mma += c.mma, ldmatrix += c.ldmatrix, bank_conflicts += c.bank_conflicts;
    copies += c.copies, syncs += c.syncs, votes += c.votes;
    return *this;
  }
};

/// One thread block: its threads as fibers, its barriers, the meetings of its warps, its shared memory.
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
        waits_(static_cast<std::size_t>(threads)) {
    if (threads <= 0 || threads % warp_size != 0)
      throw Fault("a block of " + std::to_string(threads) + " threads is no whole number of warps");
  }

  BlockIndex index() const { return index_; }
  GlobalMemory::Actor actor(int thread) const { return {number_, thread, memory.epoch()}; }

  /// Runs body(thread) for all threads of block `index`, the number-th of the launch, to their ends.
  template <class Body> void run(BlockIndex index, int number, Body& body) {
    index_ = index;
    number_ = number;
    memory.clear();
    global.begin_block();
    arrived_ = ended_ = 0;
    for (Warp& w : warps_) w = Warp{};
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
    Warp& w = warps_[static_cast<std::size_t>(thread / warp_size)];
    if (w.arrived > 0 && w.what != what && std::strcmp(w.what, what) != 0)
      throw Fault(std::string("the warp diverges: ") + what + " meets " + w.what);
    w.what = what;
    w.slot[thread % warp_size] = &slot;
    if (++w.arrived < warp_size) return wait_for(w.meetings, what);
    Slot* lane[warp_size];
    for (int i = 0; i < warp_size; ++i) lane[i] = static_cast<Slot*>(w.slot[i]);
    apply(lane);
    w.arrived = 0;
    ++w.meetings;
  }

  void sync() {
    if (ended_ > 0) throw Fault("sync, but other threads have left the kernel");
    if (++arrived_ < fibers_.count()) return wait_for(barriers_, "sync");
    arrived_ = 0;
    ++barriers_;
    ++count.syncs;
    memory.sync();
  }

 private:
  struct Warp {
    int arrived = 0;
    unsigned meetings = 0;
    const char* what = "";
    void* slot[warp_size] = {};
  };
  struct Wait {
    const unsigned* gate = nullptr;
    unsigned ticket = 0;
    const char* what = "";
  };

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
  std::vector<Warp> warps_;
  std::vector<Wait> waits_;
  BlockIndex index_{};
  int number_ = 0, arrived_ = 0, ended_ = 0;
  unsigned barriers_ = 0;
};

}  // namespace support::gpu
