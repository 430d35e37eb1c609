// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include <stdlib.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include <gtest/gtest.h>

#include <mha/backend/crew.hpp>
#include <mha/backend/pool.hpp>

#include "forked.hpp"
#include "runs_at_once.hpp"

namespace {

using mha::Index;
using mha::detail::Pool;
using mha_test::forked;
using mha_test::runs_at_once;

TEST(Pool, HasTheThreadsItIsGiven) {
  for (const Index size : {2, 3, 5}) {
    Pool pool(size);
    EXPECT_EQ(pool.size(), size);
    EXPECT_TRUE(runs_at_once(pool, size));
    EXPECT_TRUE(runs_at_once(pool, size));
  }
}

/// Where the system can.
bool pin_to_one_processor() {
#if defined(__linux__)
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
  return ::sched_setaffinity(0, sizeof one, &one) == 0;
#else
  return false;
#endif
}

TEST(Pool, WithoutASizeAsksTheEnvironmentThenTheProcessors) {
  EXPECT_EQ(forked([] {
              ::unsetenv("MHA_NUM_THREADS");
              bool right = Pool().size() == mha::detail::usable_cpus();
              ::setenv("MHA_NUM_THREADS", "", 1);
              right = right && Pool().size() == mha::detail::usable_cpus();
              right = right && (!pin_to_one_processor() || Pool().size() == 1);
              ::setenv("MHA_NUM_THREADS", "7", 1);
              return right && Pool().size() == 7;
            }),
            "exit 0");
}

TEST(Pool, EndsItsThreadsWithItself) {
  // Threads that are left behind would be refused by the system in the end, and the pool would not be what it says.
  for (int i = 0; i < 200; ++i) {
    Pool pool(4);
    ASSERT_TRUE(runs_at_once(pool, 4));
  }
  const Pool never_used(4);
}

TEST(Pool, TwoRunAtOnce) {
  Pool a(2), b(3);
  std::atomic<int> arrived{0};
  auto meet = [&](Index, Index) {
    ++arrived;
    while (arrived < 5) std::this_thread::yield();  // all threads of both
  };
  std::thread other([&] { b.run(3, meet); });
  a.run(2, meet);
  other.join();
  EXPECT_EQ(arrived, 5);
}

TEST(Pool, CallsFromATaskStayOnTheirThread) {
  Pool a(3), b(4);
  std::atomic<int> inner{0}, elsewhere{0};
  auto outer = [&](Index, Index) {
    const auto thread = std::this_thread::get_id();
    auto count = [&](Index, Index worker) {
      ++inner;
      if (worker != 0 || std::this_thread::get_id() != thread) ++elsewhere;
    };
    a.run(5, count);
    b.run(5, count);
  };
  a.run(12, outer);
  EXPECT_EQ(inner, 12 * 10);
  EXPECT_EQ(elsewhere, 0);
  EXPECT_TRUE(runs_at_once(a, 3)) << "a task's end is no call's end";
  EXPECT_TRUE(runs_at_once(b, 4));
}

TEST(Pool, CountsNoTaskBeyondTheLast) {
  // The first error ends the call as if all tasks were done; each thread then asks for one more.
  Pool pool(4);
  for (int round = 0; round < 200; ++round) {
    std::atomic<Index> least{0};
    auto fail = [&](Index task, Index) {
      if (task < 0) least = task;
      throw std::runtime_error("first task");
    };
    EXPECT_THROW(pool.run(std::numeric_limits<Index>::max(), fail), std::runtime_error);
    ASSERT_EQ(least, 0);
  }
}

TEST(Pool, ResultsAreThereWhenACallReturns) {
  // Short calls one after another: threads come in late, or when all is done. Numbers without a lock, for the thread
  // sanitizer too.
  for (const Index size : {2, 4}) {
    Pool pool(size);
    std::vector<int> numbers(7, -1);
    for (int round = 0; round < 20000; ++round) {
      auto write = [&](Index task, Index) { numbers[static_cast<std::size_t>(task)] = round; };
      pool.run(static_cast<Index>(numbers.size()), write);
      for (const int n : numbers) ASSERT_EQ(n, round);
    }
  }
}

}  // namespace
