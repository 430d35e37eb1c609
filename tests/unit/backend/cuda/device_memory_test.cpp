// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/device_memory.hpp>

#include "gpu.hpp"

namespace {

using mha::cuda::check;

TEST(DeviceMemory, NothingIsNothing) {
  EXPECT_EQ(mha::cuda::device_array<float>(0).get(), nullptr);
  const mha::cuda::DeviceArray<float> none(std::span<const float>{});
  EXPECT_EQ(none.size(), 0u);
}

TEST(DeviceMemory, BytesBeyondAnySizeAreRefused) {
  EXPECT_THROW(mha::cuda::device_array<float>(std::size_t{1} << 62), std::bad_array_new_length);
}

TEST(DeviceMemory, AnArrayIsACopy) {
  MHA_NEEDS_GPU();
  const std::vector<int> numbers{3, 1, 4, 1, 5};
  const mha::cuda::DeviceArray<int> there{std::span<const int>(numbers)};
  std::vector<int> back(5);
  check(cudaMemcpy(back.data(), there.data(), 20, cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_EQ(back, numbers);
}

TEST(DeviceMemory, AnArrayThatWasMovedFromHasNothing) {
  MHA_NEEDS_GPU();
  mha::cuda::DeviceArray<int> from(5);
  mha::cuda::DeviceArray<int> to(std::move(from));
  EXPECT_EQ(from.size(), 0u);
  EXPECT_EQ(from.data(), nullptr);
  EXPECT_EQ(to.size(), 5u);
  from = std::move(to);
  EXPECT_EQ(to.size(), 0u);
  EXPECT_EQ(from.size(), 5u);
}

TEST(DeviceMemory, FeedsAnArena) {
  MHA_NEEDS_GPU();
  mha::Arena<mha::cuda::DeviceMemory> arena;
  const auto call = [&] {
    auto frame = arena.frame();
    for (int taken = 0; taken < 3; ++taken)
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(frame.take<float>(1)) % 256, 0u) << "as cuBLASLt wants its scratch";
    frame.take<float>(0);
  };
  call();
  const int allocations = arena.allocations();
  for (int i = 0; i < 3; ++i) call();
  EXPECT_EQ(arena.allocations(), allocations);
}

TEST(DeviceMemory, AnArenaGivesNothingForNothing) {
  MHA_NEEDS_GPU();
  mha::Arena<mha::cuda::DeviceMemory> arena;
  auto frame = arena.frame();
  EXPECT_EQ(frame.take<float>(0), nullptr) << "a product may need no scratch";
  EXPECT_NE(frame.take<float>(1), nullptr);
}

TEST(StagingRing, NumbersArriveThoughTheirSourceChanges) {
  MHA_NEEDS_GPU();
  mha::cuda::StagingRing ring;
  const mha::cuda::DeviceArray<int> there(std::size_t{200} * 3000);
  std::vector<int> numbers(3000);
  auto* const to = const_cast<int*>(there.data());
  for (int call = 0; call < 200; ++call) {  // more than the ring has blocks, of sizes that grow
    const std::size_t n = call % 2 == 0 ? 5 : 3000;
    for (std::size_t i = 0; i < n; ++i) numbers[i] = call + static_cast<int>(i);
    ring.send(to + call * 3000, numbers.data(), n * sizeof(int), nullptr);
  }
  std::vector<int> back(there.size());
  check(cudaMemcpy(back.data(), to, back.size() * sizeof(int), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int call = 0; call < 200; ++call)
    for (int i = 0; i < (call % 2 == 0 ? 5 : 3000); ++i)
      ASSERT_EQ(back[static_cast<std::size_t>(call) * 3000 + static_cast<std::size_t>(i)], call + i);
}

TEST(DevicePointer, MemoryOfTheHostIsRefusedByName) {
  MHA_NEEDS_GPU();
  const mha::cuda::DeviceArray<int> there(std::size_t{1});
  mha::cuda::require_device_pointer("layer", "x", there.data());
  if (support::reads_host_memory()) GTEST_SKIP() << "the device reads the host's memory";
  const int here = 0;
  try {
    mha::cuda::require_device_pointer("layer", "x", &here);
    ADD_FAILURE() << "accepted";
  } catch (const mha::ShapeError& e) {
    EXPECT_EQ(std::string(e.what()),
              "layer: x is in host memory, but the backend computes on a device: copy it first with mha::to_device()");
  }
}

}  // namespace
