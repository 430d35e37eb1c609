// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/product_unit.hpp>
#include <mha/backend/systolic/tile_product.hpp>

#include "compare.hpp"
#include "random.hpp"
#include "units.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;

class TileProduct : public testing::TestWithParam<mha::MatrixUnit> {
 protected:
  void SetUp() override { UNIT_OR_SKIP(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Units, TileProduct, testing::ValuesIn(systolic::all_units), unit::unit_name);

/// These units, and theirs of fewer lanes.
std::vector<systolic::ProductUnit> of_all_lanes(const std::vector<systolic::ProductUnit>& units) {
  std::vector<systolic::ProductUnit> all;
  for (const auto& unit : units)
    for (const systolic::ProductUnit* some = &unit; some != nullptr; some = some->fewer) all.push_back(*some);
  return all;
}

/// c of `lanes` columns, computed by definition from the packed operands.
double element(const std::vector<bfloat16>& a, std::ptrdiff_t tile_stride, std::ptrdiff_t step_stride,
               std::ptrdiff_t row_stride, const std::vector<std::uint32_t>& b, Index lanes, Index row, Index lane,
               Index steps, double& size) {
  double sum = 0;
  for (Index k = 0; k < 32 * steps; ++k) {
    const auto at =
        static_cast<std::size_t>(row / 16 * tile_stride + k / 32 * step_stride + row % 16 * row_stride + k % 32);
    const auto word = static_cast<std::size_t>((k / 32 * (lanes / 16) + lane / 16) * 256 + k % 32 / 2 * 16 + lane % 16);
    const double y = double(float(bfloat16::from_bits(static_cast<std::uint16_t>(b[word] >> (k % 2 * 16)))));
    sum += double(float(a[at])) * y;
    size += std::abs(double(float(a[at])) * y);
  }
  return sum;
}

TEST_P(TileProduct, MultipliesAndAdds) {
  const unit::ForceUnit force(GetParam());
  const systolic::UnitScope scope(GetParam());
  support::Random random("tile product");
  for (const auto& unit :
       of_all_lanes({systolic::attention_unit<mha::AmxArray>(), systolic::dense_unit<mha::AmxArray>()}))
    for (const Index tiles : {1, 2, 5})
      for (const Index steps : {1, 3})
        for (const auto& [add, in_rows] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
          const std::ptrdiff_t row_stride = in_rows ? steps * 32 + 10 : 32, step_stride = in_rows ? 32 : 512,
                               tile_stride = (in_rows ? 16 * row_stride : steps * 512) + 64;
          std::vector<bfloat16> a(static_cast<std::size_t>(tiles * tile_stride));
          std::vector<bfloat16> pairs(static_cast<std::size_t>(steps * 32 * unit.lanes));
          random.fill(a);
          random.fill(pairs);
          std::vector<std::uint32_t> b(pairs.size() / 2);
          for (std::size_t i = 0; i < b.size(); ++i)
            b[i] = pairs[2 * i].bits | std::uint32_t{pairs[2 * i + 1].bits} << 16;
          std::vector<float> c(static_cast<std::size_t>(tiles * 16 * unit.lanes) + 1);
          for (float& x : c) x = add ? static_cast<float>(random.normal()) : support::poison<float>();
          const std::vector<float> before = c;
          unit.multiply({a.data(), tile_stride, b.data(), c.data(), tiles, steps, add, step_stride, row_stride});
          for (Index row = 0; row < 16 * tiles; ++row)
            for (Index lane = 0; lane < unit.lanes; ++lane) {
              const auto at = static_cast<std::size_t>(row * unit.lanes + lane);
              double size = add ? std::abs(double(before[at])) : 0;
              double want = element(a, tile_stride, step_stride, row_stride, b, unit.lanes, row, lane, steps, size);
              if (add) want += double(before[at]);
              EXPECT_NEAR(double(c[at]), want, (32 * steps + 4) * 0x1p-24 * size) << row << ", " << lane;
            }
          EXPECT_EQ(support::bits(c.back()), support::bits(before.back())) << "beyond the last tile";
        }
}

/// Whether every row has the bits it has among all 16 of its tile, however many are wanted.
void expect_same_bits(const systolic::ProductUnit& unit, const char* name) {
  support::Random random(name);
  for (const Index tiles : {1, 2})
    for (const Index steps : {1, 4, 7})
      for (const bool add : {false, true}) {
        std::vector<bfloat16> a(static_cast<std::size_t>(tiles * steps * 512));
        std::vector<bfloat16> pairs(static_cast<std::size_t>(steps * 32 * unit.lanes));
        random.fill(a);
        random.fill(pairs);
        std::vector<std::uint32_t> b(pairs.size() / 2);
        for (std::size_t i = 0; i < b.size(); ++i)
          b[i] = pairs[2 * i].bits | std::uint32_t{pairs[2 * i + 1].bits} << 16;
        std::vector<float> before(static_cast<std::size_t>(tiles * 16 * unit.lanes));
        random.fill(before);
        std::vector<float> all = before;
        unit.multiply({a.data(), steps * 512, b.data(), all.data(), tiles, steps, add});
        for (Index rows = 16 * (tiles - 1) + 1; rows <= 16 * tiles; ++rows) {
          std::vector<float> some = before;
          unit.multiply({a.data(), steps * 512, b.data(), some.data(), tiles, steps, add, 512, 32, rows});
          for (std::size_t i = 0; i < static_cast<std::size_t>(rows * unit.lanes); ++i)
            ASSERT_EQ(support::bits(some[i]), support::bits(all[i])) << name << ", " << rows << " rows, element " << i;
        }
      }
}

TEST_P(TileProduct, ARowHasTheSameBitsAmongFewAndMany) {
  const unit::ForceUnit force(GetParam());
  const systolic::UnitScope scope(GetParam());
  expect_same_bits(systolic::dense_unit<mha::AmxArray>(), "dense");
  expect_same_bits(systolic::dense_unit<mha::TpuArray<128>>(), "a deeper array");
  for (const auto& unit : of_all_lanes({systolic::attention_unit<mha::AmxArray>()}))
    expect_same_bits(unit, "attention");
}

/// Rows beyond the last one wanted are not computed: of them c holds what it held.
TEST(DotProduct, ComputesTheRowsThatAreWantedAlone) {
  UNIT_OR_SKIP(mha::MatrixUnit::dot_product);
  const unit::ForceUnit force(mha::MatrixUnit::dot_product);
  support::Random random("rows wanted");
  for (const auto& unit :
       of_all_lanes({systolic::attention_unit<mha::AmxArray>(), systolic::dense_unit<mha::AmxArray>()}))
    for (const Index tiles : {1, 2})
      for (Index rows = 16 * (tiles - 1) + 1; rows <= 16 * tiles; ++rows)
        for (const bool add : {false, true}) {
          std::vector<bfloat16> a(static_cast<std::size_t>(tiles * 2 * 512));
          random.fill(a);
          const std::vector<std::uint32_t> b(static_cast<std::size_t>(2 * 16 * unit.lanes), 0x3f803f80u);
          std::vector<float> c(static_cast<std::size_t>(tiles * 16 * unit.lanes), 42.f);
          unit.multiply({a.data(), 2 * 512, b.data(), c.data(), tiles, 2, add, 512, 32, rows});
          const auto wanted = static_cast<std::size_t>(rows * unit.lanes);
          for (std::size_t i = 0; i < wanted; ++i) ASSERT_NE(c[i], 42.f) << rows << " rows, element " << i;
          for (std::size_t i = wanted; i < c.size(); ++i) ASSERT_EQ(c[i], 42.f) << rows << " rows, element " << i;
        }
}

}  // namespace
