// SPDX-License-Identifier: Apache-2.0
// The layer on Cpu and on the plain backend against the layer on the reference in double.
#include <cmath>
#include <cstddef>
#include <Eigen/Core>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "layers.hpp"

namespace {

using namespace conformance;

template <class Setup> class LayerConformance : public testing::Test {
 public:
  /// y and the weights of self- and cross-attention under one configuration and list of policies.
  template <class... P> static void check(const char* name, const Config& config, const P&... policies) {
    using T = typename Setup::T;
    SCOPED_TRACE(name);
    Random random(name);
    mha::MultiHeadAttention<T, typename Setup::Backend, P...> layer(config, policies...);
    mha::MultiHeadAttention<double, mha::Reference, P...> oracle(config, policies...);
    same_weights(layer, oracle, random);
    const Index kv_model = layer.config().kv_model;
    const auto x = random_rows<T>(2, 19, config.d_model, random), memory = random_rows<T>(2, 33, kv_model, random);
    expect_close(layer(x, memory), oracle(exact(x), exact(memory)), tolerance<T>());
    expect_close(layer.attention_weights(x, memory), oracle.attention_weights(exact(x), exact(memory)), tolerance<T>());
    expect_close(layer.mean_attention_weights(x, memory), oracle.mean_attention_weights(exact(x), exact(memory)),
                 tolerance<T>());
    const std::vector<Index> lengths = {33, 20};
    expect_close(layer(x, memory, mha::Padding{lengths}, mha::SoftCap{.cap = 3}),
                 oracle(exact(x), exact(memory), mha::Padding{lengths}, mha::SoftCap{.cap = 3}), tolerance<T>());
    if (kv_model == config.d_model) expect_close(layer(x), oracle(exact(x)), tolerance<T>());
  }
};
TYPED_TEST_SUITE(LayerConformance, LayerSetups);

TYPED_TEST(LayerConformance, AgreesWithTheDoubleReference) {
  TestFixture::check("plain", {.d_model = 24, .num_heads = 4});
  TestFixture::check("with bias", {.d_model = 24, .num_heads = 3, .bias = true}, mha::Causal{});
  TestFixture::check("grouped, other widths",
                     {.d_model = 20, .num_heads = 6, .head_dim = 7, .value_dim = 5, .kv_model = 31, .bias = true},
                     mha::GroupedQuery<2>{}, mha::SlidingWindow{.left = 11, .right = 4});
  TestFixture::check("one key head, per-head products", {.d_model = 48, .num_heads = 4, .bias = true, .scale = 0.2},
                     mha::MultiQuery{}, mha::PerHeadProjection{}, mha::Alibi{});
  TestFixture::check("no output", {.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .value_dim = 9},
                     mha::GroupedQuery<mha::Dynamic>{}, mha::NoOutput{}, mha::Causal{});
}

TYPED_TEST(LayerConformance, BiasesOfEveryChoiceOfProjections) {
  for (int choice = 0; choice < 16; ++choice) {
    const auto chosen = [&](int projection) { return (choice >> projection) % 2 == 1; };
    const Config config{.d_model = 40,
                        .num_heads = 4,
                        .num_kv_heads = 2,
                        .value_dim = 9,
                        .bias = chosen(0),  // what the next says otherwise
                        .query_bias = chosen(0) ? std::nullopt : std::optional(false),
                        .key_bias = chosen(1),
                        .value_bias = chosen(2),
                        .output_bias = chosen(3)};
    TestFixture::check(("choice " + std::to_string(choice)).c_str(), config, mha::GroupedQuery<mha::Dynamic>{},
                       mha::PerHeadProjection{});
    TestFixture::check(("choice " + std::to_string(choice)).c_str(), config, mha::GroupedQuery<mha::Dynamic>{});
  }
}

TYPED_TEST(LayerConformance, FusedAndPerHeadProjectionsGiveTheSameValues) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  const Config config{.d_model = 32, .num_heads = 4, .num_kv_heads = 2, .head_dim = 9, .value_dim = 6, .bias = true};
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>> fused(config);
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::PerHeadProjection> apart(config);
  fused.initialize(mha::XavierUniform{.seed = 11});
  apart.initialize(mha::XavierUniform{.seed = 11});
  Random random("fused");
  const auto bias_of = [&](auto& p) {
    Random same("bias");
    for (auto* w : {&p.query, &p.key, &p.value})
      for (Index h = 0; h < w->head_count(); ++h)
        for (Index d = 0; d < w->head_dim(); ++d) w->bias(h, d) = same.rounded<T>(same.normal());
  };
  fused.update(bias_of);
  apart.update(bias_of);
  const auto x = random_rows<T>(2, 21, 32, random);
  expect_close(apart(x), fused(x), tolerance<T>());
}

TYPED_TEST(LayerConformance, BorrowedTransposedWeightsEqualOwnedOnes) {
  using T = typename TypeParam::T;
  const Config config{
      .d_model = 24, .num_heads = 4, .num_kv_heads = 2, .head_dim = 5, .value_dim = 7, .kv_model = 18, .bias = true};
  mha::MultiHeadAttention<T, typename TypeParam::Backend, mha::GroupedQuery<2>> owned(config), borrowed(config);
  owned.initialize(mha::XavierUniform{.seed = 12});
  Random random("borrowed");
  owned.update([&](auto& p) {
    for (T& x : p.flat()) x = random.rounded<T>(random.normal() / 4);
  });
  const auto p = owned.parameters();
  // As a checkpoint stores them: (out, in).
  const auto out_in = [](const auto& w) {
    mha::Tensor<T, 2> t(w.extent[1], w.extent[0]);
    for (Index i = 0; i < w.extent[0]; ++i)
      for (Index j = 0; j < w.extent[1]; ++j) t(j, i) = w(i, j);
    return t;
  };
  struct Checkpoint {
    mha::Tensor<T, 2> query, key, value, output;
  };
  auto file = std::make_shared<Checkpoint>(Checkpoint{out_in(p.query.matrix()), out_in(p.key.matrix()),
                                                      out_in(p.value.matrix()), out_in(p.output.matrix())});
  const Checkpoint& w = *file;
  borrowed.borrow({.query = mha::transposed(w.query.view()),
                   .key = mha::transposed(w.key.view()),
                   .value = mha::transposed(w.value.view()),
                   .output = mha::transposed(w.output.view()),
                   .query_bias = p.query.bias_row(),
                   .key_bias = p.key.bias_row(),
                   .value_bias = p.value.bias_row(),
                   .output_bias = p.output.bias},
                  file);
  file.reset();  // the layer keeps it
  const auto x = random_rows<T>(2, 13, 24, random), memory = random_rows<T>(2, 21, 18, random);
  expect_close(borrowed(x, memory), owned(x, memory), tolerance<T>());
}

TYPED_TEST(LayerConformance, GroupsOfOneAreMultiHead) {
  using T = typename TypeParam::T;
  using B = typename TypeParam::Backend;
  const Config config{.d_model = 24, .num_heads = 4};
  mha::MultiHeadAttention<T, B> each(config);
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<4>> grouped(config);
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<1>> one_group(config);
  mha::MultiHeadAttention<T, B, mha::MultiQuery> one_head(config);
  const mha::XavierUniform draw{.seed = 13};
  each.initialize(draw);
  grouped.initialize(draw);
  one_group.initialize(draw);
  one_head.initialize(draw);
  Random random("groups");
  const auto x = random_rows<T>(2, 17, 24, random);
  EXPECT_EQ(support::differing(grouped(x), each(x)), 0u);
  EXPECT_EQ(support::differing(one_head(x), one_group(x)), 0u);
}

TYPED_TEST(LayerConformance, MemoryMayOverlapTheQueries) {
  using T = typename TypeParam::T;
  mha::MultiHeadAttention<T, typename TypeParam::Backend> layer({.d_model = 16, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 14});
  Random random("overlap");
  const auto x = random_rows<T>(1, 30, 16, random);
  // The first rows of the same memory, as queries of the whole and as memory of the whole.
  const auto head = mha::view(x.data(), 1, 5, 16);
  mha::Tensor<T, 3> copy(1, 5, 16);
  std::copy_n(x.data(), copy.size(), copy.data());
  EXPECT_EQ(support::differing(layer(x, head), layer(x, copy)), 0u);
  EXPECT_EQ(support::differing(layer(head, x), layer(copy, x)), 0u);
}

TYPED_TEST(LayerConformance, StridedAndEigenInputsGiveTheSameValues) {
  using T = typename TypeParam::T;
  mha::MultiHeadAttention<T, typename TypeParam::Backend, mha::Causal> layer({.d_model = 16, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 15});
  Random random("strided");
  const auto x = random_rows<T>(1, 12, 16, random);
  const auto expected = layer(x);
  // Rows of a wider matrix, every second column, in a wider result.
  mha::Tensor<T, 2> wide(12, 40), result(12, 20);
  random.fill(wide);
  support::poison_all(result);
  for (Index l = 0; l < 12; ++l)
    for (Index e = 0; e < 16; ++e) wide(l, 3 + 2 * e) = x(0, l, e);
  const mha::TensorView<const T, 2> every_second{wide.data() + 3, {12, 16}, {40, 2}};
  const mha::TensorView<T, 2> inside{result.data() + 2, {12, 16}, {20, 1}};
  layer(every_second, mha::into(mha::TensorView<T, 2>(inside)));
  for (Index l = 0; l < 12; ++l)
    for (Index e = 0; e < 20; ++e)
      if (e < 2 || e >= 18) {
        EXPECT_EQ(support::bits(result(l, e)), support::bits(support::poison<T>())) << l << ", " << e;
      } else {
        EXPECT_NEAR(support::to_double(result(l, e)), support::to_double(expected(0, l, e - 2)), tolerance<T>()) << l;
      }
  if constexpr (std::is_floating_point_v<T>) {
    Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> columns(12, 16);
    for (Index l = 0; l < 12; ++l)
      for (Index e = 0; e < 16; ++e) columns(l, e) = x(0, l, e);
    const auto y = layer(columns);
    static_assert(decltype(y)::IsRowMajor);
    for (Index l = 0; l < 12; ++l)
      for (Index e = 0; e < 16; ++e) EXPECT_NEAR(y(l, e), expected(0, l, e), tolerance<T>());
  }
}

// What every comparison here rests on.
TEST(LargestDifference, SeesANaNAtEveryPlaceAndEqualInfinitiesAsEqual) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> expected{1, -inf, 3}, near{1.5, -inf, 3.25};
  EXPECT_EQ(support::largest_difference(near, expected), 0.5);
  EXPECT_EQ(support::largest_difference(std::vector<double>{1, inf, 3}, expected), inf);
  EXPECT_EQ(support::largest_difference(std::vector<double>{1, -inf}, expected), inf);
  for (std::size_t at = 0; at < expected.size(); ++at) {
    std::vector<double> value = near;
    value[at] = nan;
    EXPECT_TRUE(std::isnan(support::largest_difference(value, expected))) << at;
  }
}

}  // namespace
