// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
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
#include "pool.hpp"
#include "sleeping_place.hpp"

/// The threads behind a Pool, and how they wait.
namespace mha::inline MHA_NAMESPACE::detail {

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
  // A handler goes with the library that gave it, while others may share the count.
  MHA_OF_LIBRARY static inline std::atomic<bool> watched_{false};
};

/// How long a thread looks out for another one before it sleeps, from which it takes longer to wake than a short
/// product takes: it spins, then offers the processor to other threads at every look. Without spinning it does not
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

/// What the threads of a crew do at a time.
struct PoolJob {
  Index tasks = 0;
  std::atomic<std::int64_t> next{0};  // every thread counts one beyond the tasks
  void* context = nullptr;
  PoolCall call = nullptr;
  std::fenv_t modes;  // how the caller rounds and whether it flushes subnormal numbers: so does every thread
  std::mutex error_mutex;
  std::exception_ptr error;
};

/// The threads of one process and what they share.
struct Crew {
  // The gate says everything about the job at hand in one number: how many threads work on it besides the caller,
  // whether it takes more, whether the caller sleeps until they are done, and the number of the job.
  static constexpr std::uint64_t one = 1, active_threads = (one << 16) - 1, open = one << 16, caller_sleeps = one << 17,
                                 next_job = one << 18;
  static_assert(most_threads <= static_cast<Index>(active_threads));

  alignas(64) std::atomic<std::uint64_t> gate{0};
  std::atomic<Index> asleep{0};
  alignas(64) std::mutex turn, mutex;
  std::condition_variable wake, done;
  SleepingPlace* sleeping = nullptr;
  std::vector<std::thread> threads;
  PoolJob* job = nullptr;  // for the threads that work on it
  bool spins = false, moves_sleepers = false;
  std::atomic<bool> stop{false};
  static inline thread_local bool inside = false;  // a task that is shared
  const unsigned process = ForkCount::now();
  Crew* abandoned_before = nullptr;
  static inline std::atomic<Crew*> abandoned{nullptr};

  ~Crew() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& t : threads) t.join();
  }

  /// Runs the job on `size` threads, the caller's among them.
  void share(PoolJob& given, Index size) {
    start(size);
    job = &given;
    gate.store((gate.load() / next_job + 1) * next_job | open);
    wake_sleepers(given.tasks - 1);
    inside = true;
    work(given, 0);
    inside = false;
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
    if (threads.empty()) {
      spins = size <= usable_cpus();
      moves_sleepers = MHA_MOVES_SLEEPERS && size > 1 && unfiltered(text_of_file("/proc/self/status"));
    }
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
    const bool all = tasks >= sleepers;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (moves_sleepers && all && sleepers <= SleepingPlace::most) SleepingPlace::bar_this_processor(sleeping);
    }
    if (all) return wake.notify_all();
    for (Index i = 0; i < tasks; ++i) wake.notify_one();
  }

  void serve(Index worker, std::uint64_t seen) {
    inside = true;
    SleepingPlace place;
    Patience patience(spins);
    while (!stop) {
      std::uint64_t now = gate.load();
      if (now / next_job != seen) {
        if ((now & open) != 0) {
          if (!gate.compare_exchange_weak(now, now + 1)) continue;
          std::fesetenv(&job->modes);
          work(*job, worker);
          leave();
        }
        // Another one may follow soon, also where this one was over before it was seen.
        seen = now / next_job;
        patience = Patience(spins);
      } else if (!patience.again()) {
        std::unique_lock<std::mutex> lock(mutex);
        place.enter(sleeping);
        asleep.fetch_add(1);
        while (!stop && gate.load() / next_job == seen) {
          wake.wait(lock);
          if (gate.load() / next_job == seen) place.lift_bar();  // woken for a job that it has seen
        }
        asleep.fetch_sub(1);
        place.leave(sleeping);
        lock.unlock();
        place.lift_bar();
      }
    }
  }

  void leave() {
    const std::uint64_t left = gate.fetch_sub(1) - 1;
    if ((left & active_threads) > 0 || (left & caller_sleeps) == 0) return;
    { const std::lock_guard<std::mutex> lock(mutex); }
    done.notify_one();
  }

  static void work(PoolJob& job, Index worker) {
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

/// A crew cannot be destroyed while it is in a call, nor the parent's in its child, where its threads do not exist;
/// leak checkers see it here.
inline void abandon(Crew* crew) { crew->abandoned_before = Crew::abandoned.exchange(crew); }

/// This process's: a forked child leaves its parent's and takes new ones.
inline Crew& crew_of(std::atomic<Crew*>& place) {
  Crew* present = place.load(std::memory_order_acquire);
  if (present != nullptr && present->process == ForkCount::now()) return *present;
  ForkCount::watch();
  auto* const fresh = new Crew;
  if (!place.compare_exchange_strong(present, fresh)) {
    delete fresh;  // another thread was faster
    return *present;
  }
  if (present != nullptr) abandon(present);
  return *fresh;
}

template <class Unit> Index PoolThreads<Unit>::default_size() {
  const char* const asked = std::getenv("MHA_NUM_THREADS");
  if (asked == nullptr || *asked == '\0') return std::min(usable_cpus(), most_threads);
  Index n = 0;
  const char* const end = asked + std::strlen(asked);
  const auto [stopped, error] = std::from_chars(asked, end, n);
  require(error == std::errc{} && stopped == end && n >= 1 && n <= most_threads, "MHA_NUM_THREADS: '", asked,
          "' is not a number of threads between 1 and ", most_threads);
  return n;
}

template <class Unit>
bool PoolThreads<Unit>::share(std::atomic<Crew*>& place, Index size, Index tasks, void* context, PoolCall call) {
  if (Crew::inside) return false;
  Crew& crew = crew_of(place);
  const std::unique_lock<std::mutex> turn(crew.turn, std::try_to_lock);
  if (!turn.owns_lock()) return false;
  PoolJob job;
  job.tasks = tasks;
  job.context = context;
  job.call = call;
  std::fegetenv(&job.modes);
  crew.share(job, size);
  if (job.error) std::rethrow_exception(job.error);
  return true;
}

template <class Unit> void PoolThreads<Unit>::end(Crew* crew) {
  // At the end of the program a thread that nobody waits for may be in a call.
  if (crew->process != ForkCount::now() || !crew->turn.try_lock()) return abandon(crew);
  crew->turn.unlock();
  delete crew;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
