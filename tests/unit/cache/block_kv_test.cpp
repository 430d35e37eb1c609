// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/block_kv.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/mask/first_keys.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/positional.hpp>

#include "scratch.hpp"

namespace {

using mha::Index;
using mha::detail::BlockKv;

static_assert(mha::KvSource<BlockKv<float, false>> && mha::KvSource<BlockKv<float, true>>);
static_assert(!mha::DropsKeys<BlockKv<float, false>> && mha::DropsKeys<BlockKv<float, true>>);

float number(Index block, Index row, Index g) { return static_cast<float>(100 * block + 10 * g + row); }

struct Memory {
  mha::Tensor<float, 4> key{3, 9, 2, 1}, value{3, 9, 2, 2};
  Memory() {
    for (Index block = 0; block < 3; ++block)
      for (Index row = 0; row < 9; ++row)
        for (Index g = 0; g < 2; ++g) {
          key(block, row, g, 0) = number(block, row, g);
          value(block, row, g, 0) = -number(block, row, g);
          value(block, row, g, 1) = 1000;
        }
  }
};

TEST(BlockKv, ReadsTheBlocksOfItsSequences) {
  const Memory memory;
  const std::vector<Index> blocks{2, 0}, lengths{9, 4};
  const BlockKv<float, false> kv{memory.key.view(), memory.value.view(), blocks, lengths};
  EXPECT_EQ(kv.batch(), 2);
  EXPECT_EQ(kv.keys(1), 4);
  const auto run = kv.run(0, 1, 3, 9);
  EXPECT_EQ(run.count, 6);
  for (Index i = 0; i < 6; ++i) {
    EXPECT_EQ(run.key[i * run.key_stride], number(2, 3 + i, 1));
    EXPECT_EQ(run.value[i * run.value_stride], -number(2, 3 + i, 1));
  }
  EXPECT_EQ(*kv.run(1, 0, 2, 4).key, number(0, 2, 0));
  EXPECT_EQ(kv.run(1, 0, 2, 30).count, 7) << "rows behind the end, as many as there are";
  EXPECT_EQ(kv.in_block(0, 7).block, 2);
  EXPECT_EQ(kv.in_block(0, 7).position, 7);
  EXPECT_EQ(kv.room().keys, 9);
  EXPECT_EQ(kv.room().all, 2 * 9) << "of the two sequences, whatever the blocks";
}

// Nine rows, of which the first two stay: a ring of seven.
TEST(BlockKv, TurnsBehindTheFirstPositions) {
  const Memory memory;
  const std::vector<Index> blocks{1, 1, 2}, lengths{30, 12, 5}, oldest{23, 6, 0};
  const BlockKv<float, true> kv{memory.key.view(), memory.value.view(), blocks, lengths, oldest, 2};
  const auto row_of = [](Index p) { return p < 2 ? p : 2 + (p - 2) % 7; };
  for (Index b = 0; b < 3; ++b)
    for (Index begin = 0; begin < lengths[static_cast<std::size_t>(b)]; ++begin) {
      const Index end = lengths[static_cast<std::size_t>(b)], old = oldest[static_cast<std::size_t>(b)];
      const bool kept = begin < 2 || begin >= old;
      EXPECT_EQ(kv.held(b, begin), kept ? begin : old);
      if (!kept) continue;
      EXPECT_EQ(kv.held_end(b, begin), begin < 2 && old > 2 ? 2 : end);
      const auto run = kv.run(b, 1, begin, end);
      ASSERT_GE(run.count, 1);
      ASSERT_LE(run.count, end - begin);
      for (Index i = 0; i < run.count; ++i) {
        EXPECT_EQ(run.key[i * run.key_stride], number(blocks[static_cast<std::size_t>(b)], row_of(begin + i), 1));
        EXPECT_EQ(run.value[i * run.value_stride], -number(blocks[static_cast<std::size_t>(b)], row_of(begin + i), 1));
      }
    }
}

// Of tiles the rows that stay are filled up to whole ones: position 2 goes round, in row 4 at first.
TEST(BlockKv, TurnsBehindTheRowsThatStay) {
  const Memory memory;
  const std::vector<Index> blocks{1}, lengths{14}, oldest{9};
  const BlockKv<float, true> kv{memory.key.view(), memory.value.view(), blocks, lengths, oldest, 2, 4};
  EXPECT_EQ(kv.held(0, 1), 1);
  EXPECT_EQ(kv.held(0, 2), 9);
  for (Index p = 9; p < 14; ++p) EXPECT_EQ(*kv.run(0, 0, p, 14).key, number(1, 4 + (p - 4) % 5, 0)) << p;
}

TEST(BlockKv, RefusesAMaskThatMayShowWhatWasWrittenOver) {
  const Memory memory;
  const std::vector<Index> blocks{0, 1, 2}, lengths{9, 12, 30}, oldest{0, 5, 23}, offsets{0, 4, 7, 7};
  const BlockKv<float, true> kv{memory.key.view(), memory.value.view(), blocks, lengths, oldest, 2};
  const std::vector<Index> origins{5, 9, 30};
  const mha::CallShape shape{.batch = 3,
                             .heads = 2,
                             .queries = 4,
                             .keys = 30,
                             .origin = mha::Origins(origins.data()),
                             .query_offsets = offsets.data()};
  const auto refusal = [&](const auto& mask) {
    return mha_test::message_of<mha::ShapeError>([&] { kv.require_hidden("call", mask, shape); });
  };
  EXPECT_EQ(refusal(mha::Full{}),
            "call: the mask may show positions 2 to 4, which the Ring has dropped, to the queries from position 9 on: "
            "use a mask that hides them, such as SlidingWindow or one of your own with a member tile, or a Ring with a "
            "larger left");
  EXPECT_NE(refusal(mha::SlidingWindow{.left = 5}), "");  // the query at 9 sees position 4
  // Nothing of the first sequence is gone, and the last has no query.
  EXPECT_EQ(refusal(mha::SlidingWindow{.left = 4}), "");
  EXPECT_EQ(refusal(mha::SlidingWindow{.left = 4} || mha::FirstKeys{.count = 2}), "");
  EXPECT_NE(refusal(mha::SlidingWindow{.left = 4} || mha::FirstKeys{.count = 3}), "");
}

struct OneHeadSeesAll {
  Index head;
  bool operator()(Index, Index h, Index q, Index k) const { return k <= q && (h == head || k + 4 >= q); }
  mha::TileVisibility tile(Index, Index h, Index q_begin, Index, Index, Index k_end) const {
    return h != head && k_end + 4 <= q_begin ? mha::TileVisibility::none : mha::TileVisibility::partial;
  }
};

TEST(BlockKv, AsksTheMaskOfEveryHeadAndEverySequenceWithQueries) {
  const Memory memory;
  const std::vector<Index> blocks{0, 1}, lengths{12, 12}, oldest{5, 5}, offsets{0, 0, 2};
  const BlockKv<float, true> kv{memory.key.view(), memory.value.view(), blocks, lengths, oldest, 2};
  const std::vector<Index> origins{0, 10};
  const mha::CallShape shape{.batch = 2,
                             .heads = 3,
                             .queries = 2,
                             .keys = 12,
                             .origin = mha::Origins(origins.data()),
                             .query_offsets = offsets.data()};
  const auto hides = [&](const auto& mask) {
    return mha_test::message_of<mha::ShapeError>([&] { kv.require_hidden("call", mask, shape); }).empty();
  };
  for (const Index head : {0, 1, 2}) EXPECT_FALSE(hides(OneHeadSeesAll{head})) << head;
  EXPECT_TRUE(hides(OneHeadSeesAll{3})) << "the first sequence, at whose origin all is seen, has no query";
}

// The host may not read what a mask has in the memory of a device: such a mask may show anything, beside another one
// that hides what is gone it is of no matter.
TEST(BlockKv, AsksNoMaskThatIsOnADevice) {
  const Memory memory;
  const std::vector<Index> blocks{0, 1}, lengths{9, 12}, oldest{0, 5};
  const BlockKv<float, true> kv{memory.key.view(), memory.value.view(), blocks, lengths, oldest, 2};
  const mha::CallShape shape{.batch = 2, .heads = 1, .queries = 2, .keys = 12, .origin = 10};
  const auto hides = [&](const auto& mask) {
    return mha_test::message_of<mha::ShapeError>([&] { kv.require_hidden("call", mask, shape); }).empty();
  };
  const auto* const nowhere = reinterpret_cast<const Index*>(std::uintptr_t{64});
  const mha::Padding far{mha::Borrowed<Index>(nowhere, 2, mha::Memory::device)};
  const mha::SlidingWindow window{.left = 4}, wide{.left = 9};
  EXPECT_FALSE(hides(far));
  EXPECT_FALSE(hides(!far));
  EXPECT_TRUE(hides(far && window));
  EXPECT_TRUE(hides(window && far));
  EXPECT_TRUE(hides(far && (window && far)));
  EXPECT_FALSE(hides(far && wide));
  EXPECT_FALSE(hides(far || window));
  EXPECT_TRUE(hides((far || mha::Full{}) && window));
  const std::vector<Index> two(2);  // on the host a mask's data is read
  EXPECT_TRUE(hides(mha::Padding{two}));
}

}  // namespace
