// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/mask/block_sparse.hpp>
#include <mha/policy/mask/positional.hpp>

#include "../tiles.hpp"
#include "random.hpp"
#include "scratch.hpp"

namespace {

using mha::BlockSparse;
using mha::BlockSparseView;
using mha::CallShape;
using mha_test::Promise;
using Map = std::vector<std::uint8_t>;

BlockSparseView sparse(int block, int query_blocks, int key_blocks, const Map& map) {
  return {.block = block, .query_blocks = query_blocks, .key_blocks = key_blocks, .map = map};
}

TEST(Divisor, DividesEveryPosition) {
  support::Random random("divisor");
  constexpr int most = std::numeric_limits<int>::max();
  for (int i = 0; i < 3000; ++i) {
    const int d = i < 300 ? i + 1 : i < 330 ? 1 << (i - 300) : i < 331 ? most : 1 + random.below(most);
    const mha::detail::Divisor by(d);
    const int multiple = most / d * d;
    for (const int n : {0, 1, d - 1, d, multiple - 1, multiple, most - 1, most, random.below(most), random.below(5000)})
      ASSERT_EQ(by.quotient(n), n / d) << n << " / " << d;
  }
}

TEST(BlockSparse, ShowsThePairsOfItsBlocks) {
  const Map map{1, 0, 0,  //
                0, 9, 1};
  const auto mask = sparse(2, 2, 3, map).prepared({.batch = 1, .heads = 4, .queries = 4, .keys = 6, .origin = 0});
  const char* const shown[4] = {"110000", "110000", "001111", "001111"};
  for (int h = 0; h < 4; ++h)
    for (int q = 0; q < 4; ++q)
      for (int k = 0; k < 6; ++k) EXPECT_EQ(mask(0, h, q, k), shown[q][k] == '1') << h << ' ' << q << ' ' << k;
  for (int k = 0; k < 6; ++k) EXPECT_FALSE(mask(0, 0, -1, k)) << "nothing is read before position 0";
}

TEST(BlockSparse, AMapPerHeadIsReadPerHead) {
  const Map map{1, 0, 0, 1};  // (2, 1, 2)
  const auto mask = sparse(3, 1, 2, map).prepared({.batch = 1, .heads = 2, .queries = 3, .keys = 5, .origin = 0});
  EXPECT_EQ(mask.head_stride, 2);
  for (int k = 0; k < 5; ++k) {
    EXPECT_EQ(mask(0, 0, 1, k), k < 3);
    EXPECT_EQ(mask(0, 1, 1, k), k >= 3);
  }
}

TEST(BlockSparse, ClassifiesEveryTileExactly) {
  support::Random random("block sparse");
  for (int block = 1; block <= 6; ++block)
    for (const int map_heads : {1, 2})
      for (const int origin : {-3, 0, 2})
        for (const double density : {0.2, 0.8}) {
          const CallShape s{.batch = 1, .heads = 2, .queries = 6, .keys = 6, .origin = origin};
          const int query_blocks = (origin + s.queries + block - 1) / block, key_blocks = (s.keys + block - 1) / block;
          Map map(static_cast<std::size_t>(map_heads * query_blocks * key_blocks));
          for (auto& bit : map) bit = random.chance(density) ? 1 : 0;
          const auto view = sparse(block, query_blocks, key_blocks, map).prepared(s);
          ASSERT_TRUE(mha_test::tiles_are(Promise::exact, view, s)) << "block " << block << ", origin " << origin;
          EXPECT_EQ(view.head_stride, map_heads == 1 ? 0 : query_blocks * key_blocks);
        }
}

TEST(BlockSparse, OneHeadTakesOneMap) {
  const Map map{1, 0};
  const auto mask = sparse(1, 1, 2, map).prepared({.batch = 1, .heads = 1, .queries = 1, .keys = 2, .origin = 0});
  EXPECT_TRUE(mask(0, 0, 0, 0));
  EXPECT_FALSE(mask(0, 0, 0, 1));
}

std::string refusal(const BlockSparseView& mask, const CallShape& s) {
  return mha_test::message_of<mha::ShapeError>([&] { mask.prepared(s); });
}

TEST(BlockSparse, WantsAMapOfTheRightSize) {
  const Map six(6), five(5), twenty_four(24);
  const CallShape s{.batch = 1, .heads = 4, .queries = 4, .keys = 6, .origin = 0};
  EXPECT_EQ(refusal(sparse(2, 2, 3, six), s), "");
  EXPECT_EQ(refusal(sparse(2, 2, 3, twenty_four), s), "");
  EXPECT_EQ(refusal(sparse(2, 2, 3, five), s),
            "BlockSparse: the map has 5 elements for 2 x 3 blocks and 4 heads: give 6 or 24");
  EXPECT_EQ(refusal(sparse(0, 2, 3, six), s), "BlockSparse: block is 0, it must be at least 1");
  EXPECT_EQ(refusal(sparse(-2, 2, 3, six), s), "BlockSparse: block is -2, it must be at least 1");
  EXPECT_EQ(refusal({.block = 2, .query_blocks = 2, .key_blocks = 3, .map = {nullptr, 6}}, s),
            "BlockSparse: the data of 6 elements is null");
  EXPECT_EQ(refusal(sparse(2, -2, -3, six), s),
            "BlockSparse: the map has -2 x -3 blocks, both numbers must be at least 0")
      << "two negative counts have a positive product";
  constexpr mha::Index most = std::numeric_limits<mha::Index>::max();
  EXPECT_EQ(refusal(sparse(1, most, most, six), s),
            "BlockSparse: the map is (4, 2147483647, 2147483647), more than 36028797018963967 elements, an empty axis "
            "counted as 1");
  const BlockSparse owned({.block = 2, .query_blocks = 2, .key_blocks = 3}, five);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { owned.check(4); }),
            "BlockSparse: the map has 5 elements for 2 x 3 blocks and 4 heads: give 6 or 24");
}

TEST(BlockSparse, NamesANumberThatIsNoIndex) {
  const auto said = [](long long block, long long queries, long long keys) {
    return mha_test::message_of<mha::ShapeError>(
        [&] { static_cast<void>(BlockSparse::Blocks{.block = block, .query_blocks = queries, .key_blocks = keys}); });
  };
  constexpr long long many = 1LL << 31;
  const std::string largest = " is 2147483648, the largest is 2147483647";
  EXPECT_EQ(said(many, 1, 1), "BlockSparse: block" + largest);
  EXPECT_EQ(said(1, many, 1), "BlockSparse: query_blocks" + largest);
  EXPECT_EQ(said(1, 1, many), "BlockSparse: key_blocks" + largest);
}

TEST(BlockSparse, WantsAMapThatCoversTheCall) {
  const Map six(6);
  const auto call = [](int queries, int keys, int origin) {
    return CallShape{.batch = 2, .heads = 1, .queries = queries, .keys = keys, .origin = origin};
  };
  EXPECT_EQ(refusal(sparse(2, 2, 3, six), call(4, 5, 0)), "") << "a last block may be cut";
  EXPECT_EQ(refusal(sparse(2, 2, 3, six), call(4, 7, 0)),
            "BlockSparse: the map covers 3 blocks of 2 keys but the call has 7 keys");
  EXPECT_EQ(refusal(sparse(2, 2, 3, six), call(3, 6, 2)),
            "BlockSparse: the map covers 2 blocks of 2 queries but the last query is at position 4");
  EXPECT_EQ(refusal(sparse(2, 2, 3, six), call(9, 6, -5)), "");
}

TEST(BlockSparse, ALayersMaskOwnsItsMapAndSharesItWithCopies) {
  std::optional<BlockSparse> first;
  first.emplace(BlockSparse::Blocks{.block = 2, .query_blocks = 1, .key_blocks = 2}, Map{0, 1});
  const BlockSparse copy = *first;
  first.reset();
  EXPECT_FALSE(copy(0, 0, 0, 1));
  EXPECT_TRUE(copy(0, 0, 0, 2));
  EXPECT_EQ(copy.tile(0, 0, 0, 2, 0, 4), mha::TileVisibility::partial);
  EXPECT_EQ(copy.tile(0, 0, 0, 2, 2, 4), mha::TileVisibility::full);
  EXPECT_EQ(copy.tile(0, 0, 0, 2, 0, 2), mha::TileVisibility::none);
  const CallShape s{.batch = 1, .heads = 2, .queries = 2, .keys = 4, .origin = 0};
  const auto ready = mha::prepared(copy, s);
  static_assert(std::is_same_v<std::remove_const_t<decltype(ready)>, BlockSparseView>);
  EXPECT_TRUE(mha_test::tiles_are(Promise::exact, ready, s));
  EXPECT_THROW(copy.prepared({.batch = 1, .heads = 2, .queries = 2, .keys = 5, .origin = 0}), mha::ShapeError);
}

TEST(BlockSparse, TheBlockMayBeSetLater) {
  const Map map{1, 0, 0, 1};
  auto mask = sparse(2, 2, 2, map);
  mask.block = 1;
  const auto ready = mask.prepared({.batch = 1, .heads = 1, .queries = 2, .keys = 2, .origin = 0});
  for (int q = 0; q < 2; ++q)
    for (int k = 0; k < 2; ++k) EXPECT_EQ(ready(0, 0, q, k), q == k);
}

TEST(BlockSparse, HandsOutItsDataToBeMoved) {
  const Map map{1}, elsewhere{0};
  const auto moved = mha::with_data(sparse(4, 1, 1, map), [&](const mha::Borrowed<std::uint8_t>& data) {
    EXPECT_EQ(data.data, map.data());
    return mha::Borrowed<std::uint8_t>(elsewhere);
  });
  EXPECT_FALSE(moved(0, 0, 0, 0));
  EXPECT_EQ(moved.block.value, 4);
}

TEST(BlockSparse, ComposesWithOthers) {
  const Map map{1, 0, 1, 1};
  const CallShape s{.batch = 1, .heads = 1, .queries = 5, .keys = 5, .origin = 0};
  const auto mask = mha::prepared(mha::Causal{} && !sparse(3, 2, 2, map), s);
  EXPECT_TRUE(mha_test::tiles_are(Promise::honest, mask, s));
  EXPECT_FALSE(mask(0, 0, 2, 1));
}

TEST(BlockSparse, OnlyTheViewBorrows) {
  static_assert(mha::Mask<BlockSparse> && !mha::Borrows<BlockSparse>);
  static_assert(mha::Mask<BlockSparseView> && mha::Borrows<BlockSparseView> &&
                std::is_trivially_copyable_v<BlockSparseView>);
}

}  // namespace
