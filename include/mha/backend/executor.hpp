// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <charconv>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "../config.hpp"
#include "../core/check.hpp"
#include "../core/items.hpp"

namespace mha::inline v0 {

/// Who runs the independent tasks of a call: `Index workers() const` and `void run(Index tasks, f) const`, which calls
/// f(task, worker) once for every task in [0, tasks), each worker in [0, workers()) in one thread at a time, and
/// returns when all are done. An exception of f reaches the caller of run.
template <class E>
concept Executor = std::default_initializable<E> && requires(const E executor, void (*f)(Index, Index)) {
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

/// A few threads that wait for work; they start when they are first asked for and end with the program.
class Pool {
 public:
  static Pool& instance() {
    static Pool pool;
    return pool;
  }

  /// MHA_NUM_THREADS, else the machine's.
  static Index size() {
    static const Index n = size_from_environment();
    return n;
  }

  template <class F> void run(Index tasks, F& f) {
    // One parallel call at a time: a nested or a second one stays on its own thread as worker 0.
    std::unique_lock<std::mutex> turn(turn_, std::defer_lock);
    if (inside_ || !turn.try_lock()) {
      for (Index t = 0; t < tasks; ++t) f(t, Index{0});
      return;
    }
    Job job;
    job.tasks = tasks;
    job.context = const_cast<void*>(static_cast<const void*>(&f));
    job.call = [](void* context, Index task, Index worker) { (*static_cast<F*>(context))(task, worker); };
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      start();
      job_ = &job;
      busy_ = static_cast<Index>(threads_.size());
      ++generation_;
    }
    wake_.notify_all();
    inside_ = true;
    work(job, 0);
    inside_ = false;
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return busy_ == 0; });
    job_ = nullptr;
    lock.unlock();
    if (job.error) std::rethrow_exception(job.error);
  }

  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

 private:
  struct Job {
    Index tasks = 0;
    std::atomic<Index> next{0};
    void* context = nullptr;
    void (*call)(void*, Index, Index) = nullptr;
    std::mutex error_mutex;
    std::exception_ptr error;
  };

  Pool() = default;

  static Index size_from_environment() {
    const char* const asked = std::getenv("MHA_NUM_THREADS");
    if (asked == nullptr || *asked == '\0') {
      const unsigned n = std::thread::hardware_concurrency();
      return n == 0 ? 1 : static_cast<Index>(n);
    }
    Index n = 0;
    const char* const end = asked + std::strlen(asked);
    const auto [stopped, error] = std::from_chars(asked, end, n);
    require(error == std::errc{} && stopped == end && n >= 1 && n <= 4096, "MHA_NUM_THREADS: '", asked,
            "' is no number of threads between 1 and 4096");
    return n;
  }

  void start() {
    while (static_cast<Index>(threads_.size()) + 1 < size()) {
      const Index worker = static_cast<Index>(threads_.size()) + 1;
      try {
        threads_.emplace_back([this, worker, seen = generation_]() mutable { serve(worker, seen); });
      } catch (const std::system_error&) {
        return;  // the system gives no more threads: the ones there are do the work
      }
    }
  }

  void serve(Index worker, unsigned long seen) {
    inside_ = true;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      Job& job = *job_;
      lock.unlock();
      work(job, worker);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  static void work(Job& job, Index worker) {
    for (Index t; (t = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tasks;) {
      try {
        job.call(job.context, t, worker);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(job.error_mutex);
        if (!job.error) job.error = std::current_exception();
        job.next.store(job.tasks, std::memory_order_relaxed);
      }
    }
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Job* job_ = nullptr;
  Index busy_ = 0;
  unsigned long generation_ = 0;
  bool stop_ = false;
  static inline thread_local bool inside_ = false;
};

/// The tasks on the calling thread if `alone`, else on these threads.
template <Executor Threads, class F> void run_tasks(bool alone, const Threads& threads, Index tasks, F&& f) {
  if (alone)
    Serial{}.run(tasks, f);
  else
    threads.run(tasks, f);
}

/// Every item once, rows shared among the workers where there is enough to do.
template <Items I, Executor Threads> void run_items(const I& items, const Threads& threads) {
  constexpr double enough = 1 << 18;  // below, waking threads takes longer than the work
  constexpr Index tasks_per_worker = 4;
  if (double(items.rows) * items.columns * items.cost < enough) return run_serially(items);
  const auto tasks = static_cast<Index>(std::min<std::ptrdiff_t>(items.rows, tasks_per_worker * threads.workers()));
  threads.run(tasks,
              [&](Index task, Index) { run_rows(items, items.rows * task / tasks, items.rows * (task + 1) / tasks); });
}

}  // namespace detail

/// A pool of standard threads that all calls of the program share: MHA_NUM_THREADS of them, else as many as the machine
/// has. It starts at the first call that is large enough to gain from it.
///
/// Errors    ShapeError if MHA_NUM_THREADS is no number of threads
struct ThreadPool {
  static constexpr const char* name = "ThreadPool";
  Index workers() const { return detail::Pool::size(); }
  template <class F> void run(Index tasks, F&& f) const {
    if (tasks <= 1 || workers() == 1)
      Serial{}.run(tasks, f);
    else
      detail::Pool::instance().run(tasks, f);
  }
};

}  // namespace mha::inline v0
