// SPDX-License-Identifier: Apache-2.0
// Of whatever scalar a layer is and whatever it stores: a row is read from what is stored, in every order of steps.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "cache_law.hpp"

namespace {

using namespace laws::cached;

TEST(Cache, GivesTheBitsOfTheWholeCallInDoubleAndHalf) {
  laws::at_every_isa([] {
    Events events = every_storage_and_rings<double, mha::Cpu>(330, 1, {32, 64});
    EXPECT_GT(events.copies_on_write, 0);
    events = every_storage_and_rings<mha::half, mha::Cpu>(330, 2, {32, 64});
    EXPECT_GT(events.copies_on_write, 0);
  });
}

/// Layers on B that store another scalar than their own.
template <class T, class F, class B> void stored_as(unsigned seed) {
  SCOPED_TRACE(std::string(mha::detail::scalar_name<T>()) + " stored as " + std::string(mha::detail::scalar_name<F>()));
  every_storage_and_rings<T, B, F>(200, seed, {16, 64}, InOneStep<F>{});
}

TEST(Cache, GivesOneAnswerFromNarrowerAndWiderScalarsOnCpu) {
  laws::at_every_isa([] {
    stored_as<float, mha::bfloat16, mha::Cpu>(3);
    stored_as<float, mha::half, mha::Cpu>(4);
    stored_as<mha::half, mha::bfloat16, mha::Cpu>(5);
    stored_as<mha::bfloat16, float, mha::Cpu>(6);
  });
}

TEST(Cache, GivesOneAnswerFromEightBitsOnCpu) {
  laws::at_every_isa([] {
    stored_as<float, mha::scaled_int8, mha::Cpu>(7);
    stored_as<mha::half, mha::scaled_int8, mha::Cpu>(8);
    stored_as<mha::bfloat16, mha::scaled_int8, mha::Cpu>(11);
  });
}
TEST(Cache, GivesOneAnswerFromEightBitsOnReference) { stored_as<float, mha::scaled_int8, mha::Reference>(12); }

// What is stored is what is attended to: not float, but near.
TEST(Cache, StoresTheScalarItIsToldTo) {
  std::mt19937 random(10);
  const auto layer = causal_layer<float, mha::Cpu>(9);
  const auto x = random_rows<float>(200, random);
  const auto in_float = layer(x);
  const auto furthest = [&](const Tensor<float, 2>& y) {
    float most = 0;
    for (std::size_t i = 0; i < y.size(); ++i) most = std::max(most, std::abs(y.data()[i] - in_float.data()[i]));
    return most;
  };
  const float bfloat16 = furthest(InOneStep<mha::bfloat16>{}(layer, x)),
              half = furthest(InOneStep<mha::half>{}(layer, x)),
              eight_bits = furthest(InOneStep<mha::scaled_int8>{}(layer, x));
  EXPECT_EQ(furthest(InOneStep<float>{}(layer, x)), 0.0f);
  EXPECT_GT(half, 0.0f) << "the cache stored float";
  EXPECT_GT(bfloat16, half);
  EXPECT_LT(bfloat16, 0.05f);
  EXPECT_GT(eight_bits, half);
  EXPECT_LT(eight_bits, 0.1f);
}

}  // namespace
