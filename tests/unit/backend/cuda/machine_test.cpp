// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/backend/cuda/machine.hpp>

#include "gpu_model/faulty_machine.hpp"
#include "gpu_model/launch.hpp"
#include "gpu_model/warpgroup_machine.hpp"

namespace {

using mha::cuda::Chunk;
using mha::cuda::Machine;
using mha::cuda::SharedWord;
using mha::cuda::WarpgroupMachine;

struct ThreeBytes {
  unsigned char byte[3];
};
struct NoThread : support::gpu::HostMachine {
  using HostMachine::HostMachine;
  int thread() const = delete;
};
struct CountedVotes : support::gpu::HostMachine {
  using HostMachine::HostMachine;
  int any(bool) { return 0; }
};

struct NoSyncAny : support::gpu::HostMachine {
  using HostMachine::HostMachine;
  bool sync_any(bool) = delete;
};
struct NoFence : support::gpu::WarpgroupHostMachine {
  using WarpgroupHostMachine::WarpgroupHostMachine;
  void fence_proxy() = delete;
};

TEST(Machine, HasEveryOperation) {
  static_assert(Machine<support::gpu::HostMachine>);
  static_assert(Machine<support::gpu::FaultyMachine>);
  static_assert(!Machine<NoThread>);
  static_assert(!Machine<CountedVotes>);
  static_assert(!Machine<NoSyncAny>);
  static_assert(!Machine<int>);
}

TEST(WarpgroupMachine, IsAMachineWithProductsOfWarpgroups) {
  static_assert(WarpgroupMachine<support::gpu::WarpgroupHostMachine>);
  static_assert(WarpgroupMachine<support::gpu::FaultyMachine>);
  static_assert(Machine<support::gpu::WarpgroupHostMachine>);
  static_assert(!WarpgroupMachine<support::gpu::HostMachine>);
  static_assert(!WarpgroupMachine<NoFence>);
  static_assert(mha::cuda::warpgroup_size == 128);
}

TEST(Machine, SharedMemoryIsReachedByWordsOf4And8And16Bytes) {
  static_assert(SharedWord<float> && SharedWord<double> && SharedWord<std::uint32_t> && SharedWord<Chunk>);
  static_assert(!SharedWord<mha::half> && !SharedWord<ThreeBytes> && !SharedWord<char>);
  static_assert(sizeof(Chunk) == 16 && alignof(Chunk) == 16 && std::is_trivially_copyable_v<Chunk>);
}

}  // namespace
