// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <set>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/projection.hpp>

#include "scratch.hpp"

namespace {

using mha::FusedProjection;
using mha::HeadWeights;
using mha::Index;
using mha::PerHeadProjection;
using mha::TensorView;

constexpr Index H = 3, E = 4, D = 2;

/// Head weights of a layout over numbered memory, with a bias.
template <class P> struct Laid {
  std::vector<double> memory = std::vector<double>(H * E * D), bias = std::vector<double>(H * D);
  HeadWeights<double> w;
  Laid() {
    std::iota(memory.begin(), memory.end(), 1);
    std::iota(bias.begin(), bias.end(), 100);
    w = {P::layout(memory.data(), H, E, D), mha::view(bias.data(), H, D)};
  }
};

template <class P> class AnyProjection : public ::testing::Test {};
using Projections = ::testing::Types<FusedProjection, PerHeadProjection>;
TYPED_TEST_SUITE(AnyProjection, Projections);

TYPED_TEST(AnyProjection, LaysEveryWeightInAPlaceOfItsOwn) {
  Laid<TypeParam> laid;
  const auto& w = laid.w;
  EXPECT_EQ(w.head_count(), H);
  EXPECT_EQ(w.model(), E);
  EXPECT_EQ(w.head_dim(), D);
  std::set<double> seen;
  for (Index h = 0; h < H; ++h)
    for (Index e = 0; e < E; ++e)
      for (Index d = 0; d < D; ++d) {
        seen.insert(w.heads(h, e, d));
        EXPECT_EQ(&w.head(h)(e, d), &w.heads(h, e, d));
      }
  EXPECT_EQ(seen.size(), laid.memory.size());
  EXPECT_EQ(*seen.begin(), 1);
  EXPECT_EQ(*seen.rbegin(), H * E * D);
}

TYPED_TEST(AnyProjection, ShowsTheBiasOfAHead) {
  Laid<TypeParam> laid;
  for (Index h = 0; h < H; ++h)
    for (Index d = 0; d < D; ++d) EXPECT_EQ(laid.w.head_bias(h)(d), 100 + h * D + d);
  EXPECT_EQ(laid.w.bias_row()(H * D - 1), 100 + H * D - 1);
  laid.w.bias = {};
  EXPECT_EQ(laid.w.head_bias(1).data, nullptr);
  EXPECT_EQ(laid.w.bias_row().data, nullptr);
}

TEST(HeadWeights, OfACheckpointAreOneMatrix) {
  Laid<FusedProjection> fused;
  // A checkpoint's (out, in) weight: column e of row h·D + d.
  std::vector<double> out_in(H * D * E);
  std::iota(out_in.begin(), out_in.end(), 0);
  const HeadWeights<double> borrowed{{out_in.data(), {H, E, D}, {D * E, 1, E}}, fused.w.bias};
  EXPECT_TRUE(borrowed.is_matrix());
  EXPECT_EQ(borrowed.matrix()(3, 5), 5 * E + 3);
}

TEST(FusedProjection, IsOneMatrix) {
  Laid<FusedProjection> laid;
  ASSERT_TRUE(laid.w.is_matrix());
  const auto matrix = laid.w.matrix();
  EXPECT_EQ(matrix.extent[0], E);
  EXPECT_EQ(matrix.extent[1], H * D);
  EXPECT_TRUE(mha::is_contiguous(matrix));
  for (Index h = 0; h < H; ++h)
    for (Index e = 0; e < E; ++e)
      for (Index d = 0; d < D; ++d) EXPECT_EQ(&matrix(e, h * D + d), &laid.w.heads(h, e, d));
}

TEST(PerHeadProjection, IsAMatrixPerHead) {
  Laid<PerHeadProjection> laid;
  for (Index h = 0; h < H; ++h) EXPECT_TRUE(mha::is_contiguous(laid.w.head(h)));
  EXPECT_EQ(laid.w.head(1).data, laid.memory.data() + E * D);
}

TEST(HeadWeights, RefuseToBeOneMatrixWhenTheyAreNot) {
  Laid<PerHeadProjection> laid;
  EXPECT_FALSE(laid.w.is_matrix());
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { laid.w.matrix(); }),
            "HeadWeights: the 3 heads lie 8 elements apart, side by side would be 2: ask for head(h) instead");
  const HeadWeights<double> one{PerHeadProjection::layout(laid.memory.data(), 1, E, D), {}};
  EXPECT_TRUE(one.is_matrix()) << "a single head is a matrix in any layout";
  EXPECT_EQ(one.matrix().extent[1], D);
}

TEST(HeadWeights, BecomeReadOnly) {
  static_assert(std::is_convertible_v<HeadWeights<float>, HeadWeights<const float>>);
  static_assert(!std::is_convertible_v<HeadWeights<const float>, HeadWeights<float>>);
  Laid<FusedProjection> laid;
  laid.w.head(2)(3, 1) = -7;
  const HeadWeights<const double> read = laid.w;
  EXPECT_EQ(read.matrix()(3, 5), -7);
  EXPECT_EQ(read.bias.data, laid.bias.data());
}

TEST(Projection, IsRecognisedByItsRole) {
  static_assert(mha::Projection<FusedProjection> && mha::Projection<PerHeadProjection> && !mha::Projection<int>);
}

}  // namespace
