// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/layer/cache_memory.hpp>

namespace {

using mha::Index;

constexpr Index layers = 2, heads = 2, dim = 3, value_dim = 1;
constexpr mha::KvShape shape{heads, dim, value_dim};

float number(Index layer, Index row) { return static_cast<float>(100 * layer + row + 1); }

TEST(CacheMemory, RowsAreBlocksOneAfterAnother) {
  mha::detail::CacheMemory<float, mha::OnHost> memory(shape, layers, {.blocks = 3, .rows = 4}, {}, {});
  EXPECT_EQ(memory.bytes(), sizeof(float) * layers * 12 * heads * (dim + value_dim));
  for (Index layer = 0; layer < layers; ++layer)
    for (Index row = 0; row < 12; ++row) {
      memory.key_rows(layer)(row, 1, 2) = number(layer, row);
      memory.value_rows(layer)(row, 1, 0) = -number(layer, row);
    }
  const auto& read = memory;
  for (Index layer = 0; layer < layers; ++layer)
    for (Index block = 0; block < 3; ++block)
      for (Index i = 0; i < 4; ++i) {
        EXPECT_EQ(read.key_blocks(layer)(block, i, 1, 2), number(layer, 4 * block + i));
        EXPECT_EQ(read.value_blocks(layer)(block, i, 1, 0), -number(layer, 4 * block + i));
      }
}

// 8 heads of 128 floats beside each other put every row of a head on another page of memory.
TEST(CacheMemory, KeepsTheRowsOfAHeadTogether) {
  const mha::detail::CacheMemory<float, mha::OnHost> memory(shape, layers, {.blocks = 3, .rows = 4}, {}, {});
  EXPECT_EQ(memory.key_blocks(1).stride[1], dim);
  EXPECT_EQ(memory.key_rows(1).stride[0], dim);
  EXPECT_EQ(memory.value_blocks(1).stride[1], value_dim);
  EXPECT_EQ(&memory.key_rows(1)(11, 0, 0) + dim, &memory.key_rows(1)(0, 1, 0));
}

TEST(CacheMemory, CopiesRowsOfEveryLayer) {
  mha::detail::CacheMemory<float, mha::OnHost> memory(shape, layers, {.blocks = 3, .rows = 4}, {}, {});
  for (Index layer = 0; layer < layers; ++layer)
    for (Index row = 0; row < 12; ++row)
      for (Index g = 0; g < heads; ++g) {
        for (Index d = 0; d < dim; ++d) memory.key_rows(layer)(row, g, d) = number(layer, row) + 0.25f * float(d);
        memory.value_rows(layer)(row, g, 0) = -number(layer, row);
      }
  mha::detail::RowCopies copies{{1, 8, 3}, {8, 0, 1}};
  memory.copy(copies);  // in their order
  EXPECT_TRUE(copies.empty());
  for (Index layer = 0; layer < layers; ++layer)
    for (const auto& [to, from] : {std::pair{8, 1}, {9, 2}, {10, 3}, {0, 1}, {11, 11}, {1, 1}})
      for (Index g = 0; g < heads; ++g) {
        for (Index d = 0; d < dim; ++d)
          EXPECT_EQ(memory.key_rows(layer)(to, g, d), number(layer, from) + 0.25f * float(d));
        EXPECT_EQ(memory.value_rows(layer)(to, g, 0), -number(layer, from));
      }
}

TEST(CacheMemory, SizesInWords) {
  EXPECT_EQ(mha::detail::position_bytes<double>(shape, {.layers = 5}), 8u * 5u * 2u * (3u + 1u));
  EXPECT_EQ(mha::detail::sizes_in_words<mha::bfloat16>(shape, {.layers = 5, .sequences = 3}, 12345),
            "; bfloat16, 16 bytes a position and layer; sequences 3, layers 5, 12345 bytes in all");
}

}  // namespace
