// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/amx_steps.hpp>
#include <mha/backend/systolic/tile_product.hpp>

#include "random.hpp"

namespace {

#if defined(__x86_64__)
namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;

/// Products of any count of tiles and any depth, new and on top of sums, leave the bits of AmxProduct when they are
/// computed in steps, and nothing beside them.
TEST(AmxSteps, HaveTheBitsOfWholeProducts) {
  if (!mha::missing(mha::MatrixUnit::amx).empty()) GTEST_SKIP() << mha::missing(mha::MatrixUnit::amx);
  constexpr Index lanes = systolic::AmxProduct::lanes;
  support::Random random("steps");
  std::vector<bfloat16> a(20 * systolic::tile_size);
  std::vector<std::uint32_t> b(4 * 2 * systolic::tile_words);
  for (bfloat16& x : a) x = bfloat16(static_cast<float>(random.normal()));
  for (std::uint32_t& x : b) x = bfloat16(static_cast<float>(random.normal())).bits * 0x10001u;
  struct Shape {
    Index tiles, steps;
    bool add;
  };
  const std::vector<Shape> shapes = {{2, 2, false}, {1, 3, true}, {5, 1, true}, {3, 4, false}, {4, 2, true}};
  const auto products = [&](std::vector<std::vector<float>>& sums) {
    std::vector<systolic::TileProduct> all;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Shape& of = shapes[i];
      sums.emplace_back((of.tiles + 1) * systolic::tile_side * lanes, 0.5f);
      all.push_back(
          {a.data() + 8 * i, of.steps * systolic::tile_size, b.data(), sums.back().data(), of.tiles, of.steps, of.add});
    }
    return all;
  };
  std::vector<std::vector<float>> expected, is;
  expected.reserve(shapes.size());
  is.reserve(shapes.size());
  const systolic::UnitScope scope(mha::MatrixUnit::amx);
  for (const auto& product : products(expected)) systolic::AmxProduct::run(product);
  const auto all = products(is);
  systolic::AmxSteps steps(all.data(), static_cast<Index>(all.size()));
  EXPECT_EQ(steps.left(), 4 + 3 + 5 + 12 + 8);
  for (int i = 0; i < 9; ++i) steps.run();
  EXPECT_EQ(steps.left(), 32 - 9);
  steps.finish();
  EXPECT_EQ(steps.left(), 0);
  for (std::size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(is[i], expected[i]) << i;
}

/// Sums that wait in tiles are stored before a product adds to the same ones.
TEST(AmxSteps, AddToSumsThatWait) {
  if (!mha::missing(mha::MatrixUnit::amx).empty()) GTEST_SKIP() << mha::missing(mha::MatrixUnit::amx);
  constexpr Index lanes = systolic::AmxProduct::lanes;
  support::Random random("the same sums");
  std::vector<bfloat16> a(6 * systolic::tile_size);
  std::vector<std::uint32_t> b(2 * 2 * systolic::tile_words);
  for (bfloat16& x : a) x = bfloat16(static_cast<float>(random.normal()));
  for (std::uint32_t& x : b) x = bfloat16(static_cast<float>(random.normal())).bits * 0x10001u;
  const systolic::UnitScope scope(mha::MatrixUnit::amx);
  for (const auto& tiles : {std::vector<Index>{2, 2}, {3, 1}, {1, 3}, {1, 1, 2}}) {
    std::vector<float> expected(4 * systolic::tile_side * lanes, 0.5f), is = expected;
    std::vector<systolic::TileProduct> all;
    for (const Index n : tiles) {
      all.push_back({a.data(), 2 * systolic::tile_size, b.data(), expected.data(), n, 2, true});
      systolic::AmxProduct::run(all.back());
      all.back().c = is.data();
    }
    systolic::AmxSteps steps(all.data(), static_cast<Index>(all.size()));
    steps.run();
    steps.finish();
    EXPECT_EQ(is, expected);
  }
}

TEST(AmxSteps, OfNothingAreNone) {
  if (!mha::missing(mha::MatrixUnit::amx).empty()) GTEST_SKIP() << mha::missing(mha::MatrixUnit::amx);
  const systolic::UnitScope scope(mha::MatrixUnit::amx);
  systolic::AmxSteps steps(nullptr, 0);
  EXPECT_EQ(steps.left(), 0);
  steps.finish();
}
#endif

}  // namespace
