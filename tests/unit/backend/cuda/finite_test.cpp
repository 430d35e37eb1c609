// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include <mha/backend/cuda/finite.hpp>

#include "compare.hpp"
#include "gpu_model/launch.hpp"

namespace {

using mha::cuda::Chunk;
using mha::cuda::PairBits;
using support::gpu::HostMachine;
using support::gpu::Shared;

template <class T> class Finite : public testing::Test {};
using Scalars = testing::Types<mha::bfloat16, mha::half>;
TYPED_TEST_SUITE(Finite, Scalars);

template <class T> double number(std::uint32_t pair, int half) {
  return support::to_double(T::from_bits(static_cast<std::uint16_t>(pair >> half)));
}

TYPED_TEST(Finite, EveryNumberFallsIntoItsParts) {
  for (std::uint32_t x = 0; x < 0x10000; ++x) {
    const std::uint32_t other = (x * 40503u + 12345u) & 0xffffu, pair = x | other << 16;
    const auto parts = PairBits<TypeParam>::parts(pair);
    bool finite = true;
    for (const int half : {0, 16}) {
      const double d = number<TypeParam>(pair, half);
      finite = finite && std::isfinite(d);
      ASSERT_EQ(parts.finite >> half & 0xffffu, std::isfinite(d) ? pair >> half & 0xffffu : 0u) << pair;
      ASSERT_EQ(number<TypeParam>(parts.above, half), std::isnan(d) || d == INFINITY ? 1 : 0) << pair;
      ASSERT_EQ(number<TypeParam>(parts.below, half), std::isnan(d) || d == -INFINITY ? 1 : 0) << pair;
    }
    ASSERT_EQ(PairBits<TypeParam>::are_finite(pair), finite) << pair;
  }
}

TYPED_TEST(Finite, OnesAreWhereTheFlagsAre) {
  for (const bool first : {false, true})
    for (const bool second : {false, true}) {
      const std::uint32_t pair = PairBits<TypeParam>::ones(first, second);
      EXPECT_EQ(number<TypeParam>(pair, 0), first);
      EXPECT_EQ(number<TypeParam>(pair, 16), second);
    }
}

/// What all_finite() tells the lanes of a memory of zeros but for one pair.
template <class T> bool told(Shared bytes, Shared place, std::uint32_t pair) {
  int yes = 0;
  support::gpu::launch({1, 1, 1}, 32, bytes, [&](HostMachine& m) {
    for (Shared at = m.thread() * 16; at < bytes; at += 32 * 16) m.store(at, Chunk{{0, 0, 0, 0}});
    m.sync();
    if (m.thread() == 0) m.store(place, pair);
    m.sync();
    yes += mha::cuda::all_finite<T>(m, 0, bytes) ? 1 : 0;
  });
  EXPECT_TRUE(yes == 0 || yes == 32) << "lanes disagree: " << yes;
  return yes == 32;
}

TYPED_TEST(Finite, OneNumberIsFoundWhereverItLies) {
  const std::uint32_t largest = PairBits<TypeParam>::infinity - 1, infinity = PairBits<TypeParam>::infinity;
  for (const Shared bytes : {16, 528, 2048})
    for (const Shared place : {0, 4, bytes / 2 / 4 * 4, bytes - 4})
      for (const int half : {0, 16}) {
        EXPECT_TRUE(told<TypeParam>(bytes, place, (largest | 0x8000u) << half));
        EXPECT_FALSE(told<TypeParam>(bytes, place, infinity << half)) << bytes << " bytes, at " << place;
        EXPECT_FALSE(told<TypeParam>(bytes, place, (infinity | 0x8001u) << half)) << bytes << " bytes, at " << place;
      }
}

}  // namespace
