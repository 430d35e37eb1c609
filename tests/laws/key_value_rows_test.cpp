// SPDX-License-Identifier: Apache-2.0
// Keys and values of different rows: layer(x, keys, values) attends to what two layers make, one of the keys, one of
// the values, and has their gradients.
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;

constexpr Index E = 24, K = 10, V = 7;  // widths of x, of rows of keys and of rows of values
const mha::Config config{
    .d_model = E, .num_heads = 6, .head_dim = 8, .value_dim = 5, .kv_model = K, .value_model = V, .bias = true};

template <class T, class B>
using Layer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::Rotary<>, mha::QkNorm, mha::SoftCap>;

/// A layer, and two whose memories are as wide as its rows of keys, or of values.
template <class T, class B> struct Layers {
  Layer<T, B> whole = of(config), of_keys, of_values;

  explicit Layers(support::Random& random) : of_keys(as_wide(K)), of_values(as_wide(V)) {
    whole.update([&](auto& p) {
      for (T& w : p.flat()) w = random.rounded<T>(random.uniform(-0.5, 0.5));
    });
    const auto p = whole.parameters();
    of_keys.update([&](auto& q) { copy(p.key, q.key), copy(p.key_norm, q.key_norm); });
    of_values.update([&](auto& q) { copy(p.value, q.value); });
  }

  /// The gradients of keys and values, to rows of keys and rows of values.
  template <class D> void backward(D& d, const auto& keys, const auto& values, auto& to_keys, auto& to_values) const {
    auto tape = of_keys.memory_tape();
    auto only = of_keys.key_value_gradients(d.key.extent(0), d.key.extent(1));
    only.key = d.key;
    static_cast<void>(of_keys.project_memory(keys, tape));
    of_keys.backward(only, tape, mha::into(to_keys));
    only.clear();
    only.value = d.value;
    static_cast<void>(of_values.project_memory(values, tape));
    of_values.backward(only, tape, mha::into(to_values));
  }

 private:
  static Layer<T, B> of(const mha::Config& c) { return Layer<T, B>(c, mha::SoftCap{.cap = 4}); }
  static Layer<T, B> as_wide(Index width) {
    mha::Config c = config;
    c.kv_model = c.value_model = width;
    Layer<T, B> layer = of(c);
    layer.initialize(mha::XavierUniform{.seed = 1});
    return layer;
  }
  static void copy(const mha::HeadWeights<const T>& from, const mha::HeadWeights<T>& to) {
    for (Index h = 0; h < from.head_count(); ++h)
      for (Index d = 0; d < from.head_dim(); ++d) {
        for (Index e = 0; e < from.model(); ++e) to.heads(h, e, d) = from.heads(h, e, d);
        to.bias(h, d) = from.bias(h, d);
      }
  }
  static void copy(const mha::TensorView<const T, 1>& from, const mha::TensorView<T, 1>& to) {
    for (Index i = 0; i < from.extent[0]; ++i) to(i) = from(i);
  }
};

template <class T> Tensor<T, 3> drawn(support::Random& random, Index b, Index l, Index e) {
  Tensor<T, 3> x(b, l, e);
  random.fill(x);
  return x;
}

template <class T, class B, class... Extra>
void expect_forward(const Layers<T, B>& layers, const Tensor<T, 3>& x, const Tensor<T, 3>& keys,
                    const Tensor<T, 3>& values, const mha::KeyValues<T>& made, const Extra&... extra) {
  using A = mha::Accumulator<T>;
  const Index b = x.extent(0), l = x.extent(1);
  Tensor<T, 3> y(b, l, E), expected(b, l, E);
  Tensor<A, 3> lse(b, config.num_heads, l), of_made(b, config.num_heads, l);
  support::poison_all(y);
  support::poison_all(lse);
  mha::Workspace workspace;
  layers.whole(x, keys, values, mha::into(y), mha::LogSumExp(lse), mha::residual(x), workspace, extra...);
  layers.whole(x, made, mha::into(expected), mha::LogSumExp(of_made), mha::residual(x), extra...);
  EXPECT_LT(support::largest_difference(y, expected), 60 * support::unit_roundoff<T>());
  EXPECT_LT(support::largest_difference(lse, of_made), 60 * support::unit_roundoff<T>());
  support::poison_all(y);
  const int allocations = workspace.allocations();
  layers.whole(x, keys, values, mha::into(y), mha::LogSumExp(lse), mha::residual(x), workspace, extra...);
  EXPECT_EQ(workspace.allocations(), allocations);
  EXPECT_LT(support::largest_difference(y, expected), 60 * support::unit_roundoff<T>());
}

template <class T, class B> void expect_rows_apart(const char* name) {
  SCOPED_TRACE(name);
  support::Random random(name);
  const Layers<T, B> layers(random);
  const auto x = drawn<T>(random, 3, 9, E);
  for (const Index batch : {3, 1}) {
    const auto keys = drawn<T>(random, batch, 21, K), values = drawn<T>(random, batch, 21, V);
    const mha::KeyValues<T> made{layers.of_keys.project_memory(keys).key,
                                 layers.of_values.project_memory(values).value};
    const std::vector<Index> lengths{21, 4, 0};
    expect_forward(layers, x, keys, values, made, mha::Causal{});
    expect_forward(layers, x, keys, values, made, mha::Padding{lengths}, mha::Origin{3});
  }
  const auto rows = drawn<T>(random, 1, 27, E), keys = drawn<T>(random, 1, 40, K), values = drawn<T>(random, 1, 40, V);
  const std::vector<Index> of_x{0, 4, 4, 27}, of_memory{0, 17, 20, 40};
  const mha::KeyValues<T> made{layers.of_keys.project_memory(keys, mha::Ragged{of_memory}).key,
                               layers.of_values.project_memory(values, mha::Ragged{of_memory}).value, of_memory};
  expect_forward(layers, rows, keys, values, made, mha::Ragged{of_x, of_memory});
}

TEST(KeyValueRows, AreThoseOfTwoLayers) {
  expect_rows_apart<float, mha::Cpu>("cpu float");
  expect_rows_apart<double, mha::Cpu>("cpu double");
  expect_rows_apart<mha::half, mha::Cpu>("cpu half");
  expect_rows_apart<float, mha::Systolic<>>("systolic float");
  expect_rows_apart<mha::bfloat16, mha::Systolic<>>("systolic bfloat16");
  expect_rows_apart<float, mha::EigenCpu>("eigen float");
  expect_rows_apart<double, mha::Reference>("reference double");
}

template <class T, class B> void expect_gradients_apart(const char* name, double bound) {
  SCOPED_TRACE(name);
  support::Random random(name);
  const Layers<T, B> layers(random);
  const auto x = drawn<T>(random, 2, 9, E), dy = drawn<T>(random, 2, 9, E), keys = drawn<T>(random, 2, 21, K),
             values = drawn<T>(random, 2, 21, V);
  auto tape = layers.whole.tape();
  const auto y = layers.whole(x, keys, values, tape, mha::Causal{});
  EXPECT_EQ(support::differing(layers.whole(x, keys, values, mha::Causal{}), y), 0u);
  auto g = layers.whole.gradients();
  Tensor<T, 3> d_keys(2, 21, K), d_values(2, 21, V), by_keys(2, 21, K), by_values(2, 21, V);
  support::poison_all(d_keys);
  support::poison_all(d_values);
  const auto dx = layers.whole.backward(dy, tape, g, mha::memory_into(d_keys, d_values));

  const mha::KeyValues<T> made{layers.of_keys.project_memory(keys).key, layers.of_values.project_memory(values).value};
  auto other = layers.whole.tape();
  static_cast<void>(layers.whole(x, made, other, mha::Causal{}));
  auto h = layers.whole.gradients();
  auto d = layers.whole.key_value_gradients(2, 21);
  const auto expected = layers.whole.backward(dy, other, h, d);
  layers.backward(d, keys, values, by_keys, by_values);
  EXPECT_LT(support::largest_difference(dx, expected), bound);
  EXPECT_LT(support::largest_difference(d_keys, by_keys), bound);
  EXPECT_LT(support::largest_difference(d_values, by_values), bound);

  auto of_memory = layers.whole.memory_tape();
  const auto projected = layers.whole.project_memory(keys, values, of_memory);
  static_cast<void>(layers.whole(x, projected, other, mha::Causal{}));
  auto i = layers.whole.gradients();
  d.clear();
  static_cast<void>(layers.whole.backward(dy, other, i, d));
  layers.whole.backward(d, of_memory, i, mha::memory_into(by_keys, by_values));
  EXPECT_LT(support::largest_difference(d_keys, by_keys), bound);
  EXPECT_LT(support::largest_difference(d_values, by_values), bound);
  for (std::size_t n = 0; n < g.flat().size(); ++n)
    ASSERT_NEAR(static_cast<double>(g.flat()[n]), static_cast<double>(i.flat()[n]), 20 * bound) << "parameter " << n;
}

TEST(KeyValueRows, HaveTheGradientsOfTwoLayers) {
  expect_gradients_apart<float, mha::Cpu>("gradients cpu float", 1e-4);
  expect_gradients_apart<double, mha::Cpu>("gradients cpu double", 1e-12);
  expect_gradients_apart<float, mha::Systolic<>>("gradients systolic float", 1e-4);
  expect_gradients_apart<mha::bfloat16, mha::Cpu>("gradients cpu bfloat16", 0.1);
  expect_gradients_apart<float, mha::EigenCpu>("gradients eigen float", 1e-4);
  expect_gradients_apart<double, mha::Reference>("gradients reference double", 1e-12);
}

}  // namespace
