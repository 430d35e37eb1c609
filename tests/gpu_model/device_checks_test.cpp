// SPDX-License-Identifier: Apache-2.0
// The checks of a GPU, answered by the host model of one: in smaller sizes, but by the same functions.
#include "device_checks.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include "kernels.hpp"

namespace {

using device_checks::Index;
using device_checks::Sizes;
using device_checks::Tensor;
using mha::bfloat16;

struct Simulated {
  using Backend = support::SimulatedCuda;
  template <class T, int Rank> static Tensor<T, Rank> to(const Tensor<T, Rank>& x) { return x; }
  template <class T, int Rank> static Tensor<T, Rank> from(const Tensor<T, Rank>& x) { return x; }
  template <class P> static P keep(const P& policy) { return policy; }
  static void fill(void* p, int byte, std::size_t n) { std::memset(p, byte, n); }
  static mha::cuda::DeviceFacts& facts() { return Backend::state.device; }
};

template <class T> class SimulatedDevice : public testing::Test {};
using Scalars = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(SimulatedDevice, Scalars);

TYPED_TEST(SimulatedDevice, TouchesNothingAroundItsTensors) {
  support::Random random("simulated guards");
  for (const Index start : {0, 1})
    for (const Sizes& s : {Sizes{2, 37, 70, 2, 1, 40, 24}, Sizes{1, 3, 600, 4, 2, 64, 64}})
      device_checks::check_guards<Simulated, TypeParam>(s, start, random, mha::Causal{});
}

TYPED_TEST(SimulatedDevice, MasksAreTheirTables) {
  support::Random random("simulated masks");
  for (const Sizes& s : {Sizes{2, 3, 150, 2, 1, 32, 32}, Sizes{2, 133, 133, 2, 1, 32, 32}})
    device_checks::check_masks<Simulated, TypeParam>(s, random);
}

TYPED_TEST(SimulatedDevice, PartsOfTheKeysAgreeWithOnePiece) {
  support::Random random("simulated parts");
  device_checks::check_splits<Simulated, TypeParam>({1, 2, 1500, 4, 2, 32, 40}, random,
                                                    [](const auto&) { return mha::Causal{}; });
}

TEST(SimulatedDevice, BearsOutliersAsSeparateOperationsDo) {
  support::Random random("simulated outliers");
  device_checks::check_outliers<Simulated, bfloat16>({1, 66, 150, 2, 1, 64, 64}, random, mha::Causal{});
  device_checks::check_outliers<Simulated, bfloat16>({1, 2, 700, 4, 1, 64, 64}, random, mha::Causal{});
}

TEST(SimulatedDevice, HasAnyNumberOfHeadsAndSequences) {
  support::Random random("simulated heads");
  for (const auto& [batch, heads] : {std::pair{1, 33}, std::pair{33, 1}, std::pair{3, 3}})
    for (const Index queries : {1, 20}) {
      const device_checks::Inputs<bfloat16> in({batch, queries, 21, heads, heads, 32, 32}, random);
      expect_near(device_checks::answer<Simulated>(in, mha::Causal{}), expected(in, mha::Causal{}), in.sizes.text());
    }
}

}  // namespace
