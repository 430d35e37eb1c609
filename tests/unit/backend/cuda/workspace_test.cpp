// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/workspace.hpp>

#include "gpu.hpp"

namespace {

using mha::cuda::check;
using mha::cuda::Workspace;

TEST(CudaWorkspace, AsksForNothingUntilItIsUsed) {
  Workspace workspace;
  EXPECT_EQ(workspace.stream(), nullptr);
  EXPECT_EQ(workspace.bytes(), 0u);
  auto frame = workspace.frame();
  int* const here = frame.take_host<int>(3);
  here[2] = 7;  // the host's own
  EXPECT_EQ(here[2], 7);
  EXPECT_EQ(workspace.allocations(), 0);
}

TEST(CudaWorkspace, ASecondCallAllocatesNothing) {
  MHA_NEEDS_GPU();
  Workspace workspace;
  for (int call = 0; call < 4; ++call) {
    auto outer = workspace.frame();
    outer.take<float>(1000);
    auto inner = workspace.frame();
    inner.take<double>(5000);
  }
  const int allocations = workspace.allocations();
  for (int call = 0; call < 4; ++call) {
    auto outer = workspace.frame();
    outer.take<float>(1000);
    auto inner = workspace.frame();
    inner.take<double>(5000);
  }
  EXPECT_EQ(workspace.allocations(), allocations);
}

TEST(CudaWorkspace, RefusesNumbersInARecordingBeforeItAllocates) {
  MHA_NEEDS_GPU();
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  {
    Workspace workspace(stream);
    const mha::Index number = 7;
    workspace.require_sendable();
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    EXPECT_THROW(workspace.require_sendable(), mha::ShapeError);
    {
      auto frame = workspace.frame();
      EXPECT_THROW(workspace.stage(&number, 1, frame), mha::ShapeError);
    }
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    EXPECT_EQ(workspace.allocations(), 0);
    workspace.require_sendable();
  }
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST(CudaWorkspace, StagesNumbersAndCountsFromZero) {
  MHA_NEEDS_GPU();
  Workspace workspace;
  auto frame = workspace.frame();
  std::vector<mha::Index> numbers{0, 3, 8};
  const mha::Index* const there = workspace.stage(numbers.data(), 3, frame);
  numbers.assign(3, -1);
  std::vector<mha::Index> back(3);
  check(cudaMemcpy(back.data(), there, 12, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_EQ(back, (std::vector<mha::Index>{0, 3, 8}));
  std::vector<unsigned> counters(100, 9);
  check(cudaMemcpy(counters.data(), workspace.counters(100), 400, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_EQ(counters, std::vector<unsigned>(100, 0u));
  EXPECT_EQ(workspace.counters(50), workspace.counters(100));
}

TEST(CudaWorkspace, OneThatWasMovedFromServesAgain) {
  MHA_NEEDS_GPU();
  Workspace from;
  const unsigned* const counters = from.counters(8);
  Workspace to = std::move(from);
  EXPECT_EQ(to.counters(8), counters);
  EXPECT_NE(from.counters(8), nullptr);
  EXPECT_NE(from.counters(8), counters);
}

}  // namespace
