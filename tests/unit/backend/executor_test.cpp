// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/executor.hpp>

namespace {

using mha::Index;

// Before main, and so before the pool starts: more threads than a small machine has, unless the caller says otherwise.
[[maybe_unused]] const int four_threads = setenv("MHA_NUM_THREADS", "4", 0);

TEST(Workers, AreCountedInWords) {
  EXPECT_EQ(mha::detail::workers_in_words(mha::Serial{}), "Serial with 1 worker");
  EXPECT_EQ(mha::detail::workers_in_words(mha::ThreadPool(2)), "ThreadPool with 2 workers");
}

template <class E> class ExecutorContract : public testing::Test {};
struct PoolOfThree : mha::ThreadPool {
  PoolOfThree() : ThreadPool(3) {}
};
using Executors = testing::Types<mha::Serial, mha::ThreadPool, PoolOfThree>;
TYPED_TEST_SUITE(ExecutorContract, Executors);

TYPED_TEST(ExecutorContract, RunsEveryTaskOnce) {
  const TypeParam executor;
  ASSERT_GE(executor.workers(), 1);
  for (const Index tasks : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
    std::atomic<bool> in_range{true};
    executor.run(tasks, [&](Index task, Index worker) {
      ++runs[static_cast<std::size_t>(task)];
      if (worker < 0 || worker >= executor.workers()) in_range = false;
    });
    for (const auto& n : runs) EXPECT_EQ(n, 1);
    EXPECT_TRUE(in_range);
  }
}

TYPED_TEST(ExecutorContract, NeverRunsOneWorkerTwiceAtOnce) {
  const TypeParam executor;
  std::vector<std::atomic<int>> busy(static_cast<std::size_t>(executor.workers()));
  std::atomic<int> clashes{0};
  executor.run(2000, [&](Index, Index worker) {
    auto& mine = busy[static_cast<std::size_t>(worker)];
    if (mine.fetch_add(1) != 0) ++clashes;
    std::this_thread::yield();
    mine.fetch_sub(1);
  });
  EXPECT_EQ(clashes, 0);
}

TYPED_TEST(ExecutorContract, HandsAnExceptionToTheCallerAndGoesOn) {
  const TypeParam executor;
  for (const Index bad : {0, 3, 99}) {
    EXPECT_THROW(executor.run(100,
                              [&](Index task, Index) {
                                if (task == bad) throw std::runtime_error("bad task");
                              }),
                 std::runtime_error);
    std::atomic<int> runs{0};
    executor.run(50, [&](Index, Index) { ++runs; });
    EXPECT_EQ(runs, 50);
  }
}

TYPED_TEST(ExecutorContract, RunsNestedAndConcurrentCalls) {
  const TypeParam executor;
  std::atomic<int> inner{0};
  executor.run(8, [&](Index, Index) {
    executor.run(5, [&](Index, Index worker) { inner += worker < executor.workers() ? 1 : 1000; });
  });
  EXPECT_EQ(inner, 40);
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) executor.run(30, [&](Index, Index) { ++total; });
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(total, 4 * 20 * 30);
}

TEST(ThreadPool, UsesTheThreadsItNames) {
  const mha::ThreadPool pool;
  if (pool.workers() == 1) GTEST_SKIP() << "MHA_NUM_THREADS is 1, so the pool has no threads of its own";
  std::mutex mutex;
  std::set<std::thread::id> seen;
  // Tasks wait for each other, so that one thread cannot take them all.
  std::atomic<int> arrived{0};
  pool.run(pool.workers(), [&](Index, Index) {
    ++arrived;
    while (arrived < pool.workers()) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(static_cast<Index>(seen.size()), pool.workers());
  EXPECT_EQ(seen.count(std::this_thread::get_id()), 1u) << "the caller works too";
}

TEST(ThreadPool, TakesItsSizeFromTheEnvironment) {
  const char* const asked = std::getenv("MHA_NUM_THREADS");
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(mha::ThreadPool{}.workers(), std::stoi(asked));
}

std::set<std::thread::id> threads_of(const mha::ThreadPool& pool) {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> arrived{0};
  pool.run(pool.workers(), [&](Index, Index) {
    ++arrived;
    while (arrived < pool.workers()) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  return seen;
}

TEST(ThreadPool, OfYourOwnHasItsSizeAndSharesItsThreadsWithCopies) {
  for (const Index threads : {1, 2, 5}) {
    const mha::ThreadPool pool(threads);
    EXPECT_EQ(pool.workers(), threads);
    const auto seen = threads_of(pool);
    EXPECT_EQ(static_cast<Index>(seen.size()), threads);
    auto copy = std::make_unique<mha::ThreadPool>(pool);
    EXPECT_EQ(threads_of(*copy), seen);
    EXPECT_EQ(threads_of(mha::ThreadPool(pool)), seen);
    copy.reset();
    EXPECT_EQ(threads_of(pool), seen) << "they end with the last copy";
    auto others = threads_of(mha::ThreadPool(threads));
    others.erase(std::this_thread::get_id());
    for (const auto id : others) EXPECT_EQ(seen.count(id), 0u);
  }
}

TEST(ThreadPool, OfYourOwnStaysItselfWhenItIsMovedFrom) {
  const Index more = mha::ThreadPool{}.workers() + 1;
  mha::ThreadPool pool(more), assigned;
  const mha::ThreadPool moved = std::move(pool);
  EXPECT_EQ(moved.workers(), more);
  EXPECT_EQ(pool.workers(), more);
  assigned = std::move(pool);
  EXPECT_EQ(assigned.workers(), more);
  EXPECT_EQ(pool.workers(), more);
  static_assert(std::is_nothrow_move_constructible_v<mha::ThreadPool> &&
                std::is_nothrow_move_assignable_v<mha::ThreadPool>);
}

TEST(ThreadPool, OfYourOwnIsNotBoundByTheEnvironment) {
  const Index more = mha::ThreadPool{}.workers() + 1;
  EXPECT_EQ(mha::ThreadPool(more).workers(), more);
}

TEST(ThreadPool, RefusesSizesThatAreNone) {
  for (const Index threads : {0, -3, 4097}) {
    try {
      const mha::ThreadPool pool(threads);
      ADD_FAILURE() << threads << " threads";
    } catch (const mha::ShapeError& e) {
      EXPECT_EQ(e.what(),
                "ThreadPool: the number of threads is " + std::to_string(threads) + ", it must be from 1 to 4096");
    }
  }
  EXPECT_EQ(mha::ThreadPool(4096).workers(), 4096);  // none has started
}

struct NoRun {
  static constexpr const char* name = "NoRun";
  Index workers() const { return 1; }
};

TEST(Executor, IsAConcept) {
  EXPECT_TRUE(mha::Executor<mha::Serial>);
  EXPECT_TRUE(mha::Executor<mha::ThreadPool>);
  EXPECT_FALSE(mha::Executor<NoRun>);
  EXPECT_FALSE(mha::Executor<int>);
}

TEST(ThreadPoolDeathTest, RefusesAnEnvironmentThatIsNoNumber) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* const text : {"four", "0", "-2", "4097", "3 "})
    EXPECT_EXIT(
        {
          setenv("MHA_NUM_THREADS", text, 1);
          try {
            static_cast<void>(mha::ThreadPool{}.workers());
          } catch (const mha::ShapeError& e) {
            std::fputs(e.what(), stderr);
            std::_Exit(7);
          }
          std::_Exit(0);
        },
        testing::ExitedWithCode(7), "MHA_NUM_THREADS: '.*' is not a number of threads between 1 and 4096");
}

struct Count {
  std::ptrdiff_t rows;
  Index columns, cost;
  std::atomic<int>* visits;
  std::atomic<bool>* elsewhere;
  std::thread::id caller;
  void operator()(std::ptrdiff_t row, Index column) const {
    ++visits[row * columns + column];
    if (std::this_thread::get_id() != caller) *elsewhere = true;
  }
};

TEST(RunItems, EveryItemOnceAndLittleWorkInTheCallingThread) {
  for (const Index cost : {1, 1 << 12}) {
    std::vector<std::atomic<int>> visits(101 * 7);
    std::atomic<bool> elsewhere = false;
    mha::detail::run_items(Count{101, 7, cost, visits.data(), &elsewhere, std::this_thread::get_id()},
                           mha::ThreadPool{});
    for (const auto& n : visits) EXPECT_EQ(n, 1);
    if (cost == 1) {
      EXPECT_FALSE(elsewhere);
    }
  }
  mha::detail::run_items(Count{0, 7, 1, nullptr, nullptr, {}}, mha::ThreadPool{});
}

}  // namespace
