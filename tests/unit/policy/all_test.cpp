// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/policy/all.hpp>

namespace {

TEST(AllPolicies, AreOfEveryRole) {
  using mha::Mask, mha::Score;
  static_assert(Mask<mha::Full> && Mask<mha::Causal> && Mask<mha::CausalTopLeft> && Mask<mha::SlidingWindow> &&
                Mask<mha::Padding> && Mask<mha::LeftPadding> && Mask<mha::Prefix> && Mask<mha::FirstKeys> &&
                Mask<mha::Document> && Mask<mha::Dense> && Mask<mha::BlockSparse>);
  static_assert(Score<mha::NoScore> && Score<mha::SoftCap> && Score<mha::Alibi> && Score<mha::AlibiSlopes> &&
                Score<mha::RelativeBias> && Score<mha::AdditiveBias<float>>);
  static_assert(mha::Heads<mha::MultiHead> && mha::SinkPolicy<mha::Sink> && mha::Concat<mha::ConcatHeads> &&
                mha::Output<mha::LinearOutput> && mha::Projection<mha::FusedProjection>);
  static_assert(mha::DropoutPolicy<mha::Dropout> && mha::Norm<mha::QkNorm> &&
                mha::Position<mha::Rotary<mha::Halves, mha::AnyScaling>>);
  static_assert(mha::Activation<mha::Gelu>);
}

}  // namespace
