// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/systolic/kernels.hpp>
#include <mha/backend/systolic/tile_product.hpp>

namespace {

namespace systolic = mha::detail::systolic;
using mha::Index;

TEST(TileUse, CountsWholeBlocksAndWhatIsLeft) {
  const systolic::Kernels kernels =
      systolic::kernels_of<>(systolic::attention_unit<mha::AmxArray>(), mha::current_isa());
  constexpr Index queries = 5, dim = 40, value_dim = 24;
  const mha::ArrayMeter meter;
  systolic::TileUse use(kernels, queries, dim, value_dim);
  use.keys(systolic::key_block);
  use.keys(systolic::key_block);
  use.keys(7);
  use.values(systolic::value_block);
  use.values(7);
  EXPECT_EQ(meter.use().useful, 0) << "before it is counted";
  use.count();
  EXPECT_EQ(meter.use().useful,
            queries * (Index{2 * systolic::key_block + 7} * dim + Index{systolic::value_block + 7} * value_dim));
}

}  // namespace
