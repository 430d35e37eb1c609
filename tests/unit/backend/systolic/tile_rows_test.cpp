// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/tile_rows.hpp>

#include "../simd/levels.hpp"
#include "compare.hpp"
#include "eight_bits.hpp"
#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;

template <class T> class TileRows : public testing::Test {};
using Scalars = testing::Types<float, mha::half, bfloat16>;
TYPED_TEST_SUITE(TileRows, Scalars);

TYPED_TEST(TileRows, RoundInChunksPaddedWithZeros) {
  using T = TypeParam;
  support::Random random("round rows");
  for (const std::ptrdiff_t stride : {1, 3}) {
    std::vector<T> from(3000);
    random.fill(from);
    const Index rows = 5, width = 70;  // three chunks, the last of 6
    const systolic::StridedRows<const T> source{from.data() + 1, 230, stride, rows, width};
    for (int level = 0; level <= int(mha::best_isa()); ++level) {
      std::vector<bfloat16> to(3 * 600, bfloat16(9.f));
      systolic::round_rows<T>(static_cast<mha::IsaLevel>(level), source, to.data(), 40, 600);
      for (Index i = 0; i < rows; ++i)
        for (Index d = 0; d < 96; ++d) {
          const bfloat16 got = to[std::size_t(d / 32 * 600 + i * 40 + d % 32)];
          const bfloat16 want =
              d < width ? bfloat16(static_cast<float>(from[std::size_t(1 + i * 230 + d * stride)])) : bfloat16{};
          EXPECT_EQ(got.bits, want.bits) << i << ", " << d << " at " << mha::to_string(mha::IsaLevel(level));
        }
      EXPECT_EQ(to[32].bits, bfloat16(9.f).bits) << "between rows";
    }
  }
}

TEST(TileRows, RoundRowsInEightBits) {
  support::Random random("round rows of 8 bits");
  for (const Index width : {1, 31, 32, 33, 70, 96}) {
    const support::EightBitRows rows(random, 5, width, 3);
    const systolic::StridedRows<const mha::scaled_int8> source{rows.row(0), rows.stride, 1, rows.count, width};
    for (int level = 0; level <= int(mha::best_isa()); ++level) {
      std::vector<bfloat16> to(3 * 600, bfloat16(9.f));
      systolic::round_rows<mha::scaled_int8>(static_cast<mha::IsaLevel>(level), source, to.data(), 40, 600);
      for (Index i = 0; i < rows.count; ++i)
        for (Index d = 0; d < (width + 31) / 32 * 32; ++d) {
          const bfloat16 want = d < width ? bfloat16(rows.numbers[std::size_t(i * width + d)]) : bfloat16{};
          EXPECT_EQ(to[std::size_t(d / 32 * 600 + i * 40 + d % 32)].bits, want.bits) << i << ", " << d;
        }
      EXPECT_EQ(to[32].bits, bfloat16(9.f).bits) << "between rows";
    }
  }
}

TYPED_TEST(TileRows, OutputsLeaveTheLanes) {
  using T = TypeParam;
  support::Random random("store rows");
  const Index lanes = 48, count = 37, width = 45;
  std::vector<float> from(48 * 48), factor(48), scratch(48 * 48);
  for (auto& x : from) x = static_cast<float>(random.normal());
  for (auto& x : factor) x = static_cast<float>(random.uniform(0.1, 1));
  for (const std::ptrdiff_t stride : {1, 2})
    unit::for_each_level([&]<class Isa>(Isa) {
      std::vector<T> to(std::size_t(count) * 100);
      support::poison_all(to);
      Isa::template run<systolic::StoreRowsBody<T>, const float*, const float*>(
          from.data(), factor.data(), lanes, scratch.data(),
          systolic::StridedRows<T>{to.data(), 100, stride, count, width});
      for (Index i = 0; i < count; ++i)
        for (Index d = 0; d < 100; ++d) {
          const bool written = d % stride == 0 && d / stride < width;
          const Index column = d / Index(stride);
          const T want =
              written ? T(from[std::size_t(column * lanes + i)] * factor[std::size_t(i)]) : support::poison<T>();
          EXPECT_EQ(support::bits(to[std::size_t(i * 100 + d)]), support::bits(want)) << i << ", " << d;
        }
    });
}

TEST(TileRows, ColumnsLieInPairs) {
  std::vector<bfloat16> rows(48 * 96);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = bfloat16::from_bits(static_cast<std::uint16_t>(i));
  unit::for_each_level([&]<class Isa>(Isa) {
    std::vector<std::uint32_t> to(3 * 3 * 256);
    Isa::template run<systolic::PackColumnsBody, const bfloat16*, std::ptrdiff_t, Index, Index, std::uint32_t*>(
        rows.data(), 96, 3, 3, to.data());
    for (std::size_t q = 0; q < 48; ++q)
      for (std::size_t d = 0; d < 96; ++d) {
        const std::uint32_t word = to[((d / 32 * 3 + q / 16) * 16 + d % 32 / 2) * 16 + q % 16];
        EXPECT_EQ(word >> (d % 2 * 16) & 0xffffu, rows[q * 96 + d].bits) << q << ", " << d;
      }
  });
}

TEST(TileRows, NumbersThatAreFinite) {
  for (const float x : {0.f, -0.f, 1.f, -3e38f, 1e-40f}) EXPECT_TRUE(systolic::is_finite(bfloat16(x))) << x;
  for (const float x : {INFINITY, -INFINITY, NAN, 3.4e38f}) EXPECT_FALSE(systolic::is_finite(bfloat16(x))) << x;
}

TEST(TileRows, TransposedTilesAndWhatIsNotFinite) {
  std::vector<bfloat16> rows(32 * 64);
  support::Random random("transposed");
  random.fill(rows);
  for (const float special : {0.f, INFINITY, -INFINITY, NAN})
    for (const std::size_t at : {std::size_t(0), std::size_t(31 * 64 + 47), std::size_t(10 * 64 + 50)}) {
      const bfloat16 before = rows[at];
      rows[at] = bfloat16(special);
      unit::for_each_level([&]<class Isa>(Isa) {
        std::vector<bfloat16> to(3 * 700);
        bool non_finite = false;
        Isa::template run<systolic::PackTransposedBody, const bfloat16*, std::ptrdiff_t, Index, bfloat16*,
                          std::ptrdiff_t, bool*>(rows.data(), 64, 3, to.data(), 700, &non_finite);
        EXPECT_EQ(non_finite, special != 0.f && at % 64 < 48);
        for (std::size_t k = 0; k < 32; ++k)
          for (std::size_t d = 0; d < 48; ++d)
            EXPECT_EQ(to[d / 16 * 700 + d % 16 * 32 + k].bits, rows[k * 64 + d].bits) << k << ", " << d;
      });
      rows[at] = before;
    }
}

}  // namespace
