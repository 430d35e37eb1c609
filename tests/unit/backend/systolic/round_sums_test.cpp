// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include <mha/backend/systolic/round_sums.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;

/// f(unit, level) for every unit and level of this machine.
template <class F> void for_each_kernel(F&& f) {
  for (const mha::MatrixUnit unit : systolic::all_units)
    for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level) {
      if (!mha::missing(unit).empty()) continue;
      const auto isa = static_cast<mha::IsaLevel>(level);
      SCOPED_TRACE(testing::Message() << mha::to_string(unit) << ", " << mha::to_string(isa));
      f(unit, isa);
    }
}

/// Any bits, many of them half-way between two bfloat16 numbers, many below the normal range.
float any_number(support::Random& random, int trial) {
  auto bits = static_cast<std::uint32_t>(random.below(1 << 30)) << 2;
  if (trial % 2 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
  if (trial % 3 == 0) bits &= 0x80ffffffu;
  return std::bit_cast<float>(bits);
}

bfloat16 rounded(float x, bool flushes) {
  return bfloat16(flushes && std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.f, x) : x);
}
bool same(bfloat16 a, bfloat16 b) { return a == a ? support::bits(a) == support::bits(b) : b != b; }

TEST(RoundSums, ToTheNearestBfloat16) {
  support::Random random("rounds");
  for_each_kernel([&](mha::MatrixUnit unit, mha::IsaLevel level) {
    const bool flushes = systolic::flushes_bfloat16(unit, level);
    const auto round = systolic::round_kernel<bfloat16>(unit, level);
    const auto narrow = systolic::narrow_kernel<bfloat16>(unit, level);
    for (int trial = 0; trial < 300; ++trial) {
      float sums[3 * 32], bias[32];
      for (float& x : sums) x = any_number(random, trial);
      for (float& x : bias) x = static_cast<float>(random.normal());
      bfloat16 to[3 * 40];
      for (const bool biased : {false, true}) {
        support::poison_all(to);
        round({.sums = sums, .bias = biased ? bias : nullptr, .to = to, .stride = 40, .rows = 3});
        std::size_t wrong = 0;
        for (Index r = 0; r < 3; ++r)
          for (Index j = 0; j < 32; ++j)
            wrong += !same(rounded(sums[32 * r + j] + (biased ? bias[j] : -0.f), flushes), to[40 * r + j]);
        EXPECT_EQ(wrong, 0u);
        EXPECT_EQ(support::bits(to[32]), support::bits(support::poison<bfloat16>())) << "what lies between rows";
      }
      // Sums that were kept are rounded alike.
      support::poison_all(to);
      narrow(sums, 32, 3, 29, to, 40);
      std::size_t wrong = 0;
      for (Index r = 0; r < 3; ++r)
        for (Index j = 0; j < 29; ++j) wrong += !same(rounded(sums[32 * r + j], flushes), to[40 * r + j]);
      EXPECT_EQ(wrong, 0u);
      EXPECT_EQ(support::bits(to[29]), support::bits(support::poison<bfloat16>()));
    }
  });
}

template <class T> void expect_blocks_with_a_residual() {
  support::Random random("rounds blocks");
  for_each_kernel([&](mha::MatrixUnit unit, mha::IsaLevel level) {
    float sums[2 * 160], bias[64];
    T residual[2 * 70], to[2 * 66];
    for (float& x : sums) x = static_cast<float>(random.normal());
    for (float& x : bias) x = static_cast<float>(random.normal());
    for (T& x : residual) x = static_cast<T>(static_cast<float>(random.normal()));
    support::poison_all(to);
    systolic::round_kernel<T>(unit, level)({.sums = sums,
                                            .bias = bias,
                                            .to = to,
                                            .stride = 66,
                                            .rows = 2,
                                            .columns = 64,
                                            .block_stride = 160,
                                            .residual = residual,
                                            .residual_stride = 70});
    for (Index r = 0; r < 2; ++r) {
      for (Index j = 0; j < 64; ++j) {
        const float sum = sums[j / 32 * 160 + 32 * r + j % 32] + bias[j];
        EXPECT_EQ(static_cast<float>(to[66 * r + j]),
                  static_cast<float>(static_cast<T>(sum + static_cast<float>(residual[70 * r + j]))));
      }
      EXPECT_EQ(support::bits(to[66 * r + 64]), support::bits(support::poison<T>())) << "what lies between rows";
    }
  });
}

TEST(RoundSums, OfBlocksSideBySideAndAResidual) {
  expect_blocks_with_a_residual<bfloat16>();
  expect_blocks_with_a_residual<mha::half>();
  expect_blocks_with_a_residual<float>();
}

TEST(RoundSums, ToFloatAndHalf) {
  support::Random random("rounds others");
  for_each_kernel([&](mha::MatrixUnit unit, mha::IsaLevel level) {
    float sums[2 * 32], bias[32], wide[2 * 32];
    mha::half narrow[2 * 32];
    for (float& x : sums) x = static_cast<float>(random.normal());
    for (float& x : bias) x = static_cast<float>(random.normal());
    systolic::round_kernel<float>(unit, level)({.sums = sums, .bias = bias, .to = wide, .stride = 32, .rows = 2});
    systolic::round_kernel<mha::half>(unit,
                                      level)({.sums = sums, .bias = nullptr, .to = narrow, .stride = 32, .rows = 2});
    for (Index i = 0; i < 64; ++i) {
      EXPECT_EQ(wide[i], sums[i] + bias[i % 32]);
      EXPECT_EQ(support::bits(narrow[i]), support::bits(mha::half(sums[i])));
    }
  });
}

}  // namespace
