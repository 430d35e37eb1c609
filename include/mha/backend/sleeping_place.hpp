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

  /// By the sleeper, when it has left. What somebody else has set since, stays.
  void lift_bar() {
#if MHA_MOVES_SLEEPERS
    cpu_set_t now;
    if (barred_ && processors(now) && CPU_EQUAL(&now, &others_))
      ::pthread_setaffinity_np(thread_, sizeof usual_, &usual_);
    barred_ = false;
#endif
  }

 private:
  SleepingPlace* next_ = nullptr;
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
