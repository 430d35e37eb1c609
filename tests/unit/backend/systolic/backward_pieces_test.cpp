// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/backward_pieces.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "one_head.hpp"
#include "random.hpp"

namespace {

using mha::Index;
namespace systolic = mha::detail::systolic;
using One = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, mha::Serial>;

/// The tiles of c that products had, in order.
std::vector<Index>& multiplied() {
  static std::vector<Index> tiles;
  return tiles;
}
const systolic::ProductUnit noting{mha::MatrixUnit::portable, 32,
                                   [](const systolic::TileProduct& p) { multiplied().push_back(p.tiles); }};
systolic::TileProduct of_tiles(Index n) { return {nullptr, 0, nullptr, nullptr, n, 1, false}; }

TEST(WaitingProducts, AreComputedInOrderHoweverManyThereAre) {
  multiplied().clear();
  systolic::WaitingProducts waiting(true);
  std::vector<Index> expected;
  for (Index i = 0; i < 40; ++i) {
    waiting.add(noting, of_tiles(i));
    expected.push_back(i);
  }
  EXPECT_LT(multiplied().size(), 40u);
  waiting.run();
  EXPECT_EQ(multiplied(), expected);
  waiting.run();
  EXPECT_EQ(multiplied(), expected);
}

TEST(WaitingProducts, DoNotWaitWhereNoneCan) {
  multiplied().clear();
  systolic::WaitingProducts waiting(false);
  waiting.add(noting, of_tiles(3));
  EXPECT_EQ(multiplied(), std::vector<Index>{3});
}

/// One head, piece by piece or all queries against a piece of the keys in one go.
struct Head : support::OneHead<One> {
  Head() : OneHead(support::BackwardCase<float>("array, strips", {1, 700, 800, 1, 1, 72, 40})) {}

  void run(Index at_once) {
    const auto own = call();
    const auto kernels = systolic::backward_kernels_of<mha::AmxArray>();
    const systolic::AnyBackwardCall<float> any(own, kernels.level);
    const systolic::BackwardTiling tiling(kernels.product.lanes, 72, 40);
    mha::Workspace workspace;
    auto frame = workspace.frame();
    const systolic::BackwardMemory memory(frame, tiling, 700, 800, false, 0);
    const systolic::BackwardScratch scratch(frame, tiling.lanes, false, false, 0);
    const systolic::HeadBackward<float> head(any, kernels, tiling, memory, 0, 0);
    for (Index t = 0; t < head.tiles(); ++t) head.prepare_queries(t);
    for (Index m = 0; m < head.key_pieces(); ++m) head.prepare_keys(m);
    for (Index m = 0; m < head.key_pieces(); ++m)
      for (Index n = 0; n < head.query_pieces(); n += at_once)
        head.pieces(n, std::min(n + at_once, head.query_pieces()), m, scratch);
    for (Index t = 0; t < head.tiles(); ++t) head.store_queries(t);
    for (Index m = 0; m < head.key_pieces(); ++m) head.store_keys(m);
  }
};

TEST(BackwardPieces, HaveTheSameBitsApartAndInOneGo) {
  Head apart, together;
  apart.run(1);
  together.run(100);
  EXPECT_EQ(support::differing(apart.dq, together.dq), 0u);
  EXPECT_EQ(support::differing(apart.dk, together.dk), 0u);
  EXPECT_EQ(support::differing(apart.dv, together.dv), 0u);
}

/// Keys that a tile sees with hidden ones between them, other keys for each tile.
TEST(BackwardPieces, HiddenKeysBetweenVisibleOnesAddNothing) {
  constexpr Index queries = 290, keys = 600, blocks = 19;
  support::Random random("gaps");
  std::vector<std::uint8_t> map(std::size_t{blocks} * blocks);
  for (auto& bit : map) bit = random.normal() > 0.3;
  const mha::BlockSparse mask({.block = 32, .query_blocks = blocks, .key_blocks = blocks}, map);
  const auto c = support::BackwardCase<float>("array, gaps", {1, queries, keys, 2, 1, 40, 24}).as<mha::bfloat16>();
  const auto is = c.as<float>().gradients<One>(mask);
  const auto expected = c.as<double>().gradients<mha::Reference>(mask);
  EXPECT_LT(support::relative_error(is.query, expected.query), 2e-2);
  EXPECT_LT(support::relative_error(is.key, expected.key), 2e-2);
  EXPECT_LT(support::relative_error(is.value, expected.value), 2e-2);
}

}  // namespace
