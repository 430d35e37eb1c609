// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#if defined(__linux__) && !defined(__ANDROID__)
#define MHA_MOVES_SLEEPERS 1
#include <pthread.h>
#include <sched.h>
#else
#define MHA_MOVES_SLEEPERS 0
#endif

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Whether no seccomp filter forbids this process calls to the system, by /proc/self/status; where one does, a call may
/// end the process.
inline bool unfiltered(std::string_view status) {
  constexpr std::string_view key = "\nSeccomp:\t0\n";
  return status.find(key) != status.npos;
}

/// Where a thread of a crew sleeps. Linux may wake a thread on the processor of the one that wakes it, behind which it
/// then waits for milliseconds although another one is idle, as in a virtual machine of two processors after a pause of
/// 20 ms. So the one that wakes bars its own processor to the sleepers, which then wake on others, and each lifts the
/// bar. On other systems this does nothing.
class SleepingPlace {
 public:
  // Under the mutex that the sleepers wait with.

  /// The sleeper is about to sleep; those that sleep are linked from `first` on.
  void enter(SleepingPlace*& first) {
    next_ = first;
    before_ = nullptr;
    if (first != nullptr) first->before_ = this;
    first = this;
#if MHA_MOVES_SLEEPERS
    thread_ = ::pthread_self();
#endif
  }
  /// The sleeper has woken.
  void leave(SleepingPlace*& first) {
    (before_ != nullptr ? before_->next_ : first) = next_;
    if (next_ != nullptr) next_->before_ = before_;
  }
  /// The processor of the calling thread is barred to all that sleep, who are about to be woken.
  static void bar_this_processor([[maybe_unused]] SleepingPlace* first) {
#if MHA_MOVES_SLEEPERS
    const int here = ::sched_getcpu();
    for (; first != nullptr; first = first->next_) first->bar(here);
#endif
  }
  /// So many at most: each takes a microsecond or two.
  static constexpr Index most = 16;

  /// By the sleeper, when it is awake. What somebody else has set since, stays.
  void lift_bar() {
#if MHA_MOVES_SLEEPERS
    cpu_set_t now;
    if (barred_ && processors(now) && CPU_EQUAL(&now, &others_))
      ::pthread_setaffinity_np(thread_, sizeof usual_, &usual_);
    barred_ = false;
#endif
  }

 private:
  SleepingPlace *next_ = nullptr, *before_ = nullptr;
#if MHA_MOVES_SLEEPERS
  bool processors(cpu_set_t& to) const { return ::pthread_getaffinity_np(thread_, sizeof to, &to) == 0; }

  void bar(int cpu) {
    cpu_set_t now;
    if (cpu < 0 || !processors(now)) return;
    if (!barred_ || !CPU_EQUAL(&now, &others_)) usual_ = now;
    cpu_set_t others = usual_;
    CPU_CLR(static_cast<unsigned>(cpu), &others);
    if (::pthread_setaffinity_np(thread_, sizeof others, &others) != 0) return;  // it may run on no other one
    others_ = others;
    barred_ = true;
  }

  pthread_t thread_{};
  bool barred_ = false;
  cpu_set_t usual_, others_;  // on which the thread may run, without the bar and with it
#endif
};

}  // namespace mha::inline MHA_NAMESPACE::detail
