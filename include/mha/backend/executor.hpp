// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>

#include "../config.hpp"
#include "../core/check.hpp"
#include "../core/items.hpp"
#include "pool.hpp"

#if !MHA_KERNELS_ELSEWHERE
#include "crew.hpp"
#endif

namespace mha::inline MHA_NAMESPACE {

/// Who runs the independent tasks of a call: `Index workers() const` and `void run(Index tasks, f) const`, which calls
/// f(task, worker) once for every task in [0, tasks), each worker in [0, workers()) in one thread at a time, and
/// returns when all are done. An exception of f reaches the caller of run.
template <class E>
concept Executor = requires(const E executor, void (*f)(Index, Index)) {
  { E::name } -> std::convertible_to<const char*>;
  { executor.workers() } -> std::same_as<Index>;
  executor.run(Index{}, f);
};

/// Everything in the calling thread.
struct Serial {
  static constexpr const char* name = "Serial";
  Index workers() const { return 1; }
  template <class F> void run(Index tasks, F&& f) const {
    for (Index t = 0; t < tasks; ++t) f(t, Index{0});
  }
};

namespace detail {

/// The sentence for an executor; what takes one below is not constrained, so that no other error follows it.
template <class E> constexpr bool check_executor() {
  static_assert(Executor<E>,
                "mha: an executor has `static constexpr const char* name`, `int workers() const` and a template "
                "`void run(int tasks, f) const` (see mha/backend/executor.hpp)");
  return true;
}

/// "ThreadPool with 2 workers".
template <class Threads> std::string workers_in_words(const Threads& threads) {
  const Index n = threads.workers();
  return std::string(Threads::name) + " with " + std::to_string(n) + (n == 1 ? " worker" : " workers");
}

/// The tasks on the calling thread if `alone`, else on these threads.
template <class Threads, class F> void run_tasks(bool alone, const Threads& threads, Index tasks, F&& f) {
  if (alone)
    Serial{}.run(tasks, f);
  else
    threads.run(tasks, f);
}

/// Every item once, rows shared among the workers where there is enough to do.
template <Items I, class Threads> void run_items(const I& items, const Threads& threads) {
  constexpr double enough = 1 << 18;  // below, waking threads takes longer than the work
  constexpr Index tasks_per_worker = 4;
  if (double(items.rows) * items.columns * items.cost < enough) return run_serially(items);
  const auto tasks = static_cast<Index>(std::min<std::ptrdiff_t>(items.rows, tasks_per_worker * threads.workers()));
  threads.run(tasks,
              [&](Index task, Index) { run_rows(items, items.rows * task / tasks, items.rows * (task + 1) / tasks); });
}

}  // namespace detail

/// Standard threads that wait for work, and a value: `mha::Cpu` calls run on `ThreadPool{}`, the pool that all calls of
/// the program share, and those of a shared library among themselves, or on a pool of your own, `ThreadPool(4)`, whose
/// copies share its threads; one that is moved from stays a copy.
///
/// Threads   ThreadPool{}: MHA_NUM_THREADS, else one for each processor that the affinity mask allows and the CPU quota
///           of the container pays for. ThreadPool(n): n, the caller's among them. They start at the first call that is
///           large enough to gain from them and end with the program, or with the last copy of a pool of your own.
/// Waiting   A thread without work spins for 50 µs, gives way for 150 µs more and then sleeps; at once in a pool of
///           more threads than there are processors, those of other pools not counted. A call does not wait for those
///           that wake when its tasks are taken.
/// At once   Two pools run at the same time. A second call on a pool that is busy stays on its own thread, and so does
///           a call from within a task that is shared among threads. Tasks that are not, because there is one, or the
///           pool has one thread or is busy, run one after another in the caller's, and what they call may use a free
///           pool.
/// fork()    A child starts threads of its own when it first needs them. In the child, a task that was running when its
///           thread forked must not return.
/// Errors    ShapeError if n or MHA_NUM_THREADS is not a number from 1 to 4096
class ThreadPool {
 public:
  static constexpr const char* name = "ThreadPool";
  ThreadPool() = default;
  ThreadPool(const ThreadPool&) = default;  // a move copies: what it leaves must not become the shared pool
  ThreadPool& operator=(const ThreadPool&) = default;
  explicit ThreadPool(Index threads) {
    detail::require(threads >= 1 && threads <= detail::most_threads, "ThreadPool: the number of threads is ", threads,
                    ", it must be from 1 to ", detail::most_threads);
    own_ = std::make_shared<detail::Pool>(threads);
  }

  Index workers() const { return pool().size(); }
  template <class F> void run(Index tasks, F&& f) const {
    if (tasks <= 1 || workers() == 1)
      Serial{}.run(tasks, f);
    else
      pool().run(tasks, f);
  }

 private:
  detail::Pool& pool() const { return own_ ? *own_ : detail::shared_pool; }

  std::shared_ptr<detail::Pool> own_;
};

}  // namespace mha::inline MHA_NAMESPACE
