// SPDX-License-Identifier: Apache-2.0
#include "ranking.hpp"

#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

namespace {

using semantic_search::Matrix;
using semantic_search::rank;

std::vector<std::size_t> order(const std::vector<semantic_search::Hit>& hits) {
  std::vector<std::size_t> all;
  for (const auto& hit : hits) all.push_back(hit.index);
  return all;
}

TEST(Ranking, BestFirstAndTiesInOrder) {
  Matrix passages(5, 2);
  passages << 0, 1, 0.6f, 0.8f, -1, 0, 1, 0, 0.6f, 0.8f;
  const Eigen::RowVector2f question(1, 0);
  EXPECT_EQ(order(rank(question, passages, 5)), (std::vector<std::size_t>{3, 1, 4, 0, 2}));
  EXPECT_EQ(order(rank(question, passages, 2)), (std::vector<std::size_t>{3, 1}));
  EXPECT_EQ(rank(question, passages, 99).size(), 5u);
  EXPECT_FLOAT_EQ(rank(question, passages, 5)[1].score, 0.6f);
  EXPECT_FLOAT_EQ(rank(question, passages, 5)[4].score, -1.f);
}

TEST(Ranking, NothingToRank) {
  EXPECT_TRUE(rank(Eigen::RowVector2f(1, 0), Matrix(0, 2), 3).empty());
  EXPECT_TRUE(rank(Eigen::RowVector2f(1, 0), Matrix::Ones(2, 2), 0).empty());
}

}  // namespace
