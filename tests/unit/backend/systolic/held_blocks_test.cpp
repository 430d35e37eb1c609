// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/held_blocks.hpp>
#include <mha/cache/any_kv.hpp>
#include <mha/cache/ring_kv.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/mask.hpp>

namespace {

using mha::Index;
using mha::detail::systolic::HeldBlocks;

/// What HeldBlocks asks of a call.
struct Call {
  mha::detail::AnyKv<float> kv;
  mha::CallShape shape;
  Index keys(Index b) const { return kv.keys(b); }
};

std::vector<Index> keys_of(const HeldBlocks& blocks, Index b) {
  std::vector<Index> keys;
  for (Index i = 0; i < blocks.count(b); ++i) keys.push_back(blocks.key(b, i));
  return keys;
}

using Keys = std::vector<Index>;

TEST(HeldBlocks, AreAllOfASourceThatDropsNothing) {
  const mha::Tensor<float, 4> rows(3, 700, 1, 1);
  const std::vector<Index> lengths{513, 0, 256};
  const mha::ContiguousKv<float> source{rows.view(), rows.view(), {}, lengths};
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const HeldBlocks blocks(Call{mha::detail::AnyKv<float>(source), {3, 1, 1, 513, 0}}, frame);
  EXPECT_EQ(keys_of(blocks, 0), (Keys{0, 256, 512}));
  EXPECT_EQ(keys_of(blocks, 1), Keys{});
  EXPECT_EQ(keys_of(blocks, 2), Keys{0});
  EXPECT_EQ(blocks.most(), 3);
  EXPECT_EQ(blocks.all(), 4);
  EXPECT_EQ(blocks.before(2), 3);
  for (Index block = 0; block < 4; ++block) EXPECT_EQ(blocks.sequence_of(block), block < 3 ? 0 : 2) << "1 has none";
  EXPECT_EQ(blocks.from(0, 512), 2);
  EXPECT_EQ(blocks.from(0, 4096), 3);
  EXPECT_EQ(blocks.room(), 3) << "700 rows";
  EXPECT_EQ(blocks.room_of_all(), 9);
}

TEST(HeldBlocks, LeaveOutWhatARingHasDropped) {
  const mha::Tensor<float, 4> rows(3, 600, 1, 1);
  const std::vector<Index> lengths{100000, 300, 900};
  const mha::RingKv<float> source{rows.view(), rows.view(), lengths, 5};
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const HeldBlocks blocks(Call{mha::detail::AnyKv<float>(source), {3, 1, 1, 100000, 0}}, frame);
  // Positions 0 … 4 and the last 595.
  EXPECT_EQ(keys_of(blocks, 0), (Keys{0, 99328, 99584, 99840}));
  EXPECT_EQ(keys_of(blocks, 1), (Keys{0, 256}));
  EXPECT_EQ(keys_of(blocks, 2), (Keys{0, 256, 512, 768}));
  EXPECT_EQ(blocks.most(), 4);
  EXPECT_EQ(blocks.all(), 10);
  EXPECT_EQ(blocks.from(0, 4096), 1);
  EXPECT_EQ(blocks.from(0, 99328), 1);
  EXPECT_EQ(blocks.from(0, 99328 + 256), 2);
  EXPECT_EQ(blocks.from(0, 102400), 4);
  EXPECT_EQ(blocks.room(), 5) << "at its worst place a ring of 600 rows holds";
  EXPECT_EQ(blocks.room_of_all(), 15);
}

}  // namespace
