// SPDX-License-Identifier: Apache-2.0
#include <Eigen/Core>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/call.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>
#include <mha/interop/eigen.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/score/softcap.hpp>
#include <mha/policy/sink.hpp>

namespace {

using mha::detail::collect_masks;
using mha::detail::collect_options;
using mha::detail::collect_scores;

struct Even {
  bool operator()(int, int, int, int k) const { return k % 2 == 0; }
};
struct Twice {
  template <class T> T operator()(T s, int, int, int, int) const { return s + s; }
};
struct PlusOne {
  template <class T> T operator()(T s, int, int, int, int) const { return s + 1; }
};

TEST(Call, MasksIntersectWhateverStandsBetweenThem) {
  mha::Workspace workspace;
  const auto mask = collect_masks(mha::Causal{}, Twice{}, workspace, Even{});
  static_assert(std::is_same_v<std::remove_const_t<decltype(mask)>, mha::And<mha::Causal, Even>>);
  EXPECT_TRUE(mask(0, 0, 4, 2));
  EXPECT_FALSE(mask(0, 0, 4, 3));
  EXPECT_FALSE(mask(0, 0, 4, 6));
}

TEST(Call, FullAddsNothingToAMaskNorNoScoreToAScore) {
  static_assert(std::is_same_v<decltype(collect_masks()), mha::Full>);
  static_assert(std::is_same_v<decltype(collect_masks(mha::Full{}, mha::Full{})), mha::Full>);
  static_assert(std::is_same_v<decltype(collect_masks(mha::Full{}, Even{})), Even>);
  static_assert(std::is_same_v<decltype(collect_masks(Even{}, mha::Full{})), Even>);
  static_assert(std::is_same_v<decltype(collect_scores()), mha::NoScore>);
  static_assert(std::is_same_v<decltype(collect_scores(mha::NoScore{}, Twice{}, mha::NoScore{})), Twice>);
  EXPECT_EQ(collect_scores(Twice{})(3., 0, 0, 0, 0), 6);
}

TEST(Call, ScoresChainInTheOrderWritten) {
  EXPECT_EQ(collect_scores(Twice{}, Even{}, PlusOne{})(3., 0, 0, 0, 0), 7);
  EXPECT_EQ(collect_scores(PlusOne{}, mha::Causal{}, Twice{})(3., 0, 0, 0, 0), 8);
  EXPECT_EQ(collect_scores(PlusOne{}, Twice{}, PlusOne{})(3., 0, 0, 0, 0), 9);
}

TEST(Call, OptionsAreOptional) {
  const auto none = collect_options<float>(mha::Causal{});
  EXPECT_FALSE(none.scale || none.origin || none.ragged || none.log_sum_exp);
  mha::Tensor<float, 3> lse(2, 3, 4);
  const auto all = collect_options<float>(mha::LogSumExp{lse}, Even{}, mha::Origin{-3}, mha::Scale{0.5});
  EXPECT_EQ(all.scale, 0.5);
  ASSERT_TRUE(all.origin.has_value());
  EXPECT_EQ(all.origin->position, -3);
  EXPECT_FALSE(all.origin->per_sequence);
  ASSERT_TRUE(all.log_sum_exp.has_value());
  EXPECT_EQ(all.log_sum_exp->data, lse.data());
  const std::vector<int> offsets{0, 2, 5};
  const auto ragged = collect_options<float>(mha::Ragged{offsets}).ragged;
  ASSERT_TRUE(ragged.has_value());
  EXPECT_EQ(ragged->query_offsets.data, offsets.data());
  EXPECT_EQ(ragged->query_offsets.size, 3);
  EXPECT_EQ(ragged->key_offsets.size, 0);
}

TEST(Call, TheCallsSinkComesFirst) {
  static_assert(std::is_same_v<decltype(mha::detail::collect_sink(mha::NoSink{}, mha::Causal{})), mha::NoSink>);
  const mha::Sink own({1.f}), given({2.f});
  EXPECT_EQ(mha::detail::collect_sink(own, mha::Causal{}).logits(1)[0], 1.f);
  EXPECT_EQ(mha::detail::collect_sink(own, mha::Causal{}, given, mha::Origin{1}).logits(1)[0], 2.f);
}

TEST(Call, LogSumExpOfOneHeadIsARow) {
  std::vector<double> numbers(10);
  const mha::LogSumExp strided{mha::TensorView<double, 1>{numbers.data(), {5}, {2}}};
  static_assert(std::is_same_v<std::remove_const_t<decltype(strided)>, mha::LogSumExp<double>>);
  EXPECT_EQ(strided.to.extent[0], 1);
  EXPECT_EQ(strided.to.extent[1], 1);
  EXPECT_EQ(strided.to.extent[2], 5);
  EXPECT_EQ(&strided.to(0, 0, 3), numbers.data() + 6);

  mha::Tensor<float, 1> row(5);
  const mha::LogSumExp owner{row};
  EXPECT_EQ(owner.to.data, row.data());
  const mha::LogSumExp heads{mha::view(numbers.data(), 1, 2, 5)};
  EXPECT_EQ(heads.to.stride[1], 5);
  mha::Tensor<float, 2> sequence(3, 4);
  EXPECT_EQ(mha::LogSumExp{sequence}.to.extent[1], 3);
  EXPECT_EQ(mha::LogSumExp{sequence}.to.stride[1], 4);
}

TEST(Call, IntoIsAViewOfTheResult) {
  mha::Tensor<float, 3> y(2, 3, 4);
  EXPECT_EQ(mha::into(y).to.data, y.data());
  EXPECT_EQ(mha::into(mha::view(y.data(), 6, 4)).to.extent[0], 6);
  Eigen::MatrixXf matrix(3, 4);
  const auto into = mha::into(matrix);
  EXPECT_EQ(into.to.data, matrix.data());
  EXPECT_EQ(into.to.stride[0], 1);
  EXPECT_EQ(into.to.stride[1], 3);
  const auto last = mha::into(matrix.bottomRows(2));
  EXPECT_EQ(last.to.extent[0], 2);
  EXPECT_EQ(&last.to(0, 3), &matrix(1, 3));
}

TEST(Call, TheCallersWorkspaceComesFirst) {
  mha::Workspace own, given;
  mha::Causal causal;
  EXPECT_EQ(&mha::detail::workspace_or(own, causal), &own);
  EXPECT_EQ(&mha::detail::workspace_or(own, causal, given), &given);
  EXPECT_EQ(&mha::detail::workspace_or(own), &own);
}

TEST(Call, ArgumentsAreToldApart) {
  static_assert(mha::detail::ScaleArgument<const mha::Scale&> && !mha::detail::ScaleArgument<mha::Origin>);
  static_assert(mha::detail::OriginArgument<mha::Origin&&>);
  static_assert(mha::detail::LogSumExpArgument<mha::LogSumExp<float>&>);
  static_assert(mha::detail::WorkspaceArgument<mha::Workspace&> && !mha::detail::WorkspaceArgument<mha::Scale>);
  static_assert(mha::detail::IntoArgument<mha::Into<mha::TensorView<float, 2>>>);
  static_assert(mha::detail::PolicyArgument<mha::Padding> && mha::detail::PolicyArgument<mha::SoftCap> &&
                mha::detail::PolicyArgument<Even> && !mha::detail::PolicyArgument<mha::Scale>);
}

}  // namespace
