// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include <mha/backend/sleeping_place.hpp>

namespace {

using mha::detail::SleepingPlace;

TEST(SleepingPlace, IsLeftInAnyOrder) {
  SleepingPlace* first = nullptr;
  SleepingPlace a, b, c;
  a.enter(first);
  b.enter(first);
  c.enter(first);
  EXPECT_EQ(first, &c);
  b.leave(first);
  EXPECT_EQ(first, &c);
  c.leave(first);
  EXPECT_EQ(first, &a);
  b.enter(first);
  a.leave(first);
  EXPECT_EQ(first, &b);
  b.leave(first);
  EXPECT_EQ(first, nullptr);
}

TEST(SleepingPlace, KnowsOfAFilterOfCallsToTheSystem) {
  using mha::detail::unfiltered;
  EXPECT_TRUE(unfiltered("Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
  EXPECT_FALSE(unfiltered("Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
  EXPECT_FALSE(unfiltered("Name:\tx\nSeccomp:\t1\n"));
  EXPECT_FALSE(unfiltered("Name:\tSeccomp:\t0\nSeccomp:\t2\n"));
  EXPECT_FALSE(unfiltered("")) << "no /proc";
}

#if MHA_MOVES_SLEEPERS

cpu_set_t processors_of(pthread_t thread) {
  cpu_set_t set;
  EXPECT_EQ(::pthread_getaffinity_np(thread, sizeof set, &set), 0);
  return set;
}

/// A thread that sleeps, wakes and ends at a word from outside.
class Sleeper {
 public:
  Sleeper() {
    thread_ = std::thread([this] {
      std::unique_lock<std::mutex> lock(mutex_);
      place_.enter(first_);
      sleeps_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !sleeps_; });
      place_.leave(first_);
      lock.unlock();
      place_.lift_bar();
      const cpu_set_t now = processors_of(::pthread_self());
      lock.lock();
      awake_ = now;
      changed_.notify_all();
    });
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return sleeps_; });
  }
  ~Sleeper() { thread_.join(); }

  cpu_set_t asleep() { return processors_of(thread_.native_handle()); }
  void give(const cpu_set_t& to) { EXPECT_EQ(::pthread_setaffinity_np(thread_.native_handle(), sizeof to, &to), 0); }
  void bar() {
    const std::lock_guard<std::mutex> lock(mutex_);
    SleepingPlace::bar_this_processor(first_);
  }
  cpu_set_t wake() {
    std::unique_lock<std::mutex> lock(mutex_);
    sleeps_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return awake_.has_value(); });
    return *awake_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  SleepingPlace place_;
  SleepingPlace* first_ = nullptr;
  bool sleeps_ = false;
  std::optional<cpu_set_t> awake_;
  std::thread thread_;
};

TEST(SleepingPlace, BarsTheProcessorOfTheOneThatWakesUntilTheSleeperHasWoken) {
  const cpu_set_t usual = processors_of(::pthread_self());
  const int count = CPU_COUNT(&usual);
  Sleeper sleeper;
  const cpu_set_t before = sleeper.asleep();
  EXPECT_TRUE(CPU_EQUAL(&before, &usual));
  for (int again = 0; again < 2; ++again) {
    sleeper.bar();
    const cpu_set_t barred = sleeper.asleep();
    EXPECT_EQ(CPU_COUNT(&barred), count > 1 ? count - 1 : 1);
    cpu_set_t both;
    CPU_AND(&both, &barred, &usual);
    EXPECT_TRUE(CPU_EQUAL(&both, &barred));
  }
  const cpu_set_t after = sleeper.wake();
  EXPECT_TRUE(CPU_EQUAL(&after, &usual));
}

TEST(SleepingPlace, KeepsTheProcessorsThatSomebodyElseGivesTheSleeper) {
  const cpu_set_t usual = processors_of(::pthread_self());
  if (CPU_COUNT(&usual) < 2) GTEST_SKIP() << "there is one processor";
  for (const bool before : {true, false}) {
    Sleeper sleeper;
    cpu_set_t one;
    CPU_ZERO(&one);
    const auto give_one = [&](cpu_set_t from) {
      unsigned cpu = 0;
      while (!CPU_ISSET(cpu, &from)) ++cpu;
      CPU_SET(cpu, &one);
      sleeper.give(one);
    };
    if (before) give_one(usual);
    sleeper.bar();
    if (!before) {
      const cpu_set_t barred = sleeper.asleep();
      cpu_set_t other;
      CPU_XOR(&other, &barred, &usual);
      give_one(other);
    }
    const cpu_set_t after = sleeper.wake();
    EXPECT_TRUE(CPU_EQUAL(&after, &one)) << before;
  }
}

/// A thread on one processor stays there, and is woken from it.
TEST(SleepingPlace, LeavesAThreadThatMayRunOnOneProcessorAlone) {
  const cpu_set_t usual = processors_of(::pthread_self());
  std::thread alone([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &one);
    ASSERT_EQ(::pthread_setaffinity_np(::pthread_self(), sizeof one, &one), 0);
    Sleeper sleeper;
    sleeper.bar();
    const cpu_set_t barred = sleeper.asleep();
    EXPECT_TRUE(CPU_EQUAL(&barred, &one));
    const cpu_set_t after = sleeper.wake();
    EXPECT_TRUE(CPU_EQUAL(&after, &one));
  });
  alone.join();
  const cpu_set_t now = processors_of(::pthread_self());
  EXPECT_TRUE(CPU_EQUAL(&now, &usual));
}

#endif

}  // namespace
