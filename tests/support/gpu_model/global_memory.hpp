// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "shared_memory.hpp"

namespace support::gpu {

/// What the blocks of one launch write to global memory.
///
/// A write is seen by other blocks once its thread, or one that a barrier ordered after it, has made a fence and then
/// an atomic: only then it is carried out, at the latest when the launch ends. A block may read it after an atomic and
/// a fence of its own, with a barrier before the threads that did neither. Two writers of one address are a fault.
class GlobalMemory {
 public:
  /// Who acts: a thread of a block, so many barriers into its life.
  struct Actor {
    int block, thread;
    std::uint64_t epoch;

    /// Whether what `earlier` did is ordered before this, in one block.
    bool follows(const Actor& earlier) const {
      return earlier.block == block && (earlier.thread == thread || earlier.epoch < epoch);
    }
  };

  void begin_block() { acquired_.clear(), counted_.clear(); }

  void store(const Actor& actor, void* to, std::size_t bytes, const void* from) {
    check_alignment("store_global to", to, bytes);
    for (std::size_t i = 0; i < bytes; i += granule) {
      Cell& cell = cells_[address(to) + i];
      if (cell.written && !actor.follows(cell.writer) && !(cell.published && has_acquired(actor)))
        throw Fault("store_global to an address that thread " + std::to_string(cell.writer.thread) + " of block " +
                    std::to_string(cell.writer.block) + " has written");
      if (cell.read && !(actor.follows(cell.reader) && (!cell.read_by_many || cell.reader.epoch < actor.epoch)))
        throw Fault("store_global races with the load_global of thread " + std::to_string(cell.reader.thread) +
                    " of block " + std::to_string(cell.reader.block));
      cell = {true, false, false, false, actor, {}};
    }
    Write w{actor, static_cast<unsigned char*>(to), bytes, {}, {}};
    std::memcpy(w.data, from, bytes);
    pending_.push_back(w);
  }

  void load(const Actor& actor, const void* from, std::size_t bytes, void* to) {
    check_alignment("load_global from", from, bytes);
    std::memcpy(to, from, bytes);
    for (std::size_t i = 0; i < bytes; i += granule) {
      Cell& c = cells_[address(from) + i];
      c.read_by_many = c.read && c.reader.epoch == actor.epoch && (c.read_by_many || c.reader.thread != actor.thread);
      c.read = true;
      c.reader = actor;
      if (!c.written) continue;
      if (c.writer.block != actor.block && !c.published)
        throw Fault("load_global of what block " + std::to_string(c.writer.block) +
                    " wrote without a fence and an atomic after it");
      if (c.writer.block != actor.block && !has_acquired(actor))
        throw Fault("load_global of what block " + std::to_string(c.writer.block) +
                    " wrote without an atomic, a fence and a barrier before it");
      if (c.writer.block == actor.block && !actor.follows(c.writer))
        throw Fault("load_global races with the write of thread " + std::to_string(c.writer.thread));
    }
    for (const Write& w : pending_)  // this block's own, not yet carried out
      for (std::size_t i = 0; i < w.bytes; ++i)
        if (w.to + i >= from && w.to + i < static_cast<const unsigned char*>(from) + bytes)
          static_cast<unsigned char*>(to)[w.to + i - static_cast<const unsigned char*>(from)] = w.data[i];
  }

  void fence(const Actor& actor) {
    for (Write& w : pending_)
      if (actor.follows(w.writer) && !w.is_fenced_by(actor)) w.fenced_by.push_back(actor.thread);
    for (const Actor& a : counted_)
      if (actor.follows(a)) return acquired_.push_back(actor);
  }

  unsigned atomic_wrap(const Actor& actor, unsigned* counter, unsigned last) {
    check_alignment("atomic_wrap of", counter, sizeof *counter);
    std::vector<Write> kept;
    for (const Write& w : pending_) {
      if (w.is_fenced_by(actor))
        carry_out(w, true);
      else
        kept.push_back(w);
    }
    pending_.swap(kept);
    counted_.push_back(actor);
    const unsigned before = *counter;
    *counter = before >= last ? 0 : before + 1;
    return before;
  }

  void end_launch() {
    for (const Write& w : pending_) carry_out(w, false);
    pending_.clear();
  }

 private:
  static constexpr std::size_t granule = 2;

  struct Cell {
    bool written = false, published = false, read = false, read_by_many = false;
    Actor writer{}, reader{};
  };
  struct Write {
    Actor writer;
    unsigned char* to;
    std::size_t bytes;
    unsigned char data[16];
    std::vector<int> fenced_by;  ///< threads of the writer's block

    bool is_fenced_by(const Actor& a) const {
      return writer.block == a.block && std::find(fenced_by.begin(), fenced_by.end(), a.thread) != fenced_by.end();
    }
  };

  static std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
  static void check_alignment(const char* what, const void* p, std::size_t bytes) {
    if (address(p) % bytes != 0)
      throw Fault(std::string(what) + " an address that is no multiple of " + std::to_string(bytes));
  }
  bool has_acquired(const Actor& actor) const {
    for (const Actor& a : acquired_)
      if (actor.follows(a)) return true;
    return false;
  }
  void carry_out(const Write& w, bool published) {
    std::memcpy(w.to, w.data, w.bytes);
    for (std::size_t i = 0; i < w.bytes; i += granule) cells_[address(w.to) + i].published = published;
  }

  std::unordered_map<std::uintptr_t, Cell> cells_;
  std::vector<Write> pending_;
  std::vector<Actor> acquired_, counted_;
};

}  // namespace support::gpu
