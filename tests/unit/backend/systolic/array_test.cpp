// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/array.hpp>

namespace {

using mha::AmxArray;
using mha::array_use;
using mha::ArrayMeter;
using mha::ArrayUse;
using mha::TpuArray;

TEST(Array, HasTheShapesOfItsNames) {
  static_assert(AmxArray::rows == 16 && AmxArray::columns == 16 && AmxArray::depth == 32);
  static_assert(TpuArray<128>::rows == 128 && TpuArray<128>::columns == 128 && TpuArray<128>::depth == 128);
}

TEST(Array, WholePassesAreFull) {
  EXPECT_EQ(array_use<AmxArray>(32, 48, 64), (ArrayUse{2 * 3 * 2, 32 * 48 * 64, 32 * 48 * 64}));
  EXPECT_EQ(array_use<AmxArray>(32, 48, 64).utilisation(), 1.0);
}

TEST(Array, PaddingIsIssuedButNotUseful) {
  EXPECT_EQ(array_use<AmxArray>(1, 1, 1), (ArrayUse{1, 16 * 16 * 32, 1}));
  EXPECT_EQ(array_use<AmxArray>(17, 16, 32).passes, 2);
  EXPECT_EQ(array_use<TpuArray<128>>(128, 128, 64).utilisation(), 0.5);
  EXPECT_EQ(array_use<TpuArray<128>>(128, 128, 80).utilisation(), 0.625);
  EXPECT_EQ(array_use<TpuArray<128>>(128, 128, 128).utilisation(), 1.0);
  EXPECT_EQ(array_use<AmxArray>(16, 16, 80).utilisation(), 80.0 / 96);
}

TEST(Array, NoWorkIsNoPass) {
  EXPECT_EQ(array_use<AmxArray>(0, 16, 32), ArrayUse{});
  EXPECT_EQ(ArrayUse{}.utilisation(), 0);
}

TEST(Array, LargeProductsAreCountedIn64Bits) {
  EXPECT_EQ(array_use<AmxArray>(1 << 20, 1 << 20, 1 << 10).useful, std::int64_t{1} << 50);
}

TEST(ArrayMeter, CountsWhatHappensWhileItLives) {
  const ArrayUse use = array_use<AmxArray>(5, 6, 7);
  mha::detail::systolic::count_use(use);
  const ArrayMeter outer;
  EXPECT_EQ(outer.use(), ArrayUse{});
  mha::detail::systolic::count_use(use);
  {
    const ArrayMeter inner;
    mha::detail::systolic::count_use(use);
    EXPECT_EQ(inner.use(), use);
  }
  EXPECT_EQ(outer.use(), use + use);
}

TEST(ArrayMeter, AddsUpAllThreads) {
  const ArrayMeter meter;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 1000; ++i) mha::detail::systolic::count_use({1, 2, 3});
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(meter.use(), (ArrayUse{4000, 8000, 12000}));
}

}  // namespace
