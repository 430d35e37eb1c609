// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <vector>

#include "stack_switch.hpp"

namespace support::gpu {

/// Functions that take turns, each on a stack of its own; one of them runs at a time.
///
/// What lives on a fiber when a run is given up is not destroyed: only trivial objects may.
class Fibers {
 public:
  explicit Fibers(int count) : fibers_(static_cast<std::size_t>(count)) {
    for (Fiber& f : fibers_) f.stack.reset(new unsigned char[stack_bytes]);
  }
  ~Fibers() {
    for (Fiber& f : fibers_) unpoison(f.stack.get(), stack_bytes);
  }
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  int count() const { return static_cast<int>(fibers_.size()); }
  int current() const { return current_; }
  bool ended(int fiber) const { return fibers_[static_cast<std::size_t>(fiber)].ended; }

  /// What fibers run, call(of, the fiber's number), behind one type: kernels are many.
  struct Body {
    void (*call)(void* of, int fiber) = nullptr;
    void* of = nullptr;
  };
  /// Every fiber is about to run the body, from its beginning. What it is of outlives the run.
  void restart(Body body) {
    body_ = body;
    thrown_ = nullptr;
    for (Fiber& f : fibers_) {
      unpoison(f.stack.get(), stack_bytes);
      std::memcpy(f.stack.get(), canary, sizeof canary);
      f.ended = false;
      f.place.begin_at(&Fibers::begin, this, f.stack.get(), stack_bytes);
    }
  }

  /// From outside: runs a fiber until it pauses or ends. What it throws is thrown here.
  void resume(int fiber) {
    current_ = fiber;
    Fiber& f = fibers_[static_cast<std::size_t>(fiber)];
    home_.switch_to(f.place);
    if (thrown_) std::rethrow_exception(thrown_);
    if (f.ended && std::memcmp(f.stack.get(), canary, sizeof canary) != 0)
      throw std::runtime_error("gpu model: a thread has left its stack of 256 KiB");
  }

  /// From the running fiber: back to whoever resumed it.
  void pause() { fibers_[static_cast<std::size_t>(current_)].place.switch_to(home_); }

 private:
  static constexpr std::size_t stack_bytes = 256u << 10;
  static constexpr unsigned char canary[16] = {0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

  struct Fiber {
    StackPlace place;
    std::unique_ptr<unsigned char[]> stack;
    bool ended = false;
  };

  static void begin(void* fibers) {
    Fibers& self = *static_cast<Fibers*>(fibers);
    Fiber& me = self.fibers_[static_cast<std::size_t>(self.current_)];
    try {
      self.body_.call(self.body_.of, self.current_);
    } catch (...) {
      self.thrown_ = std::current_exception();
    }
    me.ended = true;
    me.place.leave_for_good(self.home_);
  }

  std::vector<Fiber> fibers_;
  StackPlace home_;
  int current_ = 0;
  Body body_;
  std::exception_ptr thrown_;
};

}  // namespace support::gpu
