// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/systolic/backward_memory.hpp>

namespace {

using mha::Index;
namespace systolic = mha::detail::systolic;

TEST(SystolicBackwardTiling, CutsIntoWholeSteps) {
  const systolic::BackwardTiling tiling(48, 40, 7);
  EXPECT_EQ(tiling.query_dim, 64);
  EXPECT_EQ(tiling.value_dim, 32);
  EXPECT_EQ(tiling.tiles(49), 2);
  EXPECT_EQ(tiling.padded_queries(1), 64);  // a tile of 48 in steps of 32
  EXPECT_EQ(tiling.query_pieces(0), 0);
  EXPECT_EQ(tiling.query_pieces(48 * systolic::BackwardTiling::query_piece + 1), 2);
  EXPECT_EQ(systolic::BackwardTiling::key_pieces(systolic::BackwardTiling::key_piece + 1), 2);
  EXPECT_EQ(systolic::BackwardTiling::padded_keys(65), 128);
}

TEST(SystolicBackwardMemory, PartsDoNotOverlap) {
  const systolic::BackwardTiling tiling(48, 40, 7);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const Index queries = 50, keys = 70;
  const systolic::BackwardMemory memory(frame, tiling, queries, keys, true, 0);
  const std::ptrdiff_t rows = tiling.padded_queries(queries), all_keys = tiling.padded_keys(keys);
  const auto d = tiling.query_dim, dv = tiling.value_dim;
  const auto bytes = [](auto* p, std::ptrdiff_t n) {
    return std::pair{reinterpret_cast<std::byte*>(p), n * static_cast<std::ptrdiff_t>(sizeof(*p))};
  };
  const std::pair<std::byte*, std::ptrdiff_t> parts[] = {
      bytes(memory.q, rows * d),
      bytes(memory.d_out, rows * dv),
      bytes(memory.k, all_keys * d),
      bytes(memory.v, all_keys * dv),
      bytes(memory.q_lanes, rows * d / 2),
      bytes(memory.d_out_lanes, rows * dv / 2),
      bytes(memory.q_depth, rows * d / 2),
      bytes(memory.d_out_depth, rows * dv / 2),
      bytes(memory.k_transposed, std::ptrdiff_t{systolic::BackwardTiling::key_piece} * d),
      bytes(memory.dq, rows * d),
      bytes(memory.dk, all_keys * d),
      bytes(memory.dv, all_keys * dv)};
  unsigned char mark = 0;
  for (const auto& [to, n] : parts) std::fill_n(to, n, std::byte{++mark});
  mark = 0;
  for (const auto& [from, n] : parts) {
    ++mark;
    EXPECT_TRUE(std::all_of(from, from + n, [&](std::byte x) { return x == std::byte{mark}; })) << int{mark};
  }
}

}  // namespace
