// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/systolic/product_unit.hpp>
#include <mha/backend/systolic/tile_product.hpp>

#include "units.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::MatrixUnit;

class Units : public testing::TestWithParam<MatrixUnit> {
 protected:
  void SetUp() override { UNIT_OR_SKIP(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(ProductUnit, Units, testing::ValuesIn(systolic::all_units), unit::unit_name);

TEST_P(Units, AreThoseThatTheArrayHas) {
  const unit::ForceUnit force(GetParam());
  EXPECT_EQ(systolic::attention_unit<mha::AmxArray>().unit, GetParam());
  EXPECT_EQ(systolic::dense_unit<mha::AmxArray>().unit, GetParam());
  EXPECT_EQ(systolic::dense_unit<mha::AmxArray>().lanes, 32);
  EXPECT_EQ(systolic::attention_unit<mha::TpuArray<128>>().unit, MatrixUnit::portable) << "no hardware has this shape";
}

TEST_P(Units, GiveQueriesTheLeastLanesThatHoldThem) {
  const unit::ForceUnit force(GetParam());
  const systolic::ProductUnit all = systolic::attention_unit<mha::AmxArray>();
  for (mha::Index queries = 1; queries <= all.lanes; ++queries) {
    const systolic::ProductUnit& some = all.of_lanes(queries);
    EXPECT_EQ(some.unit, all.unit);
    EXPECT_GE(some.lanes, queries);
    EXPECT_TRUE(some.fewer == nullptr || some.fewer->lanes < queries) << queries << " queries in " << some.lanes;
  }
}

TEST(ProductUnit, EmulatesEveryOrderOfSums) {
  for (const auto order : {mha::SumOrder::chained, mha::SumOrder::split_chains, mha::SumOrder::pairs}) {
    const systolic::ProductUnit unit = systolic::emulated_unit(order);
    EXPECT_EQ(unit.unit, MatrixUnit::portable);
    EXPECT_EQ(unit.lanes, 32);
    EXPECT_EQ(unit.fewer, nullptr);
  }
}

}  // namespace
