// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/tiles.hpp>

#include "../simd/levels.hpp"
#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
namespace simd = mha::detail::simd;

struct Nearest {
  template <class Isa> MHA_ALWAYS_INLINE static void run(const float* from, mha::bfloat16* to, std::size_t n) {
    constexpr std::size_t width = simd::Vector<float, Isa>::width;
    for (std::size_t i = 0; i < n; i += width) {
      simd::vector_t<float, Isa> x;
      simd::load(x, from + i);
      systolic::store_nearest<Isa>(x, to + i);
    }
  }
};

TEST(Tiles, RoundToTheNearestBfloat16) {
  support::Random random("nearest");
  std::vector<float> from(1 << 16);
  for (float& x : from) x = std::bit_cast<float>(static_cast<std::uint32_t>(random.engine()()));
  from[1] = std::bit_cast<float>(0x7f800001u);  // a NaN whose upper half is an infinity
  from[2] = std::bit_cast<float>(0x3f808000u);  // a tie
  unit::for_each_level([&]<class Isa>(Isa) {
    std::vector<mha::bfloat16> to(from.size());
    Isa::template run<Nearest, const float*>(from.data(), to.data(), from.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < from.size(); ++i)
      if (to[i].bits != mha::bfloat16(from[i]).bits) ++wrong;
    EXPECT_EQ(wrong, 0u);
  });
}

TEST(Tiles, RoundUpToMultiples) {
  EXPECT_EQ(systolic::round_up(0, 32), 0);
  EXPECT_EQ(systolic::round_up(1, 32), 32);
  EXPECT_EQ(systolic::round_up(64, 32), 64);
}

}  // namespace
