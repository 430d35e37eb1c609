// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <stdlib.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include <gtest/gtest.h>

#include <mha/backend/pool.hpp>

#include "forked.hpp"

namespace {

using mha::Index;
using mha::detail::Pool;
using mha_test::forked;

/// Whether the pool runs that many tasks at once, each on a thread of its own.
bool runs_at_once(Pool& pool, Index tasks) {
  std::atomic<Index> arrived{0};
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<Index> workers;
  auto meet = [&](Index, Index worker) {
    ++arrived;
    while (arrived < tasks) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex);
    threads.insert(std::this_thread::get_id());
    workers.insert(worker);
  };
  pool.run(tasks, meet);
  return threads.size() == static_cast<std::size_t>(tasks) && workers.size() == threads.size() &&
         *workers.begin() == 0 && *workers.rbegin() == tasks - 1;
}

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

// A thread that is just starting may hold a lock of the address sanitizer's, which a child then waits for in vain:
// these tests fork when all threads run.
class Fork : public testing::Test {
 protected:
  void SetUp() override {
    if (!mha_test::child_may_start_threads) GTEST_SKIP() << "ThreadSanitizer ends a child that starts threads";
  }
};

TEST_F(Fork, ChildMayExitAfterAParallelCall) {
  Pool pool(3);
  ASSERT_TRUE(runs_at_once(pool, 3));
  ASSERT_TRUE(runs_at_once(mha::detail::shared_pool, mha::detail::shared_pool.size()));
  EXPECT_EQ(forked([] { return true; }), "exit 0");
  EXPECT_TRUE(runs_at_once(pool, 3)) << "the parent goes on";
}

TEST_F(Fork, ChildStartsThreadsOfItsOwn) {
  Pool pool(3);
  ASSERT_TRUE(runs_at_once(pool, 3));
  ASSERT_TRUE(runs_at_once(mha::detail::shared_pool, mha::detail::shared_pool.size()));
  const auto both = [&] {
    return runs_at_once(pool, 3) && runs_at_once(mha::detail::shared_pool, mha::detail::shared_pool.size());
  };
  EXPECT_EQ(forked([&] { return both() && forked(both) == "exit 0" && both(); }), "exit 0");
  EXPECT_TRUE(both());
}

TEST_F(Fork, ChildMayDestroyAPoolOfItsParent) {
  auto used = std::make_unique<Pool>(3);
  auto again = std::make_unique<Pool>(3);
  ASSERT_TRUE(runs_at_once(*used, 3) && runs_at_once(*again, 3));
  EXPECT_EQ(forked([&] {
              const bool right = runs_at_once(*again, 3);
              used.reset();
              again.reset();
              return right;
            }),
            "exit 0");
}

TEST_F(Fork, AmidACallOfAnotherThread) {
  Pool pool(3);
  std::atomic<int> inside{0};
  std::atomic<bool> forked_already{false};
  auto wait = [&](Index, Index) {
    ++inside;
    while (!forked_already) std::this_thread::yield();
  };
  std::thread other([&] { pool.run(3, wait); });
  while (inside < 3) std::this_thread::yield();
  EXPECT_EQ(forked([&] { return runs_at_once(pool, 3); }), "exit 0");
  forked_already = true;
  other.join();
  EXPECT_TRUE(runs_at_once(pool, 3));
}

TEST_F(Fork, WithinATask) {
  Pool pool(3);
  ASSERT_TRUE(runs_at_once(pool, 3));
  std::atomic<int> right{0};
  auto fork_once = [&](Index task, Index) {
    if (task != 1) return;
    std::atomic<int> tasks{0};
    auto count = [&](Index, Index) { ++tasks; };
    // The child is still in a task: calls stay on its thread.
    if (forked([&] {
          pool.run(4, count);
          return tasks == 4;
        }) == "exit 0")
      ++right;
  };
  pool.run(6, fork_once);
  EXPECT_EQ(right, 1);
}

TEST_F(Fork, WhileOtherThreadsCall) {
  Pool pool(3);
  ASSERT_TRUE(runs_at_once(pool, 3));
  std::atomic<int> calling{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  for (int c = 0; c < 2; ++c)
    callers.emplace_back([&] {
      ++calling;
      std::atomic<int> tasks{0};
      auto count = [&](Index, Index) { ++tasks; };
      while (!stop) pool.run(4, count);
    });
  while (calling < 2) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) ASSERT_EQ(forked([&] { return runs_at_once(pool, 3); }), "exit 0");
  stop = true;
  for (std::thread& t : callers) t.join();
}

}  // namespace
