// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>

#include <gtest/gtest.h>

#include <mha/backend/executor.hpp>

#if defined(_OPENMP)

#include <atomic>
#include <stdexcept>
#include <vector>

#include <mha/backend/eigen/product.hpp>
#include <mha/openmp.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

TEST(OpenMp, IsAnExecutor) { EXPECT_TRUE(mha::Executor<mha::OpenMp>); }

TEST(OpenMp, RunsEveryTaskOnceOnWorkersInRange) {
  omp_set_num_threads(3);
  const mha::OpenMp executor;
  EXPECT_EQ(executor.workers(), 3);
  std::vector<std::atomic<int>> runs(500);
  std::atomic<bool> in_range{true};
  executor.run(500, [&](Index task, Index worker) {
    ++runs[static_cast<std::size_t>(task)];
    if (worker < 0 || worker >= 3) in_range = false;
  });
  for (const auto& n : runs) EXPECT_EQ(n, 1);
  EXPECT_TRUE(in_range);
}

TEST(OpenMp, StaysOnItsThreadInsideAParallelRegion) {
  const mha::OpenMp executor;
  std::atomic<int> inner{0};
  executor.run(6, [&](Index, Index) {
    if (omp_get_num_threads() > 1) inner += executor.workers() == 1 ? 0 : 1000;
    executor.run(4, [&](Index, Index worker) { inner += worker == 0 || omp_get_num_threads() == 1 ? 1 : 1000; });
  });
  EXPECT_EQ(inner, 24);
}

TEST(OpenMp, HandsAnExceptionToTheCaller) {
  const mha::OpenMp executor;
  EXPECT_THROW(executor.run(100,
                            [](Index task, Index) {
                              if (task == 40) throw std::runtime_error("bad task");
                            }),
               std::runtime_error);
}

TEST(OpenMp, ProductsOfEigenCpuStayOnTheirThread) {
  omp_set_num_threads(4);
  ASSERT_EQ(Eigen::nbThreads(), 4) << "what Eigen would take";
  {
    const mha::detail::eigen::OneThread one_thread;
    EXPECT_EQ(Eigen::nbThreads(), 1);
  }
  EXPECT_EQ(Eigen::nbThreads(), 4);
}

TEST(OpenMp, GivesTheBitsOfSerial) {
  support::Random random("openmp");
  mha::Tensor<float, 4> q(2, 150, 4, 16), k(2, 150, 2, 16), v(2, 150, 2, 16);
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  EXPECT_EQ(support::differing(mha::attention<mha::CpuWith<mha::OpenMp>>(q, k, v, mha::Causal{}),
                               mha::attention<mha::CpuWith<mha::Serial>>(q, k, v, mha::Causal{})),
            0u);
}

}  // namespace

#else

// Without -fopenmp the header refuses to compile; what a program uses then is an executor all the same.
TEST(OpenMp, IsReplacedByOtherExecutors) {
  int runs = 0;
  mha::Serial{}.run(3, [&](mha::Index, mha::Index) { ++runs; });
  EXPECT_EQ(runs, 3);
}

#endif
