// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/cache_step.hpp>
#include <mha/layer/kv_cache.hpp>

namespace {

using mha::Index;
using mha::Tensor;
using mha::detail::Growth;

std::string refusal(Index batch, Index length, const std::vector<Growth>& growths) {
  Index rows = 0;
  for (const Growth& g : growths) rows += g.rows;
  try {
    mha::detail::require_step_rows("layer", "x", batch, length, growths, rows);
  } catch (const mha::ShapeError& e) {
    return e.what();
  }
  return "";
}

TEST(CacheStep, RowsAreTheStepsOwn) {
  EXPECT_EQ(refusal(1, 5, {{0, 7, 2}, {1, 0, 3}}), "");
  EXPECT_EQ(refusal(2, 2, {{0, 7, 2}, {1, 0, 2}}), "");
  EXPECT_EQ(refusal(1, 4, {{0, 7, 2}, {1, 0, 3}}), "layer: x has 4 rows, but the step has 5");
  EXPECT_EQ(refusal(3, 2, {{0, 7, 2}, {1, 0, 2}}), "layer: x has batch 3, but the step has 2 sequences");
  EXPECT_EQ(refusal(2, 2, {{0, 7, 2}, {1, 0, 3}}), "layer: x has 2 rows a sequence, but the step has 3 for sequence 1");
}

TEST(AppendRows, WritesEveryRowToItsPlaceConverted) {
  constexpr Index heads = 2, dim = 3, value_dim = 2;
  Tensor<float, 4> key(2, 2, heads, dim), value(2, 2, heads, value_dim);
  float n = 0;
  for (float& e : key) e = n += 1;
  for (float& e : value) e = -(n += 1);
  Tensor<mha::bfloat16, 3> to_key(9, heads, dim), to_value(9, heads, value_dim);
  for (auto& e : to_key) e = mha::bfloat16(99.0f);
  const Index to_row[] = {4, 5, 8, 0};
  mha::detail::run_serially(mha::detail::AppendRows<float, mha::bfloat16>{
      4, heads, dim + value_dim, key.view(), value.view(), to_key.view(), to_value.view(), to_row});
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 2; ++i)
      for (Index g = 0; g < heads; ++g) {
        for (Index d = 0; d < dim; ++d)
          EXPECT_EQ(float(to_key(to_row[2 * b + i], g, d)), float(mha::bfloat16(key(b, i, g, d))));
        for (Index d = 0; d < value_dim; ++d)
          EXPECT_EQ(float(to_value(to_row[2 * b + i], g, d)), float(mha::bfloat16(value(b, i, g, d))));
      }
  for (const Index row : {1, 2, 3, 6, 7}) EXPECT_EQ(float(to_key(row, 1, 2)), 99.0f);
}

TEST(CacheStep, TellsWhereTheRowsOfEachSequenceAre) {
  mha::KvCache<mha::Contiguous, float> cache({1, 2, 2}, mha::Contiguous{.length = 9}, {.sequences = 3});
  for (int i = 0; i < 3; ++i) cache.add();
  const Index rows[] = {2, 0, 4};
  const auto step = cache.step(cache.ids(), rows);
  const auto offsets = step.offsets();
  EXPECT_EQ(std::vector<Index>(offsets.begin(), offsets.end()), (std::vector<Index>{0, 2, 2, 6}));
  EXPECT_EQ(step[0].rows(), 6);
  EXPECT_EQ(step[0].sequences(), 3);
}

}  // namespace
