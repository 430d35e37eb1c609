// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/interop/eigen.hpp>
#include <mha/policy/mask/dense.hpp>

#include "../tiles.hpp"
#include "scratch.hpp"

namespace {

using mha::Dense;
using mha::Tensor;
using mha::TensorView;

bool pattern(int b, int h, int i, int k) { return (b + 2 * h + 3 * i + 5 * k) % 3 != 0; }

constexpr mha::CallShape call{.batch = 2, .heads = 3, .queries = 4, .keys = 5, .origin = 1};

/// The table whose axes are the call's, or 1 where `b`, `h`, `i` or `k` is.
Tensor<bool, 4> table(int b, int h, int i, int k) {
  Tensor<bool, 4> t(b, h, i, k);
  for (int a = 0; a < b; ++a)
    for (int c = 0; c < h; ++c)
      for (int d = 0; d < i; ++d)
        for (int e = 0; e < k; ++e) t(a, c, d, e) = pattern(a, c, d, e);
  return t;
}

TEST(Dense, ShowsWhatTheTableShowsAndRepeatsAxesOfOne) {
  for (const int b : {1, 2})
    for (const int h : {1, 3})
      for (const int i : {1, 4})
        for (const int k : {1, 5}) {
          const auto t = table(b, h, i, k);
          const Dense mask = Dense{t}.prepared(call);
          for (int n = 0; n < 2; ++n)
            for (int head = 0; head < 3; ++head)
              for (int row = 0; row < 4; ++row)
                for (int key = 0; key < 5; ++key)
                  EXPECT_EQ(mask(n, head, call.origin[0] + row, key),
                            pattern(b == 1 ? 0 : n, h == 1 ? 0 : head, i == 1 ? 0 : row, k == 1 ? 0 : key));
        }
}

TEST(Dense, TakesTablesOfTwoAndThreeAxes) {
  Tensor<bool, 2> pairs(4, 5);
  Tensor<bool, 3> heads(3, 4, 5);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 5; ++k) {
      pairs(i, k) = pattern(0, 0, i, k);
      for (int h = 0; h < 3; ++h) heads(h, i, k) = pattern(0, h, i, k);
    }
  const Dense of_pairs = Dense{pairs}.prepared(call), of_heads = Dense{heads}.prepared(call);
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 3; ++h)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 5; ++k) {
          EXPECT_EQ(of_pairs(b, h, call.origin[0] + i, k), pattern(0, 0, i, k));
          EXPECT_EQ(of_heads(b, h, call.origin[0] + i, k), pattern(0, h, i, k));
        }
}

TEST(Dense, RowsAreTheCallsQueriesWhateverTheOrigin) {
  Tensor<bool, 2> pairs(4, 2);
  pairs(3, 1) = true;
  for (const int origin : {-2, 0, 7}) {
    const Dense mask = Dense{pairs}.prepared({.batch = 1, .heads = 1, .queries = 4, .keys = 2, .origin = origin});
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 2; ++k) EXPECT_EQ(mask(0, 0, origin + i, k), i == 3 && k == 1);
  }
}

TEST(Dense, RowsAreEachSequencesQueriesInARaggedBatch) {
  const int origins[2] = {3, -1};
  const auto t = table(2, 3, 4, 5);
  const Dense mask =
      Dense{t}.prepared({.batch = 2, .heads = 3, .queries = 4, .keys = 5, .origin = mha::Origins(origins)});
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 3; ++h)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(b, h, origins[b] + i, k), pattern(b, h, i, k));
}

TEST(Dense, ReadsAnyStrides) {
  Tensor<bool, 2> by_key(5, 4);
  by_key(2, 3) = true;
  const auto rows = mha::transposed(by_key.view());
  const Dense mask = Dense{rows}.prepared(call);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(1, 1, call.origin[0] + i, k), i == 3 && k == 2);
}

TEST(Dense, TakesEigenMatricesInEitherStorageOrder) {
  Eigen::Matrix<bool, 4, 5> columns;
  Eigen::Matrix<bool, 4, 5, Eigen::RowMajor> rows;
  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> array(4, 5);
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 5; ++k) rows(i, k) = array(i, k) = columns(i, k) = pattern(0, 0, i, k);
  for (const Dense& mask : {Dense{columns}.prepared(call), Dense{rows}.prepared(call), Dense{array}.prepared(call)})
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(0, 2, call.origin[0] + i, k), pattern(0, 0, i, k));
}

TEST(Dense, TakesTemporaryViewsOfEveryRank) {
  bool memory[24] = {};
  memory[23] = true;
  const bool* const constant = memory;
  EXPECT_TRUE(Dense{mha::view(memory, 4, 6)}(0, 0, 3, 5));
  EXPECT_TRUE(Dense{mha::view(memory, 2, 3, 4)}(0, 1, 2, 3));
  EXPECT_TRUE(Dense{mha::view(memory, 1, 2, 3, 4)}(0, 1, 2, 3));
  EXPECT_TRUE(Dense{mha::view(constant, 4, 6)}(0, 0, 3, 5));
  EXPECT_TRUE(Dense{mha::view(constant, 2, 3, 4)}(0, 1, 2, 3));
  EXPECT_TRUE(Dense{mha::view(constant, 1, 2, 3, 4)}(0, 1, 2, 3));
}

TEST(Dense, AsksPairByPair) {
  Tensor<bool, 2> pairs(4, 5);
  const Dense mask = Dense{pairs}.prepared(call);
  EXPECT_EQ(mha::tile(mask, 0, 0, 1, 5, 0, 5), mha::TileVisibility::partial);
  EXPECT_TRUE(mha_test::tiles_are(mha_test::Promise::honest, mask, call));
}

template <class View> std::string refusal(const View& v) {
  return mha_test::message_of<mha::ShapeError>([&] { Dense{v}.prepared(call); });
}

TEST(Dense, NamesTheAxisThatDoesNotFit) {
  EXPECT_EQ(refusal(table(3, 3, 4, 5)), "Dense: the table has 3 sequences but the call has 2");
  EXPECT_EQ(refusal(table(2, 2, 4, 5)), "Dense: the table has 2 heads but the call has 3");
  EXPECT_EQ(refusal(table(2, 3, 5, 5)), "Dense: the table has 5 queries but the call has 4");
  EXPECT_EQ(refusal(table(2, 3, 4, 4)), "Dense: the table has 4 keys but the call has 5");
  EXPECT_EQ(refusal(table(2, 3, 4, 5)), "");
}

TEST(Dense, WantsMemory) {
  const TensorView<const bool, 2> missing{nullptr, {4, 5}, {5, 1}};
  EXPECT_EQ(refusal(missing), "Dense: the table has 20 elements but its data is null");
  const TensorView<const bool, 2> negative{nullptr, {-4, 5}, {5, 1}};
  EXPECT_EQ(refusal(negative), "Dense: the table has extent -4 on axis 2");
}

TEST(Dense, ReadsATemporaryBlock) {
  Eigen::Matrix<bool, 6, 5> all;
  for (int i = 0; i < 6; ++i)
    for (int k = 0; k < 5; ++k) all(i, k) = pattern(0, 0, i, k);
  const Dense mask{all.bottomRows(2)};
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(0, 0, i, k), pattern(0, 0, 4 + i, k));
}

TEST(Dense, CopiesAreNotTakenForTables) {
  const auto t = table(1, 1, 4, 5);
  Dense mask{t};
  const Dense copy(mask), moved(std::move(mask));
  EXPECT_EQ(copy.visible.data, t.data());
  EXPECT_EQ(moved.visible.data, t.data());
  struct Derived : Dense {};
  static_assert(std::is_copy_constructible_v<Derived> && std::is_move_constructible_v<Derived>);
}

TEST(Dense, IsABorrowingMask) {
  static_assert(mha::Mask<Dense> && mha::Borrows<Dense> && std::is_trivially_copyable_v<Dense>);
}

}  // namespace
