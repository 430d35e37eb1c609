// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <gtest/gtest.h>

#include <mha/backend/simd/key_chunks.hpp>
#include <mha/backend/systolic/tiles.hpp>

namespace {

namespace simd = mha::detail::simd;
using mha::Index;
constexpr Index chunk = simd::key_chunk;

/// Two sequences that hold some of their keys.
struct Call {
  struct Shape {
    Index batch = 2, keys = 10 * chunk;
  } shape;
  struct Source {
    bool some = true;
    bool drops() const { return some; }
    /// Sequence 0 holds its first key and those from the middle of chunk 6 on, sequence 1 nothing.
    Index held(Index b, Index begin, Index end) const {
      if (begin >= end || (b == 0 && begin == 0)) return begin;
      return b == 1 ? end : std::clamp(6 * chunk + chunk / 2, begin, end);
    }
  } kv;
  Index keys(Index b) const { return b == 0 ? 8 * chunk + 1 : 3 * chunk; }
};

TEST(KeyChunks, AreWholeBlocksOfEveryBackend) {
  EXPECT_EQ(chunk % mha::detail::systolic::value_block, 0);
  EXPECT_EQ(simd::all_chunks(0), 1);
  EXPECT_EQ(simd::all_chunks(chunk), 1);
  EXPECT_EQ(simd::all_chunks(chunk + 1), 2);
}

TEST(KeyChunks, AreLongerFromSomeKeyOn) {
  constexpr Index first = simd::short_chunks * chunk, step = simd::long_chunk;
  EXPECT_EQ(step % mha::detail::systolic::value_block, 0);
  EXPECT_EQ(simd::chunk_begin(simd::short_chunks), first);
  EXPECT_EQ(simd::chunk_begin(simd::short_chunks + 3), first + 3 * step);
  EXPECT_EQ(simd::all_chunks(first), simd::short_chunks);
  EXPECT_EQ(simd::all_chunks(first + 1), simd::short_chunks + 1);
  EXPECT_EQ(simd::all_chunks(first + step + 1), simd::short_chunks + 2);
  for (Index key = 0, n = 0; key < first + 3 * step; ++key) {
    if (key == simd::chunk_begin(n + 1)) ++n;
    ASSERT_EQ(simd::chunk_of(key), n) << key;
  }
}

TEST(KeyChunks, EndWithTheKeys) {
  EXPECT_EQ(simd::chunk_end(0, 5), 5);
  EXPECT_EQ(simd::chunk_end(1, 3 * chunk), 2 * chunk);
  EXPECT_EQ(simd::chunk_end(2, 2 * chunk + 1), 2 * chunk + 1);
  constexpr Index most = mha::detail::longest_axis;
  EXPECT_EQ(simd::chunk_end(simd::chunk_of(most - 1), most), most);
}

TEST(KeyChunks, ThatAreDroppedAreLeftOut) {
  Call call;
  const Index held[] = {0, 6, 7, 8};
  for (Index n = 0; n < 4; ++n) EXPECT_EQ(simd::held_chunk(call, 0, n), held[n]);
  EXPECT_EQ(simd::held_chunk(call, 0, 4), 9);
  EXPECT_EQ(simd::held_chunk(call, 1, 0), 3);
  EXPECT_EQ(simd::most_chunks(call), 4);
  call.kv.some = false;
  EXPECT_EQ(simd::held_chunk(call, 0, 3), 3);
  EXPECT_EQ(simd::most_chunks(call), 10);
}

TEST(KeyChunks, AreSharedWhereTilesAreFew) {
  EXPECT_TRUE(simd::too_few_tiles(7, 2));
  EXPECT_FALSE(simd::too_few_tiles(8, 2));
  EXPECT_EQ(simd::explain_chunks(3), ", which can share the keys in 3 chunks");
}

}  // namespace
