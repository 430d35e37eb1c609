// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../conformance/run_case.hpp"
#include "gpu_model/simulated_cuda.hpp"
#include "simulated_cases.hpp"

namespace simulated {

template <class T> constexpr int storage_of() {
  using conformance::Storage;
  return static_cast<int>(std::is_same_v<T, float>       ? Storage::float32
                          : std::is_same_v<T, double>    ? Storage::float64
                          : std::is_same_v<T, mha::half> ? Storage::half
                                                         : Storage::bfloat16);
}
template <class T> struct Compiled {
  template <int M, int S> static constexpr bool has = compiled(storage_of<T>(), M, S);
};

template <class T> void run(const conformance::Case& which, support::Random& random, conformance::Index start) {
  using support::gpu::Order;
  auto& state = support::SimulatedCuda::state;
  state.order = {
      std::array{Order::forward, Order::backward, Order::shuffled}[static_cast<std::size_t>(random.below(3))],
      static_cast<std::uint32_t>(random.below(1 << 20))};
  state.device.multiprocessors = std::array{1, 7, 132}[static_cast<std::size_t>(random.below(3))];
  state.counted = {};
  try {
    conformance::run_compiled<support::SimulatedCuda, T>(which, random, Compiled<T>{}, start);
  } catch (const support::gpu::Fault& fault) {
    ADD_FAILURE() << state.kernel << ": " << fault.what();
  }
  EXPECT_EQ(state.counted.bank_conflicts, 0) << state.kernel;
}

}  // namespace simulated
