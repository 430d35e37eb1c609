// SPDX-License-Identifier: Apache-2.0
// One row, one answer: what a layer gives through a cache has the bits of layer(x), however the rows came in.
#include <vector>

#include "cache_law.hpp"

namespace {

using namespace laws::cached;

TEST(Cache, GivesTheBitsOfTheWholeCallOnCpu) {
  Events events;
  laws::at_every_isa([&] {
    events += every_storage_and_rings<float, mha::Cpu>(150, 1, {16, 32, 64});
    events += every_storage_and_rings<mha::bfloat16, mha::Cpu>(150, 2, {16, 32, 64});
  });
  EXPECT_GT(events.copies_on_write, 0);
  EXPECT_GT(events.beams_taken_twice, 0);
}

// A prompt in pieces of which some are longer than the kernels' blocks of queries.
TEST(Cache, GivesTheBitsOfTheWholeCallByLargePieces) {
  Events events;
  laws::at_every_isa([&] { events += every_storage_and_rings<float, mha::Cpu>(900, 3, {32, 256}); });
  EXPECT_GT(events.copies_on_write, 0);
  EXPECT_GT(events.large_chunks, 5);
}

TEST(Cache, GivesTheBitsOfTheWholeCallAcrossChunksOfKeys) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal> layer(config);
  layer.initialize(mha::XavierUniform{.seed = 5});
  Events events;
  laws::at_every_isa([&] { events += through_every_storage<float>(layer, 4200, 5, {64, 256}); });
  EXPECT_GT(events.copies_on_write, 0);
  EXPECT_GT(events.large_chunks, 5);
}

}  // namespace
