// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
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

/// One head, in calls of so many pieces of the queries and of the keys.
struct Head : support::OneHead<One> {
  Head() : OneHead(support::BackwardCase<float>("array, strips", {1, 700, 800, 1, 1, 72, 40})) {}

  void run(Index rows, Index columns) {
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
    for (Index m = 0; m < head.key_pieces(); m += columns)
      for (Index n = 0; n < head.query_pieces(); n += rows)
        head.pieces(n, std::min(n + rows, head.query_pieces()), m, std::min(m + columns, head.key_pieces()), scratch);
    for (Index t = 0; t < head.tiles(); ++t) head.store_queries(t);
    for (Index m = 0; m < head.key_pieces(); ++m) head.store_keys(m);
  }
};

TEST(BackwardPieces, HaveTheSameBitsApartAndInOneGo) {
  for (const bool finite : {true, false}) {
    Head apart, together[3];
    if (!finite)
      for (Head* head : {&apart, &together[0], &together[1], &together[2]}) {
        head->c.q(0, 300, 0, 3) = std::numeric_limits<float>::infinity();
        head->c.k(0, 500, 0, 7) = -std::numeric_limits<float>::infinity();
        head->c.d_out(0, 699, 0, 1) = std::numeric_limits<float>::quiet_NaN();
      }
    apart.run(1, 1);
    together[0].run(100, 1);
    together[1].run(1, 100);
    together[2].run(100, 100);
    for (const Head& head : together) {
      EXPECT_EQ(support::differing(apart.dq, head.dq), 0u);
      EXPECT_EQ(support::differing(apart.dk, head.dk), 0u);
      EXPECT_EQ(support::differing(apart.dv, head.dv), 0u);
    }
  }
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
