// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/layer/weights.hpp>
#include <mha/policy/qk_norm.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;

const mha::Config sizes{.d_model = 24, .num_heads = 4, .bias = true};

/// With every kind of weights.
template <class B, class... Policies>
using LayerOn = mha::MultiHeadAttention<float, B, mha::QkNorm, mha::GatedHeads, Policies...>;

/// Random weights, norms and gates too.
template <class Layer> void draw(Layer& layer, support::Random& random) {
  layer.update([&](auto& p) {
    for (auto& w : p.flat()) w = static_cast<float>(random.normal() / 4);
  });
}

Tensor<float, 2> rows(support::Random& random, Index count) {
  Tensor<float, 2> x(count, sizes.d_model);
  random.fill(x);
  return x;
}

template <class B> class LayerWeights : public testing::Test {};
using Backends = testing::Types<mha::Reference, mha::Cpu>;
TYPED_TEST_SUITE(LayerWeights, Backends, );

TYPED_TEST(LayerWeights, AreSharedUnderOtherPolicies) {
  using Owner = LayerOn<TypeParam>;
  static_assert(
      std::is_base_of_v<
          mha::LayerWeights<float, TypeParam,
                            typename mha::detail::LayerOf<float, TypeParam, mha::QkNorm, mha::GatedHeads>::ByRole>,
          Owner>);
  support::Random random("shared weights");
  Owner owner(sizes);
  draw(owner, random);
  LayerOn<TypeParam, mha::Causal> borrower(sizes);
  borrower.borrow(owner);
  const auto x = rows(random, 7);
  EXPECT_EQ(support::differing(borrower(x), owner(x, mha::Causal{})), 0u);
  EXPECT_EQ(borrower.parameters().gate.data, owner.parameters().gate.data);
}

}  // namespace
