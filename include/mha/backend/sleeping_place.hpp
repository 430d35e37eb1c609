// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__linux__) && !defined(__ANDROID__)
#define MHA_MOVES_SLEEPERS 1
#include <pthread.h>
#include <sched.h>
#else
#define MHA_MOVES_SLEEPERS 0
#endif

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Where a thread of a crew sleeps. Linux tends to wake a thread on the processor of the one that wakes it, behind
/// which it then waits for milliseconds, although others are idle: where processors share no cache, as in small virtual
/// machines, or were all busy until lately. So the one that wakes bars its own processor to the sleepers, which then
/// wake where they fell asleep, and each sleeper lifts the bar. On other systems this does nothing.
class SleepingPlace {
 public:
  // Under the mutex that the sleepers wait with.

  /// The sleeper is about to sleep; those that sleep are linked from `first` on.
  void enter(SleepingPlace*& first) {
    next_ = first;
    first = this;
#if MHA_MOVES_SLEEPERS
    thread_ = ::pthread_self();
    if (::pthread_getaffinity_np(thread_, sizeof usual_, &usual_) != 0) CPU_ZERO(&usual_);
#endif
  }
  /// The sleeper has woken.
  void leave(SleepingPlace*& first) {
    SleepingPlace** link = &first;
    while (*link != this) link = &(*link)->next_;
    *link = next_;
  }
  /// The processor of the calling thread is barred to those that sleep, of many to the last ones to fall asleep: each
  /// takes a microsecond or two.
  static void bar_this_processor([[maybe_unused]] SleepingPlace* first) {
#if MHA_MOVES_SLEEPERS
    constexpr int most = 16;
    const int here = ::sched_getcpu();
    for (int i = 0; i < most && first != nullptr; ++i, first = first->next_) first->bar(here);
#endif
  }

  /// By the sleeper, when it has left.
  void lift_bar() {
#if MHA_MOVES_SLEEPERS
    if (barred_) ::pthread_setaffinity_np(thread_, sizeof usual_, &usual_);
    barred_ = false;
#endif
  }

 private:
  SleepingPlace* next_ = nullptr;
#if MHA_MOVES_SLEEPERS
  void bar(int cpu) {
    cpu_set_t others = usual_;
    if (cpu >= 0) CPU_CLR(static_cast<unsigned>(cpu), &others);
    // Refused where there is no other one.
    if (::pthread_setaffinity_np(thread_, sizeof others, &others) == 0) barred_ = true;
  }

  pthread_t thread_{};
  cpu_set_t usual_;  // the processors that the thread may run on
  bool barred_ = false;
#endif
};

}  // namespace mha::inline MHA_NAMESPACE::detail
