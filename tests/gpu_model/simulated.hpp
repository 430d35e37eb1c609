// SPDX-License-Identifier: Apache-2.0
// The cases of one scalar on the host model; compiled once per scalar, so that the compiler's work is spread.
#pragma once

#include <array>

#include "gpu_cases.hpp"
#include "kernels.hpp"

namespace simulated {

/// Blocks in any order, on devices of any size, with warpgroups and without; no bank conflict, no fault.
template <class T> void expect_agreement() {
  using support::gpu::Order;
  auto& state = support::SimulatedCuda::state;
  gpu_cases::expect_agreement<support::SimulatedCuda, T>(gpu_cases::small(), [&](support::Random& random, auto&& run) {
    state.order = {
        std::array{Order::forward, Order::backward, Order::shuffled}[static_cast<std::size_t>(random.below(3))],
        static_cast<std::uint32_t>(random.below(1 << 20))};
    state.device.multiprocessors = std::array{1, 7, 132}[static_cast<std::size_t>(random.below(3))];
    state.device.warpgroups = random.chance(0.5);
    state.counted = {};
    try {
      run();
    } catch (const support::gpu::Fault& fault) {
      ADD_FAILURE() << state.kernel << ": " << fault.what();
    }
    EXPECT_EQ(state.counted.bank_conflicts, 0) << state.kernel;
  });
  state = {};
}

}  // namespace simulated
