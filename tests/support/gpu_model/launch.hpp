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

/// Runs a kernel on the host model: body(machine) by `threads` threads of every block of the grid.
///
/// Errors    Fault: what the hardware does not define; whatever the body throws
template <class Machine = HostMachine, class Body>
Counters launch(BlockIndex grid, int threads, Shared bytes, Body&& body, Order order = {}) {
  std::vector<BlockIndex> blocks;
  for (int z = 0; z < grid.z; ++z)
    for (int y = 0; y < grid.y; ++y)
      for (int x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
  if (order.kind == Order::backward) std::reverse(blocks.begin(), blocks.end());
  if (order.kind == Order::shuffled) std::shuffle(blocks.begin(), blocks.end(), std::mt19937(order.seed));

  GlobalMemory global;
  Block block(threads, bytes, global);
  int number = 0;
  for (const BlockIndex index : blocks) {
    std::deque<Machine> machines;  // not on the fibers, whose stacks a fault abandons
    for (int t = 0; t < threads; ++t) machines.emplace_back(block, t);
    auto run = [&](int t) {
      Machine& m = machines[static_cast<std::size_t>(t)];
      body(m);
      m.leave();
    };
    block.run(index, number++, run);
  }
  global.end_launch();
  return block.count;
}

}  // namespace support::gpu
