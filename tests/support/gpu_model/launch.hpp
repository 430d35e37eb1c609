// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "host_machine.hpp"

namespace support::gpu {

/// The order in which the blocks of a launch run. No result may depend on it.
struct Order {
  enum Kind { forward, backward, shuffled } kind = forward;
  std::uint32_t seed = 1;  // of shuffled
};

/// The blocks of a grid in the order in which they run.
inline std::vector<BlockIndex> blocks_of(BlockIndex grid, Order order) {
  std::vector<BlockIndex> blocks;
  for (int z = 0; z < grid.z; ++z)
    for (int y = 0; y < grid.y; ++y)
      for (int x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
  if (order.kind == Order::backward) std::reverse(blocks.begin(), blocks.end());
  if (order.kind == Order::shuffled) std::shuffle(blocks.begin(), blocks.end(), std::mt19937(order.seed));
  return blocks;
}

/// What a launch runs: call(of, machine), behind one type for all kernels.
template <class Machine> struct KernelBody {
  void (*call)(const void* of, Machine& m) = nullptr;
  const void* of = nullptr;
};

template <class Machine>
Counters launch_kernel(BlockIndex grid, int threads, Shared bytes, KernelBody<Machine> body, Order order) {
  struct Machines {
    std::deque<Machine> of_threads;  // not on the fibers, whose stacks a fault abandons
    KernelBody<Machine> body;
  };
  GlobalMemory global;
  Block block(threads, bytes, global);
  int number = 0;
  for (const BlockIndex index : blocks_of(grid, order)) {
    Machines machines{{}, body};
    for (int t = 0; t < threads; ++t) machines.of_threads.emplace_back(block, t);
    const auto run = [](void* of, int t) {
      Machines& all = *static_cast<Machines*>(of);
      Machine& m = all.of_threads[static_cast<std::size_t>(t)];
      all.body.call(all.body.of, m);
      m.leave();
    };
    block.run(index, number++, {run, &machines});
  }
  global.end_launch();
  return block.count;
}

/// Runs a kernel on the host model: body(machine) by `threads` threads of every block of the grid.
///
/// Errors    Fault: what the hardware does not define; whatever the body throws
template <class Machine = HostMachine, class Body>
Counters launch(BlockIndex grid, int threads, Shared bytes, const Body& body, Order order = {}) {
  return launch_kernel<Machine>(grid, threads, bytes,
                                {[](const void* of, Machine& m) { (*static_cast<const Body*>(of))(m); }, &body}, order);
}

}  // namespace support::gpu
