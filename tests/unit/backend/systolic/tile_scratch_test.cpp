// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/systolic/tile_scratch.hpp>

namespace {

using mha::Index;
namespace systolic = mha::detail::systolic;

TEST(SystolicTileScratch, PartsDoNotOverlap) {
  constexpr Index lanes = 48, head_dim = 40, value_dim = 7;  // 64 and 16 in whole tiles
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const systolic::BlockScratch block(frame, lanes, head_dim, value_dim);
  const systolic::TileState one(frame, lanes, head_dim, value_dim), other(frame, lanes, head_dim, value_dim, true);
  EXPECT_EQ(one.next.out, nullptr);
  EXPECT_FALSE(one.part.added || other.part.added || other.next.added);
  const auto bytes = [](auto* p, Index n) {
    return std::pair{reinterpret_cast<std::byte*>(p), n * static_cast<Index>(sizeof(*p))};
  };
  const std::pair<std::byte*, Index> parts[] = {bytes(block.s, systolic::key_block * lanes),
                                                bytes(block.p, systolic::value_block / 2 * lanes),
                                                bytes(block.rows, lanes * 64),
                                                bytes(block.out_rows, 16 * systolic::stored_at_once),
                                                bytes(block.finite, systolic::key_block * 16),
                                                bytes(one.q, 32 * lanes),
                                                bytes(one.part.out, 16 * lanes + 16),
                                                bytes(one.part.anchor, lanes),
                                                bytes(one.part.offset, lanes),
                                                bytes(one.part.sum, lanes),
                                                bytes(other.part.out, 16 * lanes + 16),
                                                bytes(other.part.anchor, lanes),
                                                bytes(other.part.offset, lanes),
                                                bytes(other.part.sum, lanes),
                                                bytes(other.next.out, 16 * lanes + 16),
                                                bytes(other.next.anchor, lanes),
                                                bytes(other.next.offset, lanes),
                                                bytes(other.next.sum, lanes),
                                                bytes(one.block_sum, lanes),
                                                bytes(one.rescale, 2 * lanes),
                                                bytes(other.q, 32 * lanes),
                                                bytes(other.block_sum, lanes),
                                                bytes(other.rescale, 2 * lanes)};
  unsigned char mark = 0;
  for (const auto& [to, n] : parts) std::fill_n(to, n, std::byte{++mark});
  mark = 0;
  for (const auto& [from, n] : parts) {
    ++mark;
    EXPECT_TRUE(std::all_of(from, from + n, [&](std::byte x) { return x == std::byte{mark}; })) << int{mark};
  }
}

}  // namespace
