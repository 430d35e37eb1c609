// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <mha/layer/gradients.hpp>
#include <mha/mha.hpp>

namespace {

using Layer =
    mha::MultiHeadAttention<mha::bfloat16, mha::Cpu, mha::MultiQuery, mha::QkNorm, mha::GatedHeads, mha::Sink>;

Layer layer() {
  return Layer({.d_model = 6, .num_heads = 2, .head_dim = 4, .value_dim = 5, .bias = true}, mha::Sink({1.f, 2.f}));
}

TEST(LayerGradients, HaveTheNamesShapesAndOrderOfTheParameters) {
  Layer own = layer();
  own.initialize(mha::XavierUniform{.seed = 1});
  const auto g = own.gradients();
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(g)>, mha::LayerGradients<float>>);
  ASSERT_EQ(static_cast<std::int64_t>(g.flat().size()), own.parameter_count());
  for (std::size_t i = 0; i < g.flat().size(); ++i) EXPECT_EQ(g.flat()[i], 0);
  const auto w = own.parameters();
  const auto* const first = w.flat().data();
  EXPECT_EQ(&g.value.heads(0, 3, 2) - g.flat().data(), &w.value.heads(0, 3, 2) - first);
  EXPECT_EQ(&g.output.weight(7, 1) - g.flat().data(), &w.output.weight(7, 1) - first);
  EXPECT_EQ(&g.key_norm(3) - g.flat().data(), &w.key_norm(3) - first);
  EXPECT_EQ(&g.gate(1) - g.flat().data(), &w.gate(1) - first);
  EXPECT_EQ(g.sink.extent[0], 2);
  EXPECT_EQ(&g.sink(0), g.flat().data() + g.flat().size());
  EXPECT_EQ(mha::MultiHeadAttention<float>({.d_model = 4, .num_heads = 2}).gradients().sink.data, nullptr);
}

TEST(LayerGradients, CopiesHaveMemoryOfTheirOwn) {
  auto g = layer().gradients();
  g.query.bias(1, 2) = 3;
  g.sink(1) = 4;
  auto copy = g;
  EXPECT_EQ(copy.query.bias(1, 2), 3);
  EXPECT_EQ(copy.sink(1), 4);
  EXPECT_EQ(copy.flat().size(), g.flat().size());
  copy.clear();
  EXPECT_EQ(copy.sink(1), 0);
  EXPECT_EQ(g.query.bias(1, 2), 3);
  const auto* const data = g.flat().data();
  auto moved = std::move(g);
  EXPECT_EQ(moved.flat().data(), data);
  EXPECT_EQ(g.query.heads.data, nullptr);  // NOLINT(bugprone-use-after-move)
  copy = moved;
  EXPECT_EQ(copy.query.bias(1, 2), 3);
  EXPECT_NE(copy.flat().data(), data);
  copy = std::move(moved);
  EXPECT_EQ(copy.flat().data(), data);
}

TEST(LayerGradients, AreRefusedByALayerOfOtherSizes) {
  const auto g = layer().gradients();
  const mha::MultiHeadAttention<float> other({.d_model = 6, .num_heads = 2});
  const auto own = other.gradients();
  mha::detail::require_gradients<mha::LayerGradientViews<float>>(own, own);
  try {
    mha::detail::require_gradients<mha::LayerGradientViews<float>>(g, own);
    FAIL();
  } catch (const mha::ShapeError& e) {
    EXPECT_EQ(std::string(e.what()),
              "backward: the gradients are of other sizes: on axis 2 their query has extent 4, expected 3");
  }
  // The same numbers in another order.
  const auto apart = mha::MultiHeadAttention<float, mha::Cpu, mha::PerHeadProjection>({.d_model = 6, .num_heads = 2});
  try {
    mha::detail::require_gradients<mha::LayerGradientViews<float>>(apart.gradients(), own);
    FAIL();
  } catch (const mha::ShapeError& e) {
    EXPECT_EQ(std::string(e.what()),
              "backward: the gradients are of other sizes: on axis 0 their query has stride 18, expected 3");
  }
}

}  // namespace
