// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

TEST(Crew, WakesFromEveryDepthOfSleep) {
  using namespace std::chrono_literals;
  for (const Index size : {2, 3}) {
    Pool pool(size);
    for (int round = 0; round < 5; ++round)
      for (const std::chrono::microseconds pause : {0us, 20us, 60us, 150us, 250us, 1000us, 5000us}) {
        std::this_thread::sleep_for(pause);
        ASSERT_TRUE(runs_at_once(pool, size)) << size << ' ' << pause.count();
        std::this_thread::sleep_for(pause);
        std::atomic<Index> arrived{0};  // two tasks, of three threads too
        auto meet = [&](Index, Index) {
          ++arrived;
          while (arrived < 2) std::this_thread::yield();
        };
        pool.run(2, meet);
        ASSERT_EQ(arrived, 2) << size << ' ' << pause.count();
      }
  }
}

#if MHA_MOVES_SLEEPERS
TEST(Crew, LeavesItsThreadsTheirProcessors) {
  const auto processors = [] {
    cpu_set_t set;
    EXPECT_EQ(::pthread_getaffinity_np(::pthread_self(), sizeof set, &set), 0);
    return set;
  };
  const cpu_set_t usual = processors();
  Pool pool(3);
  for (int round = 0; round < 4; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> arrived{0}, other{0};
    auto task = [&](Index, Index) {
      const cpu_set_t here = processors();
      other += CPU_EQUAL(&here, &usual) ? 0 : 1;
      ++arrived;
      while (arrived < 3) std::this_thread::yield();
    };
    pool.run(3, task);
    EXPECT_EQ(other, 0);
  }
}

TEST(Crew, LeavesThoseThatItDoesNotWakeTheirProcessors) {
  constexpr std::size_t size = 6;
  Pool pool(size);
  pthread_t threads[size];
  std::atomic<std::size_t> arrived{0};
  auto meet = [&](Index, Index worker) {
    threads[static_cast<std::size_t>(worker)] = ::pthread_self();
    ++arrived;
    while (arrived < size) std::this_thread::yield();
  };
  pool.run(size, meet);
  cpu_set_t usual;
  ASSERT_EQ(::pthread_getaffinity_np(::pthread_self(), sizeof usual, &usual), 0);
  auto nothing = [](Index, Index) {};
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    pool.run(2, nothing);
    for (const pthread_t thread : threads) {
      cpu_set_t now;
      ASSERT_EQ(::pthread_getaffinity_np(thread, sizeof now, &now), 0);
      EXPECT_TRUE(CPU_EQUAL(&now, &usual));
    }
  }
}
#endif

TEST(Crew, SleepsUntilASlowTaskOfAnotherThreadIsDone) {
  Pool pool(2);
  for (const int milliseconds : {0, 1, 30}) {
    int slow = 0;
    std::atomic<int> arrived{0};
    auto task = [&](Index, Index worker) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
      if (worker == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      slow = 1;
    };
    pool.run(2, task);
    EXPECT_EQ(slow, 1) << milliseconds;
  }
}

TEST(Crew, ComputesInTheModesOfTheCaller) {
  Pool pool(3);
  ASSERT_TRUE(runs_at_once(pool, 3));
  for (const int mode : {FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST}) {
    std::atomic<Index> arrived{0}, right{0};
    auto task = [&](Index, Index) {
      right += std::fegetround() == mode ? 1 : 0;
      ++arrived;
      while (arrived < 3) std::this_thread::yield();  // every thread has a task
    };
    std::fesetround(mode);
    pool.run(3, task);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(right, 3) << mode;
  }
}

TEST(Crew, IsLeftToACallThatThePoolDoesNotOutlive) {
  auto pool = std::make_unique<Pool>(2);
  std::atomic<bool> inside{false}, gone{false}, waited{false};
  std::thread caller([&] {
    auto task = [&](Index, Index) {
      inside = true;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (!gone && !waited) waited = std::chrono::steady_clock::now() > limit;
    };
    pool->run(2, task);
  });
  while (!inside) std::this_thread::yield();
  pool.reset();
  gone = true;
  caller.join();
  EXPECT_FALSE(waited);
}

TEST(Crew, ThreadsWithoutWorkTakeNoTime) {
  Pool pool(4);
  ASSERT_TRUE(runs_at_once(pool, 4));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  // Three threads that never slept would take 200 milliseconds or more on any machine that is not overloaded.
  EXPECT_LT(double(std::clock() - before) / CLOCKS_PER_SEC, 0.02);
}

TEST(Patience, EndsAndWithoutSpinningNeverBegins) {
  using mha::detail::Patience;
  Patience none(false), some(true);
  EXPECT_FALSE(none.again());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(some.again());
  while (some.again()) {
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, Patience::most);
  EXPECT_FALSE(some.again());
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
  for (const Index forking : {0, 1}) {
    std::atomic<Index> arrived{0};
    std::string ended;
    auto fork_once = [&](Index, Index worker) {
      ++arrived;
      while (arrived < 3) std::this_thread::yield();  // every thread has a task
      if (worker != forking) return;
      std::atomic<int> tasks{0};
      auto count = [&](Index, Index) { ++tasks; };
      ended = forked([&] {
        pool.run(4, count);  // the child is still in a task: calls stay on its thread
        // Of a thread of the pool's, leak checkers would miss the stack of main().
        if (forking != 0) std::_Exit(tasks == 4 ? 0 : 1);
        return tasks == 4;
      });
    };
    pool.run(3, fork_once);
    EXPECT_EQ(ended, "exit 0") << forking;
  }
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
  // A leak checker at the end of the child would try to stop threads of the parent that never stop.
  const auto child = [&]() -> bool { std::_Exit(runs_at_once(pool, 3) ? 0 : 1); };
  for (int i = 0; i < 20; ++i) ASSERT_EQ(forked(child), "exit 0");
  stop = true;
  for (std::thread& t : callers) t.join();
}

}  // namespace
