// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

inline constexpr Index most_threads = 4096;

/// A task of a call for the worker with this number.
using PoolCall = void (*)(void* context, Index task, Index worker);

struct Crew;  // the threads of one process, in crew.hpp

/// What a pool does with its threads. A template, so that mha::compiled can have it: units that take it from there read
/// none of the headers of threads.
template <class Unit> struct PoolThreads {
  /// MHA_NUM_THREADS, else as many as the processors that this process may keep busy.
  static Index default_size();
  /// call(context, task, worker) for every task on `size` threads, the caller's among them, of the crew that is kept in
  /// `place`. False, with nothing done, if that is busy or the caller is in a task that is shared already.
  static bool share(std::atomic<Crew*>& place, Index size, Index tasks, void* context, PoolCall call);
  static void end(Crew* crew);
};

/// Threads that wait for work. They start when they are first needed, again in a forked child, and end with the pool.
class Pool {
 public:
  /// default_size(), asked for when they are first needed.
  constexpr Pool() = default;
  explicit Pool(Index size) : size_(size) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    if (Crew* const crew = crew_.exchange(nullptr)) PoolThreads<void>::end(crew);
  }

  /// Threads that take part in a call, the caller's among them.
  Index size() const {
    Index size = size_.load(std::memory_order_relaxed);
    if (size == 0) size_.store(size = PoolThreads<void>::default_size(), std::memory_order_relaxed);
    return size;
  }

  /// f(task, worker) for every task. One call at a time is shared among the threads: a second one, and one from within
  /// a task that is shared, of this or another pool, stays on its own thread as worker 0. Threads that wake when all
  /// tasks are taken are not waited for.
  template <class F> void run(Index tasks, F& f) {
    const PoolCall call = [](void* context, Index task, Index worker) { (*static_cast<F*>(context))(task, worker); };
    void* const context = const_cast<void*>(static_cast<const void*>(&f));
    if (PoolThreads<void>::share(crew_, size(), tasks, context, call)) return;
    for (Index t = 0; t < tasks; ++t) f(t, Index{0});
  }

 private:
  mutable std::atomic<Index> size_{0};
  std::atomic<Crew*> crew_{nullptr};
};

/// Of all calls of the program, or of a shared library, that name no other: its threads run the library's code. Not a
/// static of a function, for the sake of a forked child.
MHA_OF_LIBRARY inline constinit Pool shared_pool;

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
