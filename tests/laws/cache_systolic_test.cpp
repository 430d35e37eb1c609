// SPDX-License-Identifier: Apache-2.0
// One row, one answer, on each matrix unit of the machine.
#include <string>
#include <vector>

#include "cache_law.hpp"

namespace {

using namespace laws::cached;

using Unit = mha::Systolic<>;

TEST(Cache, GivesTheBitsOfTheWholeCallOnMatrixUnits) {
  on_every_unit([] {
    Events events = every_storage_and_rings<float, Unit>(330, 1, {16, 64});
    events += every_storage_and_rings<mha::bfloat16, Unit>(330, 2, {16, 64});
    events += every_storage_and_rings<mha::half, Unit>(330, 3, {64});
    EXPECT_GT(events.copies_on_write, 0);
  });
}

// The unit rounds keys and values to bfloat16, whoever stores them so: a layer of float or half has the bits of
// layer(x).
TEST(Cache, InBfloat16GivesTheBitsOfTheWholeCallOnMatrixUnits) {
  on_every_unit([] {
    every_storage_and_rings<float, Unit, mha::bfloat16>(330, 4, {16, 64});
    every_storage_and_rings<mha::half, Unit, mha::bfloat16>(200, 7, {64});
  });
}

TEST(Cache, GivesOneAnswerFromOtherScalarsOnMatrixUnits) {
  on_every_unit([] {
    every_storage_and_rings<float, Unit, mha::half>(200, 5, {64}, InOneStep<mha::half>{});
    every_storage_and_rings<mha::bfloat16, Unit, float>(200, 6, {64}, InOneStep<float>{});
  });
}

// Values in whole tiles and not, over several blocks of tiles, which a cache in bfloat16 keeps as the unit reads them.
template <class Mask> auto layer_of_tiles(Index value_dim, const Mask& mask) {
  mha::MultiHeadAttention<mha::bfloat16, Unit, mha::GroupedQuery<2>, Mask> layer(
      {.d_model = E, .num_heads = 4, .head_dim = 32, .value_dim = value_dim}, mask);
  layer.initialize(mha::XavierUniform{.seed = 11});
  return layer;
}

TEST(Cache, GivesTheBitsOfTheWholeCallFromTiles) {
  on_every_unit([] {
    Events events;
    for (const Index value_dim : {16, 33, 48}) {
      SCOPED_TRACE(value_dim);
      events += through_every_storage<mha::bfloat16>(layer_of_tiles(value_dim, mha::Causal{}), 560, 12, {64, 128, 256});
    }
    EXPECT_GT(events.copies_on_write, 0);
  });
}

TEST(Cache, GivesTheBitsOfTheWholeCallFromTilesOfARing) {
  on_every_unit([] {
    for (const Index value_dim : {16, 33}) {
      SCOPED_TRACE(value_dim);
      through_rings<mha::bfloat16>(layer_of_tiles(value_dim, window()), 900, 13);
    }
  });
}

}  // namespace
