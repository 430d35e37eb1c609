// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "../config.hpp"
#include "../core/check.hpp"
#include "cpu_count.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

inline constexpr Index most_threads = 4096;

/// MHA_NUM_THREADS, else as many as the processors that this process may keep busy.
inline Index default_threads() {
  const char* const asked = std::getenv("MHA_NUM_THREADS");
  if (asked == nullptr || *asked == '\0') return std::min(usable_cpus(), most_threads);
  Index n = 0;
  const char* const end = asked + std::strlen(asked);
  const auto [stopped, error] = std::from_chars(asked, end, n);
  require(error == std::errc{} && stopped == end && n >= 1 && n <= most_threads, "MHA_NUM_THREADS: '", asked,
          "' is not a number of threads between 1 and 4096");
  return n;
}

/// A number that a forked child does not share with its parent, whose threads and locked mutexes it has no use for.
class ForkCount {
 public:
  static unsigned now() { return count_.load(std::memory_order_relaxed); }
  /// Forks before the first call are not counted.
  static void watch() {
#if defined(__unix__) || defined(__APPLE__)
    if (watched_.load()) return;
    // Not a static of this function: a fork amid its initialization would leave the child waiting for the end of it.
    ::pthread_atfork(nullptr, nullptr, [] { count_.fetch_add(1, std::memory_order_relaxed); });
    watched_.store(true);
#endif
  }

 private:
  static inline std::atomic<unsigned> count_{0};
  static inline std::atomic<bool> watched_{false};
};

/// How long a thread looks out for another one before it sleeps, from which it takes longer to wake than a short
/// product takes: it spins, then gives the processor to whoever wants it at every look. Without spinning it does not
/// look at all: where threads are more than processors, it would be in the way of those it waits for.
class Patience {
 public:
  explicit Patience(bool spins) : spins_(spins) {}

  /// After a moment true: look again; false once the time is up.
  bool again() {
    if (!spins_) return false;
    const auto now = std::chrono::steady_clock::now();
    if (looks_++ == 0) begin_ = now;
    if (now - begin_ > most) return false;
    if (now - begin_ < spinning)
      for (int i = 0; i < pauses; ++i) pause();
    else
      std::this_thread::yield();
    return true;
  }

  static constexpr std::chrono::microseconds spinning{50}, most{200};

 private:
  static constexpr int pauses = 8;
  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  bool spins_;
  unsigned looks_ = 0;
  std::chrono::steady_clock::time_point begin_{};
};

/// Threads that wait for work. They start when they are first needed, again in a forked child, and end with the pool.
class Pool {
 public:
  /// default_threads(), asked for when they are first needed.
  constexpr Pool() = default;
  explicit Pool(Index size) : size_(size) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    Crew* const crew = crew_.exchange(nullptr);
    if (crew == nullptr) return;
    if (crew->process == ForkCount::now())
      delete crew;
    else
      abandon(crew);
  }

  /// Threads that take part in a call, the caller's among them.
  Index size() const {
    Index size = size_.load(std::memory_order_relaxed);
    if (size == 0) size_.store(size = default_threads(), std::memory_order_relaxed);
    return size;
  }

  /// f(task, worker) for every task. One call at a time is shared among the threads: a second one, and one from within
  /// a task that is shared, of this or another pool, stays on its own thread as worker 0. Threads that wake when all
  /// tasks are taken are not waited for.
  template <class F> void run(Index tasks, F& f) {
    Crew* const crew = inside_ ? nullptr : &this->crew();
    std::unique_lock<std::mutex> turn;
    if (crew != nullptr) turn = std::unique_lock(crew->turn, std::try_to_lock);
    if (!turn.owns_lock()) {
      for (Index t = 0; t < tasks; ++t) f(t, Index{0});
      return;
    }
    Job job;
    job.tasks = tasks;
    job.context = const_cast<void*>(static_cast<const void*>(&f));
    job.call = [](void* context, Index task, Index worker) { (*static_cast<F*>(context))(task, worker); };
    crew->share(job, size());
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  struct Job {
    Index tasks = 0;
    std::atomic<std::int64_t> next{0};  // every thread counts one beyond the tasks
    void* context = nullptr;
    void (*call)(void*, Index, Index) = nullptr;
    std::mutex error_mutex;
    std::exception_ptr error;
  };

  /// The threads of one process and what they share.
  struct Crew {
    // The gate says everything about the job at hand in one number: how many threads work on it besides the caller,
    // whether it takes more, whether the caller sleeps until they are done, and the number of the job.
    static constexpr std::uint64_t one = 1, active_threads = (one << 16) - 1, open = one << 16,
                                   caller_sleeps = one << 17, next_job = one << 18;
    static_assert(most_threads <= static_cast<Index>(active_threads));

    alignas(64) std::atomic<std::uint64_t> gate{0};
    std::atomic<Index> asleep{0};
    alignas(64) std::mutex turn, mutex;
    std::condition_variable wake, done;
    std::vector<std::thread> threads;
    Job* job = nullptr;  // for the threads that work on it
    bool spins = false;
    std::atomic<bool> stop{false};
    const unsigned process = ForkCount::now();
    Crew* abandoned_before = nullptr;

    ~Crew() {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        stop = true;
      }
      wake.notify_all();
      for (std::thread& t : threads) t.join();
    }

    /// Runs the job on `size` threads, the caller's among them.
    void share(Job& given, Index size) {
      start(size);
      job = &given;
      gate.store((gate.load() / next_job + 1) * next_job | open);
      wake_sleepers(given.tasks - 1);
      inside_ = true;
      work(given, 0);
      inside_ = false;
      // No thread joins from now on. Those that work on it still use the job.
      gate.fetch_and(~open);
      for (Patience patience(spins); active() > 0;) {
        if (patience.again()) continue;
        std::unique_lock<std::mutex> lock(mutex);
        gate.fetch_or(caller_sleeps);
        done.wait(lock, [&] { return active() == 0; });
      }
    }

    std::uint64_t active() const { return gate.load() & active_threads; }

    void start(Index size) {
      if (threads.empty()) spins = size <= usable_cpus();
      while (static_cast<Index>(threads.size()) + 1 < size) {
        const Index worker = static_cast<Index>(threads.size()) + 1;
        MHA_TRY {
          threads.emplace_back([this, worker, seen = gate.load() / next_job] { serve(worker, seen); });
        }
        MHA_CATCH(const std::system_error&) {
          return;  // the system gives no more threads: the ones there are do the work
        }
      }
    }

    /// Wakes as many sleepers as there are tasks for.
    void wake_sleepers(Index tasks) {
      // A thread counts itself before it looks at the gate for the last time: one of both sees the other.
      const Index sleepers = asleep.load();
      if (sleepers == 0) return;
      { const std::lock_guard<std::mutex> lock(mutex); }
      if (tasks >= sleepers) return wake.notify_all();
      for (Index i = 0; i < tasks; ++i) wake.notify_one();
    }

    void serve(Index worker, std::uint64_t seen) {
      inside_ = true;
      Patience patience(spins);
      while (!stop) {
        std::uint64_t now = gate.load();
        if (now / next_job != seen) {
          if ((now & open) != 0) {
            if (!gate.compare_exchange_weak(now, now + 1)) continue;
            work(*job, worker);
            leave();
          }
          // Another one may follow soon, also where this one was over before it was seen.
          seen = now / next_job;
          patience = Patience(spins);
        } else if (!patience.again()) {
          std::unique_lock<std::mutex> lock(mutex);
          asleep.fetch_add(1);
          wake.wait(lock, [&] { return stop || gate.load() / next_job != seen; });
          asleep.fetch_sub(1);
        }
      }
    }

    void leave() {
      const std::uint64_t left = gate.fetch_sub(1) - 1;
      if ((left & active_threads) > 0 || (left & caller_sleeps) == 0) return;
      { const std::lock_guard<std::mutex> lock(mutex); }
      done.notify_one();
    }

    static void work(Job& job, Index worker) {
      for (std::int64_t t; (t = job.next.fetch_add(1, std::memory_order_relaxed)) < job.tasks;) {
        MHA_TRY { job.call(job.context, static_cast<Index>(t), worker); }
        MHA_CATCH(...) {
          const std::lock_guard<std::mutex> lock(job.error_mutex);
          if (!job.error) job.error = std::current_exception();
          job.next.store(job.tasks, std::memory_order_relaxed);
        }
      }
    }
  };

  /// This process's: a forked child leaves its parent's and takes new ones.
  Crew& crew() {
    Crew* present = crew_.load(std::memory_order_acquire);
    if (present != nullptr && present->process == ForkCount::now()) return *present;
    ForkCount::watch();
    auto* const fresh = new Crew;
    if (!crew_.compare_exchange_strong(present, fresh)) {
      delete fresh;  // another thread was faster
      return *present;
    }
    if (present != nullptr) abandon(present);
    return *fresh;
  }

  /// A crew of the parent cannot be destroyed in its child, where its threads do not exist; leak checkers see it here.
  static void abandon(Crew* crew) { crew->abandoned_before = abandoned_.exchange(crew); }

  mutable std::atomic<Index> size_{0};
  std::atomic<Crew*> crew_{nullptr};
  static inline std::atomic<Crew*> abandoned_{nullptr};
  static inline thread_local bool inside_ = false;
};

/// Of all calls of the program that name no other. Not a static of a function, for the sake of a forked child.
inline constinit Pool shared_pool;

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
