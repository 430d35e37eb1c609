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
