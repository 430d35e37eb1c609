// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include <mha/block/rows.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>

#include "message_of.hpp"

namespace {

using mha::TensorView;
using View3 = TensorView<double, 3>;

TEST(Rows, OneSequenceIsABatchOfOne) {
  double numbers[12] = {};
  const auto v = mha::detail::with_batch(mha::view(numbers, 3, 4));
  EXPECT_EQ(v.extent[0], 1);
  EXPECT_EQ(v.extent[1], 3);
  EXPECT_EQ(&v(0, 2, 3), numbers + 11);
  mha::Tensor<double, 3> t(2, 3, 4);
  EXPECT_EQ(mha::detail::read_sequence(t).data, t.data());
}

TEST(Rows, NoStrideOfASingleRowLeadsOutOfTheAddressSpace) {
  constexpr std::ptrdiff_t far = std::numeric_limits<std::ptrdiff_t>::max();
  double number = 0;
  const View3 v = mha::detail::with_batch(View3{&number, {1, 1, 1}, {far, -far, 3}});
  EXPECT_EQ(v.stride[0], 0);
  EXPECT_EQ(v.stride[1], 0);
  EXPECT_EQ(v.stride[2], 3);
  EXPECT_EQ(mha::detail::with_batch(View3{&number, {2, 1, 1}, {far, 1, 1}}).stride[0], far) << "it is to be refused";
}

TEST(Rows, RowsCollapseOnlyWhenSequencesFollowEachOther) {
  const auto collapses = [](int b, int l, std::ptrdiff_t batch_stride, std::ptrdiff_t row_stride) {
    return mha::detail::rows_collapse(View3{nullptr, {b, l, 4}, {batch_stride, row_stride, 1}});
  };
  EXPECT_TRUE(collapses(2, 3, 12, 4));
  EXPECT_TRUE(collapses(2, 3, 30, 10));
  EXPECT_FALSE(collapses(2, 3, 16, 4));
  EXPECT_FALSE(collapses(2, 3, 0, 4));
  EXPECT_FALSE(collapses(2, 1, 0, 4));
  EXPECT_TRUE(collapses(1, 3, 77, 4));
  EXPECT_TRUE(collapses(5, 0, 77, 4));
}

TEST(Rows, RowsAreReadInPlaceOrCopiedOnce) {
  mha::Tensor<double, 3> t(2, 3, 4);
  std::iota(t.begin(), t.end(), 0.);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const TensorView<const double, 3> whole = t.view();
  EXPECT_EQ(mha::detail::as_rows(whole, frame).data, t.data());
  EXPECT_EQ(workspace.allocations(), 0);

  const TensorView<const double, 3> swapped{t.data(), {3, 2, 4}, {4, 12, 1}};  // the axes (L, B, E) of t
  const auto rows = mha::detail::as_rows(swapped, frame);
  EXPECT_NE(rows.data, t.data());
  ASSERT_EQ(rows.extent[0], 6);
  for (int b = 0; b < 3; ++b)
    for (int l = 0; l < 2; ++l)
      for (int e = 0; e < 4; ++e) EXPECT_EQ(rows(b * 2 + l, e), t(l, b, e));
}

TEST(Rows, ResultsReachAnyStrides) {
  mha::Tensor<double, 3> t(3, 2, 4);
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const auto number = [](const TensorView<double, 2>& rows) {
    for (int i = 0; i < rows.extent[0]; ++i)
      for (int j = 0; j < rows.extent[1]; ++j) rows(i, j) = 10 * i + j;
  };
  mha::detail::into_rows(t.view(), frame, number);
  EXPECT_EQ(t(2, 1, 3), 53);
  EXPECT_EQ(workspace.allocations(), 0);
  mha::detail::into_rows(View3{t.data(), {2, 3, 4}, {4, 8, 1}}, frame, number);  // row l of sequence b at t(l, b)
  for (int b = 0; b < 2; ++b)
    for (int l = 0; l < 3; ++l)
      for (int e = 0; e < 4; ++e) EXPECT_EQ(t(l, b, e), 10 * (3 * b + l) + e);
}

TEST(Rows, AResidualIsReadWhereItIsUnlessItIsOverwrittenFirst) {
  mha::Tensor<double, 3> t(4, 2, 4);
  double next = 0;
  for (double& x : t) x = ++next;
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const mha::detail::SerialItems run;
  const TensorView<double, 3> all{t.data(), {3, 2, 4}, {8, 4, 1}};
  const auto rows = [&](const TensorView<double, 3>& residual, const TensorView<double, 3>& to) {
    return mha::detail::residual_rows(TensorView<const double, 3>(residual), to, frame, run);
  };
  mha::Tensor<double, 3> elsewhere(3, 2, 4);
  EXPECT_EQ(rows({}, all).data, nullptr);
  EXPECT_EQ(rows(all, all).data, t.data());
  EXPECT_EQ(rows(all, elsewhere.view()).data, t.data());
  const auto copied = rows(all, {t.data() + 4, {3, 2, 4}, {8, 4, 1}});
  EXPECT_NE(copied.data, t.data());
  const TensorView<double, 3> swapped{t.data(), {2, 3, 4}, {4, 8, 1}};  // the axes (L, B, E) of t
  const auto gathered = rows(swapped, elsewhere.view());
  for (int i = 0; i < 6; ++i)
    for (int e = 0; e < 4; ++e) {
      EXPECT_EQ(copied(i, e), t(i / 2, i % 2, e));
      EXPECT_EQ(gathered(i, e), t(i % 3, i / 3, e));
    }
}

TEST(Rows, ResultsOfAProjectionAreRowsOfTheSameMemory) {
  mha::Tensor<float, 1> memory(2 * 3 * 4 * 5);
  const auto rows = mha::detail::rows_of(mha::view_blhd(memory.data(), 2, 3, 4, 5));
  EXPECT_EQ(rows.extent[0], 6);
  EXPECT_EQ(rows.extent[1], 20);
  EXPECT_EQ(&rows(4, 7), memory.data() + 4 * 20 + 7);
}

TEST(Rows, AreAsWideAsTheConfigurationSays) {
  float memory[24] = {};
  const auto x = mha::view(memory, 2, 3, 4);
  EXPECT_EQ(support::message_of([&] { mha::detail::require_rows("layer", "memory", x, "kv_model", 4); }), "");
  EXPECT_EQ(support::message_of([&] { mha::detail::require_rows("layer", "memory", x, "kv_model", 6); }),
            "layer: memory has width 4 but kv_model is 6");
}

}  // namespace
