// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/cpu/head_memory.hpp>

namespace {

using mha::Index;
namespace cpu = mha::detail::cpu;
namespace simd = mha::detail::simd;

TEST(BackwardTiling, CutsIntoPieces) {
  const auto kernels = simd::tile_kernels<float>(mha::current_isa(), 1000);
  const cpu::BackwardTiling tiling(kernels, 40, 7);
  EXPECT_EQ(tiling.lanes, kernels.lanes);
  EXPECT_EQ(tiling.query_dim % kernels.width, 0);
  EXPECT_GE(tiling.query_dim, 40);
  EXPECT_EQ(tiling.query_piece % cpu::BackwardTiling::together, 0);
  EXPECT_EQ(tiling.tiles(tiling.lanes + 1), 2);
  EXPECT_EQ(tiling.query_pieces(0), 0);
  EXPECT_EQ(cpu::BackwardTiling::key_pieces(cpu::BackwardTiling::key_piece + 1), 2);
}

TEST(HeadMemory, PartsDoNotOverlap) {
  const auto kernels = simd::tile_kernels<double>(mha::current_isa(), 1000);
  const cpu::BackwardTiling tiling(kernels, 5, 3);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const Index queries = 2 * tiling.lanes - 1, rows = 2 * tiling.lanes;
  const cpu::HeadMemory<double> memory(frame, tiling, queries, 7, 5, 3, true);
  const std::pair<double*, std::ptrdiff_t> parts[] = {{memory.q, rows * tiling.query_dim},
                                                      {memory.d_out, rows * tiling.value_dim},
                                                      {memory.k, 7 * tiling.query_dim},
                                                      {memory.v, 7 * tiling.value_dim},
                                                      {memory.q_lanes, rows * 5},
                                                      {memory.d_out_lanes, rows * 3},
                                                      {memory.dq, rows * 5},
                                                      {memory.dk, 7 * tiling.query_dim},
                                                      {memory.dv, 7 * tiling.value_dim},
                                                      {memory.rows.level, rows},
                                                      {memory.rows.log2_sum, rows},
                                                      {memory.rows.delta, rows},
                                                      {memory.rows.own_log2_sum, rows},
                                                      {memory.rows.own_delta, rows}};
  for (const auto& [to, n] : parts) std::fill_n(to, n, double(to - memory.q));
  for (const auto& [from, n] : parts)
    for (std::ptrdiff_t i = 0; i < n; ++i) EXPECT_EQ(from[i], double(from - memory.q));
}

}  // namespace
