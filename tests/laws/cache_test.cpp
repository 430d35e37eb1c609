// SPDX-License-Identifier: Apache-2.0
// One row, one answer: what a layer gives through a cache has the bits of layer(x), however the rows came in.

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

// Beyond chunks of keys, at whose ends calls merge; a ring has dropped its first chunk except for the first positions.
template <class T> Events across_chunks(unsigned seed) {
  constexpr Index chunk = mha::detail::simd::key_chunk, left = chunk + 150, length = 2 * chunk + 600;
  mha::MultiHeadAttention<T, mha::Cpu, mha::GroupedQuery<2>, mha::Causal> layer(config);
  layer.initialize(mha::XavierUniform{.seed = seed});
  Events events = through_every_storage<T>(layer, length, seed, {64, 256});
  mha::MultiHeadAttention<T, mha::Cpu, mha::GroupedQuery<2>, Windowed> windowed(config, window(left));
  windowed.initialize(mha::XavierUniform{.seed = seed});
  return events += one_answer<T>(windowed, Ring{.left = left, .rows = 300, .first = 3}, length, seed, ByTheCall{});
}

TEST(Cache, GivesTheBitsOfTheWholeCallAcrossChunksOfKeys) {
  Events events;
  laws::at_every_isa([&] {
    events += across_chunks<float>(5);
    events += across_chunks<mha::bfloat16>(6);
  });
  EXPECT_GT(events.copies_on_write, 0);
  EXPECT_GT(events.large_chunks, 5);
}

}  // namespace
