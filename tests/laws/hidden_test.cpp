// SPDX-License-Identifier: Apache-2.0
// Hidden pairs contribute exactly nothing, on every backend of the processor and at every instruction-set level.
#include "hidden.hpp"

#include <limits>

#include "law.hpp"

namespace {

using laws::Index;
using laws::Inputs;

/// Around a block's edge and some at both ends, so that partial tiles of every kind occur.
constexpr Index poisoned_keys[] = {0, 1, 5, 17, 40, 60, 126, 127, 128, 129, 140, 149};

template <class Setup> class Hidden : public testing::Test {};
template <class B, class S, laws::PolicyTypes P = laws::PolicyTypes::any> struct On {
  using Backend = B;
  using T = S;
  static constexpr laws::PolicyTypes types = P;
};
using Setups =
    testing::Types<On<mha::CpuWith<mha::Serial>, float, laws::PolicyTypes::own>, On<mha::CpuWith<mha::Serial>, double>,
                   On<mha::EigenCpuWith<mha::Serial>, float>, On<mha::EigenCpuWith<mha::Serial>, double>,
                   On<support::PlainBackend, float>, On<mha::Reference, float>>;
TYPED_TEST_SUITE(Hidden, Setups);

TYPED_TEST(Hidden, PoisonBehindAMaskDoesNothing) {
  for (const laws::Sizes& sizes : laws::hidden_sizes)
    laws::expect_masks_to_hide<typename TypeParam::Backend, typename TypeParam::T, TypeParam::types>(
        poisoned_keys, sizes, [](const auto& f) { laws::at_every_isa(f); });
}

TYPED_TEST(Hidden, PoisonBehindAScoreOfMinusInfinityDoesNothing) {
  for (const laws::Sizes& sizes : laws::hidden_sizes)
    laws::expect_scores_to_hide<typename TypeParam::Backend, typename TypeParam::T, TypeParam::types>(
        poisoned_keys, sizes, [](const auto& f) { laws::at_every_isa(f); });
}

TEST(HiddenWeights, ArePlainZeros) {
  support::Random random("hidden weights");
  Inputs<float> in({.batch = 1, .queries = 20, .keys = 140}, random);
  for (Index d = 0; d < in.k.extent(3); ++d) in.k(0, 139, 0, d) = std::numeric_limits<float>::quiet_NaN();
  laws::at_every_isa([&] {
    const auto w = mha::attention_weights(in.q, in.k, mha::Causal{});
    for (Index h = 0; h < 2; ++h)
      for (Index i = 0; i < 20; ++i)
        for (Index k = 121 + i; k < 140; ++k) EXPECT_EQ(support::bits(w(0, h, i, k)), 0u) << i << ", " << k;
  });
}

}  // namespace
