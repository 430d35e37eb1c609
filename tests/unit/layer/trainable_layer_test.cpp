// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <Eigen/Core>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using support::inner;
using support::message_of;
using Reference = mha::Reference;
using Rows = mha::Tensor<double, 3>;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class... Policies> using Exact = mha::MultiHeadAttention<double, Reference, Policies...>;

template <class T = double> mha::Tensor<T, 3> random_rows(const std::string& stream, Index b, Index l, Index e) {
  mha::Tensor<T, 3> x(b, l, e);
  support::Random(stream).fill(x);
  return x;
}
template <class Layer> void draw(Layer& layer, const std::string& stream) {
  support::Random random(stream);
  layer.update([&](auto& p) {
    for (auto& w : p.flat())
      w = random.rounded<std::remove_reference_t<decltype(w)>>(random.normal() / std::sqrt(layer.config().d_model));
  });
}
/// The derivative of loss() by x, of the fourth order; x must be written to take effect: set(x).
template <class Loss, class Set> double quotient(const Loss& loss, double at, const Set& set) {
  const double step = 0x1p-15;
  const auto across = [&](double by) {
    set(at + by);
    const double up = loss();
    set(at - by);
    return up - loss();
  };
  const double slope = (8 * across(step) - across(2 * step)) / (12 * step);
  set(at);
  return slope;
}

/// Gradients of ⟨dy, layer(inputs…, extra…)⟩ against difference quotients, of every element.
template <class Layer, class Call>
void expect_parameters(const char* name, Layer& layer, const mha::LayerGradients<double>& g, const Call& loss) {
  for (std::size_t i = 0; i < g.flat().size(); ++i) {
    const double expected = quotient(loss, layer.parameters().flat()[i],
                                     [&](double w) { layer.update([&](auto& p) { p.flat()[i] = w; }); });
    ASSERT_NEAR(g.flat()[i], expected, 1e-7 * (1 + std::abs(expected))) << name << ", parameter " << i;
  }
}
template <class Loss> void expect_rows(const char* name, const char* of, Rows& x, const Rows& dx, const Loss& loss) {
  ASSERT_EQ(x.size(), dx.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = quotient(loss, x.data()[i], [&](double value) { x.data()[i] = value; });
    ASSERT_NEAR(dx.data()[i], expected, 1e-7 * (1 + std::abs(expected))) << name << ", " << of << " " << i;
  }
}

template <class Layer, class... Extra>
void expect_self(const char* name, Layer& layer, Index batch, Index length, const Extra&... extra) {
  draw(layer, name);
  Rows x = random_rows(std::string(name) + " x", batch, length, layer.config().d_model);
  auto tape = layer.tape();
  const auto plain = layer(x, extra...);
  const auto y = layer(x, tape, extra...);
  EXPECT_EQ(support::differing(plain, y), 0u) << name;
  const Rows dy = random_rows(std::string(name) + " dy", batch, length, y.extent(2));
  auto g = layer.gradients();
  const Rows dx = layer.backward(dy, tape, g);
  const auto loss = [&] { return inner(dy, layer(x, extra...)); };
  expect_rows(name, "x", x, dx, loss);
  expect_parameters(name, layer, g, loss);
}

template <class Layer, class... Extra>
void expect_cross(const char* name, Layer& layer, Index batch, Index queries, Index keys, const Extra&... extra) {
  draw(layer, name);
  Rows x = random_rows(std::string(name) + " x", batch, queries, layer.config().d_model);
  Rows memory = random_rows(std::string(name) + " memory", batch, keys, layer.config().kv_model);
  auto tape = layer.tape();
  const auto y = layer(x, memory, tape, extra...);
  EXPECT_EQ(support::differing(layer(x, memory, extra...), y), 0u) << name;
  const Rows dy = random_rows(std::string(name) + " dy", batch, queries, y.extent(2));
  auto g = layer.gradients();
  Rows d_memory(batch, keys, layer.config().kv_model);
  support::poison_all(d_memory);
  const Rows dx = layer.backward(dy, tape, g, mha::memory_into(d_memory));
  const auto loss = [&] { return inner(dy, layer(x, memory, extra...)); };
  expect_rows(name, "x", x, dx, loss);
  expect_rows(name, "memory", memory, d_memory, loss);
  expect_parameters(name, layer, g, loss);
}

/// The same with keys and values of different rows.
template <class Layer, class... Extra>
void expect_apart(const char* name, Layer& layer, Index batch, Index queries, Index length, const Extra&... extra) {
  draw(layer, name);
  const mha::Config& c = layer.config();
  Rows x = random_rows(std::string(name) + " x", batch, queries, c.d_model);
  Rows keys = random_rows(std::string(name) + " keys", batch, length, c.kv_model);
  Rows values = random_rows(std::string(name) + " values", batch, length, c.value_model);
  auto tape = layer.tape();
  const auto y = layer(x, keys, values, tape, extra...);
  EXPECT_EQ(support::differing(layer(x, keys, values, extra...), y), 0u) << name;
  const Rows dy = random_rows(std::string(name) + " dy", batch, queries, y.extent(2));
  auto g = layer.gradients();
  Rows d_keys(batch, length, c.kv_model), d_values(batch, length, c.value_model);
  support::poison_all(d_keys);
  support::poison_all(d_values);
  const Rows dx = layer.backward(dy, tape, g, mha::memory_into(d_keys, d_values));
  const auto loss = [&] { return inner(dy, layer(x, keys, values, extra...)); };
  expect_rows(name, "x", x, dx, loss);
  expect_rows(name, "keys", keys, d_keys, loss);
  expect_rows(name, "values", values, d_values, loss);
  expect_parameters(name, layer, g, loss);
}

struct Bent {
  template <class T> T operator()(T s, Index, Index h, Index q, Index k) const {
    return mha::tanh(s * 0.5) * (1 + 0.25 * h) - 0.1 * mha::abs(q - k);
  }
};

TEST(TrainableLayer, GradientsOfSelfAttention) {
  Exact<> plain({.d_model = 6, .num_heads = 3, .bias = true});
  expect_self("plain", plain, 2, 5);
  expect_self("one row", plain, 1, 1);
  expect_self("causal", plain, 1, 4, mha::Causal{});
  const std::vector<Index> lengths{3, 5};
  expect_self("padded", plain, 2, 5, mha::Padding{lengths}, Bent{});
  const std::vector<Index> offsets{0, 3, 3, 7};
  expect_self("ragged", plain, 1, 7, mha::Ragged{offsets}, mha::Causal{});
}

TEST(TrainableLayer, GradientsOfGroupsPositionsAndValuesOfAnotherSize) {
  Exact<mha::GroupedQuery<2>, mha::Causal, mha::Rotary<mha::Interleaved>> grouped(
      {.d_model = 5, .num_heads = 4, .head_dim = 6, .value_dim = 3, .bias = true, .key_bias = false, .scale = 0.7},
      mha::Rotary<mha::Interleaved>{.base = 100, .dims = 4});
  expect_self("grouped", grouped, 2, 4);
  expect_self("grouped, further on", grouped, 2, 3, mha::Origin{2});
  const std::vector<Index> offsets{0, 4, 6};
  expect_self("grouped, ragged", grouped, 1, 6, mha::Ragged{offsets});
}

/// A position of the user's: the first two coordinates turn, and the third grows with the position.
struct Spiral {
  static constexpr auto role = mha::Role::position;
  template <class T> void apply(const mha::TensorView<T, 4>& x, const mha::Origins& first) const { turn(x, first, 1); }
  template <class A> void apply_back(const mha::TensorView<A, 4>& gradient, const mha::Origins& first) const {
    turn(gradient, first, -1);
  }
  template <class T> static void turn(const mha::TensorView<T, 4>& x, const mha::Origins& first, double sign) {
    for (Index b = 0; b < x.extent[0]; ++b)
      for (Index l = 0; l < x.extent[1]; ++l)
        for (Index h = 0; h < x.extent[2]; ++h) {
          const double p = first[b] + l, c = std::cos(p), s = sign * std::sin(p);
          const double u = double(x(b, l, h, 0)), v = double(x(b, l, h, 1));
          const double turned[] = {c * u - s * v, s * u + c * v, double(x(b, l, h, 2)) * (1 + 0.25 * p)};
          for (Index d = 0; d < 3; ++d) x(b, l, h, d) = T(static_cast<mha::Accumulator<T>>(turned[d]));
        }
  }
};

TEST(TrainableLayer, GradientsOfAPositionOfTheUsers) {
  Exact<Spiral, mha::Causal> layer({.d_model = 6, .num_heads = 2});
  expect_self("spiral", layer, 2, 4);
  expect_self("spiral, further on", layer, 2, 3, mha::Origin{2});
  const std::vector<Index> offsets{0, 4, 4, 7}, first{3, 0, 1};
  expect_self("spiral, ragged", layer, 1, 7, mha::Ragged{offsets}, mha::Origin{first});
  Exact<Spiral, mha::QkNorm> cross({.d_model = 6, .num_heads = 2, .kv_model = 4});
  expect_cross("spiral, cross", cross, 2, 3, 4);
}

/// One prompt and two texts after it: a row sees the prompt, and the rows of its own text up to itself.
struct AfterOnePrompt {
  bool operator()(int, int, int q, int k) const { return k <= q && (part(k) == 0 || part(k) == part(q)); }
  static int part(int row) { return row < 3 ? 0 : row < 5 ? 1 : 2; }
};

TEST(TrainableLayer, GradientsOfRowsAtPositionsOfTheirOwn) {
  const std::vector<Index> position{0, 1, 2, 3, 4, 3, 4, 5}, twice{0, 1, 2, 3, 4, 3, 4, 5, 7, 5, 3, 1, 0, 2, 4, 6};
  Exact<mha::GroupedQuery<2>, mha::Rotary<>, mha::QkNorm> layer({.d_model = 8, .num_heads = 4});
  expect_self("positions", layer, 1, 8, AfterOnePrompt{}, mha::Positions{position});
  expect_self("positions of a batch", layer, 2, 8, mha::Causal{}, mha::Positions{twice});
  const std::vector<Index> offsets{0, 3, 3, 8};
  expect_self("positions, ragged", layer, 1, 8, mha::Ragged{offsets}, mha::Positions{position});
  Exact<Spiral> spiral({.d_model = 6, .num_heads = 2});
  expect_self("positions of a spiral", spiral, 2, 4, mha::Positions{position});
  Exact<mha::Rotary<>> cross({.d_model = 6, .num_heads = 3, .kv_model = 4});
  const std::vector<Index> apart{5, 2, 7, 4, 0, 1};
  expect_cross("positions, cross", cross, 2, 3, 4, mha::Positions{apart});
}

TEST(TrainableLayer, PositionsOfXAreThoseOfKeysMadeFromItAsTheMemoryToo) {
  mha::MultiHeadAttention<double, mha::Cpu, mha::Rotary<>, mha::QkNorm> layer({.d_model = 8, .num_heads = 2});
  draw(layer, "x as the memory");
  const std::vector<Index> position{0, 9, 2, 7, 4};
  const Rows x = random_rows("x as the memory", 1, 5, 8), dy = random_rows("x as the memory, dy", 1, 5, 8);
  auto tape = layer.tape(), tape_of_both = layer.tape();
  auto expected = layer.gradients(), g = layer.gradients();
  const Rows y = layer(x, tape, mha::Positions{position}),
             y_of_both = layer(x, x, tape_of_both, mha::Positions{position});
  EXPECT_TRUE(std::ranges::equal(y_of_both, y));
  const Rows exact = layer.backward(dy, tape, expected);
  Rows d_memory(1, 5, 8);
  const Rows dx = layer.backward(dy, tape_of_both, g, mha::memory_into(d_memory));
  for (std::size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx.data()[i] + d_memory.data()[i], exact.data()[i], 1e-12);
  for (std::size_t i = 0; i < g.flat().size(); ++i) EXPECT_NEAR(g.flat()[i], expected.flat()[i], 1e-12) << i;
}

TEST(TrainableLayer, TextsAfterOnePromptHaveTheGradientsOfThePromptBeforeEach) {
  mha::MultiHeadAttention<double, mha::Cpu, mha::Rotary<>> layer({.d_model = 8, .num_heads = 2});
  draw(layer, "one prompt");
  const std::vector<Index> position{0, 1, 2, 3, 4, 3, 4, 5}, copied{0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7}, offsets{0, 5, 11};
  const Rows x = random_rows("one prompt x", 1, 8, 8), dy = random_rows("one prompt dy", 1, 8, 8);
  Rows twice(1, 11, 8), dy_twice(1, 11, 8);  // the prompt before each text; its rows have a gradient once
  for (Index i = 0; i < 11; ++i)
    for (Index e = 0; e < 8; ++e) {
      const Index from = copied[static_cast<std::size_t>(i)];
      twice(0, i, e) = x(0, from, e);
      if (i < 5 || i >= 8) dy_twice(0, i, e) = dy(0, from, e);
    }
  auto tape = layer.tape(), tape_twice = layer.tape();
  auto g = layer.gradients(), expected = layer.gradients();
  static_cast<void>(layer(x, tape, AfterOnePrompt{}, mha::Positions{position}));
  static_cast<void>(layer(twice, tape_twice, mha::Causal{}, mha::Ragged{offsets}));
  const Rows dx = layer.backward(dy, tape, g), dx_twice = layer.backward(dy_twice, tape_twice, expected);
  for (std::size_t i = 0; i < g.flat().size(); ++i) EXPECT_NEAR(g.flat()[i], expected.flat()[i], 1e-12) << i;
  for (Index i = 0; i < 8; ++i)
    for (Index e = 0; e < 8; ++e) {
      const double sum = i < 3 ? dx_twice(0, i, e) + dx_twice(0, i + 5, e) : dx_twice(0, i < 5 ? i : i + 3, e);
      EXPECT_NEAR(dx(0, i, e), sum, 1e-12) << i << ", " << e;
    }

  // A tape forgets the positions of the call before.
  static_cast<void>(layer(x, tape, mha::Causal{}));
  auto in_order = layer.gradients(), again = layer.gradients();
  static_cast<void>(layer.backward(dy, tape, in_order));
  static_cast<void>(layer(x, tape_twice, mha::Causal{}));
  static_cast<void>(layer.backward(dy, tape_twice, again));
  EXPECT_TRUE(std::ranges::equal(in_order.flat(), again.flat()));
  const std::vector<Index> seven(7);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, tape, mha::Positions{seven})); }),
            "layer: Positions has 7 numbers, but x has 8 rows");
}

TEST(TrainableLayer, APositionOfTheUsersIsGivenFloatGradientsOfALayerOf16Bits) {
  mha::MultiHeadAttention<mha::bfloat16, mha::Cpu, Spiral> narrow({.d_model = 6, .num_heads = 2});
  mha::MultiHeadAttention<float, mha::Cpu, Spiral> wide({.d_model = 6, .num_heads = 2});
  draw(narrow, "spiral of 16 bits");
  wide.borrow(narrow.parameters());
  const auto x = random_rows<mha::bfloat16>("spiral of 16 bits, x", 1, 5, 6);
  mha::Tensor<float, 3> same(1, 5, 6);
  for (std::size_t i = 0; i < x.size(); ++i) same.data()[i] = float(x.data()[i]);
  auto narrow_tape = narrow.tape();
  auto wide_tape = wide.tape();
  auto g = narrow.gradients();
  auto expected = wide.gradients();
  static_cast<void>(narrow(x, narrow_tape)), static_cast<void>(wide(same, wide_tape));
  static_cast<void>(narrow.backward(x, narrow_tape, g)), static_cast<void>(wide.backward(same, wide_tape, expected));
  float largest = 0, apart = 0;
  for (std::size_t i = 0; i < g.flat().size(); ++i) {
    largest = std::max(largest, std::abs(expected.flat()[i]));
    apart = std::max(apart, std::abs(g.flat()[i] - expected.flat()[i]));
  }
  EXPECT_LT(apart, 0.05f * largest);
}

TEST(TrainableLayer, GradientsOfNormGatesAndSink) {
  const mha::Sink sink({0.5f, -1.f, 2.f});
  using Layer = Exact<mha::MultiQuery, mha::Causal, mha::Rotary<>, mha::QkNorm, mha::GatedHeads, mha::Sink>;
  const mha::Config config{.d_model = 6, .num_heads = 3, .head_dim = 4, .value_dim = 5, .output_bias = true};
  Layer layer(config, sink);
  expect_self("everything", layer, 2, 4);

  const Rows x = random_rows("sink x", 2, 4, 6), dy = random_rows("sink dy", 2, 4, 6);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape));
  static_cast<void>(layer.backward(dy, tape, g));
  for (Index h = 0; h < 3; ++h) {
    constexpr float change = 0x1p-10f;
    const auto loss = [&](float by) {
      auto logits = sink.per_head();
      logits[static_cast<std::size_t>(h)] += by;
      Layer other(config, mha::Sink(logits));
      other.borrow(layer);
      return inner(dy, other(x));
    };
    EXPECT_NEAR(g.sink(h), (loss(change) - loss(-change)) / (2 * double(change)), 1e-6) << h;
  }
}

TEST(TrainableLayer, GradientsOfWhatDropoutKeeps) {
  Exact<mha::GroupedQuery<2>, mha::Causal, mha::Dropout> layer({.d_model = 6, .num_heads = 4, .head_dim = 2},
                                                               mha::Dropout{.p = 0.4f});
  expect_self("dropout", layer, 2, 5, mha::DropoutSeed{support::seed()});
  const std::vector<Index> offsets{0, 3, 7};
  expect_self("dropout, ragged", layer, 1, 7, mha::Ragged{offsets}, mha::DropoutSeed{3, 4});
}

TEST(TrainableLayer, DropsWithASeedAlone) {
  const mha::Config config{.d_model = 16, .num_heads = 4};
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal, mha::Dropout> layer(config, mha::Dropout{.p = 0.5f});
  draw(layer, "seed alone");
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> plain(config);
  plain.borrow(layer);
  const auto x = random_rows<float>("seed alone x", 2, 40, 16);
  EXPECT_EQ(support::differing(layer(x), plain(x)), 0u);
  const mha::DropoutSeed seed{support::seed(), 1};
  const auto y = layer(x, seed);
  EXPECT_GT(support::differing(y, plain(x)), 0u);
  EXPECT_EQ(support::differing(y, layer(x, seed)), 0u);
  auto tape = layer.tape();
  EXPECT_EQ(support::differing(y, layer(x, tape, seed)), 0u);
  EXPECT_GT(support::differing(y, layer(x, mha::DropoutSeed{support::seed(), 2})), 0u);
  // By hand: what is dropped of the weights is missing in the heads.
  const auto weights = layer.attention_weights(x, seed), all = layer.attention_weights(x);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h)
      for (Index q = 0; q < 40; ++q)
        for (Index k = 0; k < 40; ++k)
          EXPECT_EQ(weights(b, h, q, k),
                    mha::dropout_keeps(mha::Dropout{.p = 0.5f}, seed, 4, b, h, q, k) ? 2 * all(b, h, q, k) : 0.f);
}

TEST(TrainableLayer, CountsTheMatricesThatItsBackwardPassUnpacks) {
  const auto unpacked = [](auto layer) {
    layer.initialize(mha::XavierUniform{.seed = 1});
    const double before = layer.backward_cost(1, 4, 4).scratch_bytes;
    layer.drop_unpacked();
    return layer.backward_cost(1, 4, 4).scratch_bytes - before;
  };
  const mha::Config config{.d_model = 8, .num_heads = 4, .head_dim = 3, .value_dim = 5, .kv_model = 7, .bias = true};
  const double made = 8 * 12 + 7 * 2 * (3 + 5);
  EXPECT_EQ(unpacked(mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>>(config)), 4 * (made + 20 * 8));
  EXPECT_EQ(unpacked(mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::NoOutput>(config)), 4 * made);
}

TEST(TrainableLayer, RefusesAScoreThatUpdateMadeInvalid) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::AlibiSlopes> layer({.d_model = 4, .num_heads = 2},
                                                                   mha::AlibiSlopes({1, 2}));
  layer.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] { layer.update([](auto& p) { p.score = mha::AlibiSlopes({1}); }); }),
            "AlibiSlopes: 1 slopes for 2 heads");
  EXPECT_EQ(layer.score().per_head().size(), 2u);
}

TEST(TrainableLayer, RefusesADropoutOfNoProbability) {
  using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Dropout>;
  EXPECT_EQ(message_of([] { Layer({.d_model = 4, .num_heads = 2}, mha::Dropout{.p = 1.f}); }),
            "layer: Dropout has p 1, it must be at least 0 and below 1");
}

TEST(TrainableLayer, GradientsWithoutAnOutputProjectionAndOfHeadsApart) {
  Exact<mha::GroupedQuery<2>, mha::PerHeadProjection, mha::NoOutput, mha::GatedHeads> apart(
      {.d_model = 5, .num_heads = 4, .head_dim = 2, .value_dim = 3, .bias = true});
  expect_self("heads apart", apart, 2, 3, mha::Causal{});
}

// The gradient of the residual is dy itself, which the layer neither keeps nor adds.
TEST(TrainableLayer, GradientsBesideAResidual) {
  Exact<mha::Causal> layer({.d_model = 6, .num_heads = 2, .bias = true});
  Rows r = random_rows("residual", 2, 3, 6);
  expect_self("residual", layer, 2, 3, mha::residual(r));
  Exact<mha::NoOutput> heads({.d_model = 6, .num_heads = 2});
  expect_self("residual without output", heads, 2, 3, mha::residual(r));
  const Rows x = random_rows("residual in place", 2, 3, 6), y = layer(x, mha::residual(r));
  auto tape = layer.tape();
  layer(x, mha::residual(r), tape, mha::into(r));
  EXPECT_EQ(support::differing(r, y), 0u);
  const Rows few(2, 2, 6);
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, tape, mha::residual(few))); }),
            "layer: x has length 3 but the residual has length 2");
}

TEST(TrainableLayer, GradientsOfCrossAttention) {
  Exact<mha::GroupedQuery<1>, mha::Rotary<>> cross(
      {.d_model = 4, .num_heads = 2, .head_dim = 4, .value_dim = 3, .kv_model = 5, .bias = true});
  const std::vector<Index> lengths{4, 2};
  expect_cross("cross", cross, 2, 3, 4, mha::Padding{lengths});
  const std::vector<Index> queries{0, 3, 5}, keys{0, 1, 6};
  expect_cross("cross, ragged", cross, 1, 5, 6, mha::Ragged{queries, keys});

  // A memory that is x itself has a gradient of its own.
  Exact<> same({.d_model = 4, .num_heads = 2});
  draw(same, "same");
  const Rows x = random_rows("same x", 1, 3, 4), dy = random_rows("same dy", 1, 3, 4);
  auto self = same.tape(), two = same.tape();
  auto g = same.gradients(), h = same.gradients();
  static_cast<void>(same(x, self));
  static_cast<void>(same(x, x, two));
  const Rows whole = same.backward(dy, self, g);
  Rows d_memory(1, 3, 4);
  const Rows dx = same.backward(dy, two, h, mha::memory_into(d_memory));
  for (std::size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx.data()[i] + d_memory.data()[i], whole.data()[i], 1e-12);
  for (std::size_t i = 0; i < g.flat().size(); ++i) EXPECT_NEAR(g.flat()[i], h.flat()[i], 1e-12);
}

TEST(TrainableLayer, GradientsOfKeysAndValuesOfDifferentRows) {
  Exact<mha::GroupedQuery<1>, mha::Rotary<>, mha::QkNorm> layer(
      {.d_model = 4, .num_heads = 2, .head_dim = 4, .value_dim = 3, .kv_model = 5, .value_model = 2, .bias = true});
  const std::vector<Index> lengths{4, 2};
  expect_apart("apart", layer, 2, 3, 4, mha::Padding{lengths});
  const std::vector<Index> queries{0, 3, 5}, keys{0, 1, 6};
  expect_apart("apart, ragged", layer, 1, 5, 6, mha::Ragged{queries, keys});
  Exact<mha::PerHeadProjection> heads({.d_model = 4, .num_heads = 2, .kv_model = 3});
  expect_apart("apart, heads", heads, 2, 2, 3);
}

/// Positions in queries and keys alone: x = s + p, and values of s. The gradient of s is the sum of all three.
TEST(TrainableLayer, GradientsOfSelfAttentionWithValuesOfOtherRows) {
  Exact<mha::Rotary<>> layer({.d_model = 4, .num_heads = 2});
  draw(layer, "positions");
  Rows s = random_rows("s", 2, 3, 4);
  const Rows p = random_rows("p", 2, 3, 4), dy = random_rows("positions dy", 2, 3, 4);
  const std::vector<Index> at{0, 4, 1, 2, 2, 7};
  const auto sum = [&] {
    Rows x = s;
    for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] += p.data()[i];
    return x;
  };
  const auto loss = [&] {
    const Rows x = sum();
    return inner(dy, layer(x, x, s, mha::Positions{at}));
  };
  const Rows x = sum();
  auto tape = layer.tape();
  static_cast<void>(layer(x, x, s, tape, mha::Positions{at}));
  auto g = layer.gradients(), h = layer.gradients();
  Rows d_keys(2, 3, 4), d_values(2, 3, 4), d_s(2, 3, 4);
  const Rows dx = layer.backward(dy, tape, g, mha::memory_into(d_keys, d_values));
  layer.backward(dy, tape, h, mha::into(d_s), mha::memory_into(mha::add_to(d_s), mha::add_to(d_s)));
  for (std::size_t i = 0; i < dx.size(); ++i)
    EXPECT_NEAR(d_s.data()[i], dx.data()[i] + d_keys.data()[i] + d_values.data()[i], 1e-12);
  expect_rows("positions", "s", s, d_s, loss);
  expect_parameters("positions", layer, g, loss);
  for (std::size_t i = 0; i < g.flat().size(); ++i) EXPECT_EQ(g.flat()[i], h.flat()[i]);
}

/// Where all rows are the same, each of the three has a gradient of its own, if it is asked for.
TEST(TrainableLayer, GradientsOfThreeTimesTheSameRows) {
  Exact<> layer({.d_model = 4, .num_heads = 2});
  draw(layer, "thrice");
  const Rows x = random_rows("thrice x", 1, 3, 4), dy = random_rows("thrice dy", 1, 3, 4);
  auto self = layer.tape(), three = layer.tape();
  EXPECT_EQ(support::differing(layer(x, self), layer(x, x, x, three)), 0u);
  auto g = layer.gradients(), h = layer.gradients();
  const Rows whole = layer.backward(dy, self, g);
  Rows d_keys(1, 3, 4), d_values(1, 3, 4), d_memory(1, 3, 4);
  support::poison_all(d_values);
  const Rows dx = layer.backward(dy, three, h, mha::memory_into(d_keys, d_values));
  layer.backward(dy, three, mha::memory_into(d_memory));
  for (std::size_t i = 0; i < dx.size(); ++i) {
    EXPECT_NEAR(dx.data()[i] + d_keys.data()[i] + d_values.data()[i], whole.data()[i], 1e-12);
    EXPECT_NEAR(d_keys.data()[i] + d_values.data()[i], d_memory.data()[i], 1e-12);
  }
  for (std::size_t i = 0; i < g.flat().size(); ++i) EXPECT_NEAR(g.flat()[i], h.flat()[i], 1e-12);
}

TEST(TrainableLayer, RefusesPlacesThatDoNotFitKeysAndValues) {
  Exact<> layer({.d_model = 4, .num_heads = 2, .value_model = 3});
  draw(layer, "places");
  Rows x = random_rows("places x", 1, 3, 4), keys = random_rows("places keys", 1, 5, 4),
       values = random_rows("places values", 1, 5, 3);
  const Rows dy = random_rows("places dy", 1, 3, 4);
  auto tape = layer.tape();
  static_cast<void>(layer(x, keys, values, tape));
  auto g = layer.gradients();
  Rows dx(1, 3, 4), d_keys(1, 5, 4), d_values(1, 5, 3);
  const auto refusal = [&](auto&&... extra) {
    return message_of([&] { layer.backward(dy, tape, g, mha::into(dx), extra...); });
  };
  EXPECT_EQ(refusal(),
            "backward: the call on the tape had a memory: give mha::memory_into(d_keys, d_values) for the "
            "gradients of its rows");
  EXPECT_EQ(refusal(mha::memory_into(d_keys)),
            "backward: the call on the tape had keys and values of different rows: give mha::memory_into(d_keys, "
            "d_values) for their gradients");
  EXPECT_EQ(refusal(mha::memory_into(d_values, d_keys)), "backward: d_keys has width 3, expected 4");
  EXPECT_EQ(refusal(mha::memory_into(d_keys, d_keys)), "backward: d_values has width 4, expected 3");
  EXPECT_EQ(refusal(mha::memory_into(x, d_values)), "backward: key has length 5 but d_keys has length 3");
  EXPECT_EQ(refusal(mha::memory_into(d_keys, x)), "backward: value has length 5 but d_values has length 3");
  EXPECT_EQ(refusal(mha::memory_into(keys, d_values)), "backward: d_keys overlaps the memory");
  EXPECT_EQ(refusal(mha::memory_into(d_keys, mha::view(keys.data(), 1, 5, 3))),
            "backward: d_values overlaps the memory");
  EXPECT_EQ(refusal(mha::memory_into(d_keys, values)), "backward: d_values overlaps the memory");
  EXPECT_EQ(refusal(mha::memory_into(d_keys, mha::view(d_keys.data(), 1, 5, 3))), "backward: d_keys overlaps d_values");
  EXPECT_EQ(refusal(mha::memory_into(d_keys, mha::add_to(mha::view(d_keys.data(), 1, 5, 3)))),
            "backward: d_keys overlaps d_values");
  EXPECT_EQ(refusal(mha::memory_into(support::repeated(d_keys.view(), 1), d_values)),
            support::overlaps_itself("backward: d_keys", "length", 5));
  for (const double w : g.flat()) ASSERT_EQ(w, 0);
  EXPECT_EQ(refusal(mha::memory_into(d_keys, d_values)), "");
  EXPECT_EQ(message_of([&] { layer(x, keys, values, tape, mha::into(mha::view(values.data(), 1, 3, 4))); }),
            "layer: the result overlaps the memory, which the backward pass of the tape reads");
  Exact<> same({.d_model = 4, .num_heads = 2});
  draw(same, "places");
  static_cast<void>(same(x, x, tape));
  Rows d_m(1, 3, 4);
  EXPECT_EQ(message_of([&] { same.backward(dy, tape, mha::into(dx), mha::memory_into(dx)); }),
            "backward: dx overlaps d_memory");
  EXPECT_EQ(message_of([&] { same.backward(dy, tape, mha::into(dx), mha::memory_into(mha::add_to(dx))); }), "");
  const Rows both = dx;
  same.backward(dy, tape, mha::into(dx), mha::memory_into(d_m));
  for (std::size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(both.data()[i], dx.data()[i] + d_m.data()[i], 1e-12);
}

TEST(TrainableLayer, GradientsThroughTheLogSumExp) {
  Exact<mha::Causal, mha::Rotary<>, mha::QkNorm, mha::Sink, mha::SoftCap> layer(
      {.d_model = 8, .num_heads = 2, .bias = true}, mha::Sink({0.5f, -1.f}), mha::SoftCap{3});
  draw(layer, "log-sum-exp");
  Rows x = random_rows("log-sum-exp x", 2, 4, 8);
  const Rows dy = random_rows("log-sum-exp dy", 2, 4, 8), of_rows = random_rows("d", 2, 2, 4);
  Rows lse(2, 2, 4);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape, mha::LogSumExp(lse)));
  const Rows dx = layer.backward(dy, tape, g, mha::LogSumExpGradient(of_rows));
  const auto loss = [&] {
    Rows now(2, 2, 4);
    const double of_y = inner(dy, layer(x, mha::LogSumExp(now)));
    return of_y + inner(of_rows, now);
  };
  expect_rows("log-sum-exp", "x", x, dx, loss);
  expect_parameters("log-sum-exp", layer, g, loss);

  // The same of one head in a ragged batch, and without gradients of parameters.
  mha::MultiHeadAttention<double, mha::Cpu, mha::Causal> plain({.d_model = 6, .num_heads = 1});
  draw(plain, "ragged");
  const std::vector<Index> offsets{0, 3, 8};
  Rows rows = random_rows("ragged x", 1, 8, 6);
  const Rows d_rows = random_rows("ragged dy", 1, 8, 6), d = random_rows("ragged d", 1, 1, 8);
  const auto d_one_head = mha::view(d.data(), 8);
  auto of_sequences = plain.tape();
  static_cast<void>(plain(rows, of_sequences, mha::Ragged{offsets}));
  expect_rows("ragged log-sum-exp", "x", rows, plain.backward(d_rows, of_sequences, mha::LogSumExpGradient(d_one_head)),
              [&] {
                Rows now(1, 1, 8);
                const double of_y = inner(d_rows, plain(rows, mha::Ragged{offsets}, mha::LogSumExp(now)));
                return of_y + inner(d, now);
              });
}

/// The layer and its gradients as loops in double, causal, by the formulas: nothing of the library computes here.
struct ByHand {
  Index batch, length, model, heads, groups, dim, value_dim;
  std::vector<double> x, dy, wq, wk, wv, wo, bq, bk, bv, bo;
  std::vector<double> dx, dwq, dwk, dwv, dwo, dbq, dbk, dbv, dbo;

  // c (m, n) = a (m, k) b (k, n) + bias, and its backward: da += dc bᵀ, db += aᵀ dc, dbias += Σ dc.
  static std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b,
                                     const std::vector<double>& bias, std::size_t m, std::size_t k, std::size_t n) {
    std::vector<double> c(m * n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        double sum = bias[j];
        for (std::size_t e = 0; e < k; ++e) sum += a[i * k + e] * b[e * n + j];
        c[i * n + j] = sum;
      }
    return c;
  }
  static void back(const std::vector<double>& dc, const std::vector<double>& a, const std::vector<double>& b,
                   std::size_t m, std::size_t k, std::size_t n, std::vector<double>& da, std::vector<double>& db,
                   std::vector<double>& dbias) {
    da.resize(m * k);
    db.resize(k * n);
    dbias.resize(n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        dbias[j] += dc[i * n + j];
        for (std::size_t e = 0; e < k; ++e) {
          da[i * k + e] += dc[i * n + j] * b[e * n + j];
          db[e * n + j] += a[i * k + e] * dc[i * n + j];
        }
      }
  }

  void run() {
    const auto z = [](Index n) { return static_cast<std::size_t>(n); };
    const std::size_t m = z(batch * length), e = z(model), nq = z(heads * dim), nk = z(groups * dim),
                      nv = z(groups * value_dim), no = z(heads * value_dim);
    const auto q = product(x, wq, bq, m, e, nq), k = product(x, wk, bk, m, e, nk), v = product(x, wv, bv, m, e, nv);
    std::vector<double> out(m * no), dout, dq(m * nq), dk(m * nk), dv(m * nv), p(m * z(heads * length));
    const double scale = 1 / std::sqrt(double(dim));
    const auto at = [&](Index b, Index i, Index h, Index d, Index width, Index size) {
      return z(((b * length + i) * width + h) * size + d);
    };
    const auto each = [&](const auto& f) {
      for (Index b = 0; b < batch; ++b)
        for (Index h = 0; h < heads; ++h)
          for (Index i = 0; i < length; ++i) f(b, h, h / (heads / groups), i);
    };
    each([&](Index b, Index h, Index g, Index i) {
      double* const row = &p[z(((b * heads + h) * length + i) * length)];
      double sum = 0;
      for (Index j = 0; j <= i; ++j) {
        double s = 0;
        for (Index d = 0; d < dim; ++d) s += q[at(b, i, h, d, heads, dim)] * k[at(b, j, g, d, groups, dim)];
        sum += row[j] = std::exp(scale * s);
      }
      for (Index j = 0; j <= i; ++j) {
        row[j] /= sum;
        for (Index d = 0; d < value_dim; ++d)
          out[at(b, i, h, d, heads, value_dim)] += row[j] * v[at(b, j, g, d, groups, value_dim)];
      }
    });
    back(dy, out, wo, m, no, e, dout, dwo, dbo);
    each([&](Index b, Index h, Index g, Index i) {
      const double* const row = &p[z(((b * heads + h) * length + i) * length)];
      double mean = 0;
      for (Index d = 0; d < value_dim; ++d)
        mean += dout[at(b, i, h, d, heads, value_dim)] * out[at(b, i, h, d, heads, value_dim)];
      for (Index j = 0; j <= i; ++j) {
        double dp = 0;
        for (Index d = 0; d < value_dim; ++d) {
          dp += dout[at(b, i, h, d, heads, value_dim)] * v[at(b, j, g, d, groups, value_dim)];
          dv[at(b, j, g, d, groups, value_dim)] += row[j] * dout[at(b, i, h, d, heads, value_dim)];
        }
        const double ds = scale * row[j] * (dp - mean);
        for (Index d = 0; d < dim; ++d) {
          dq[at(b, i, h, d, heads, dim)] += ds * k[at(b, j, g, d, groups, dim)];
          dk[at(b, j, g, d, groups, dim)] += ds * q[at(b, i, h, d, heads, dim)];
        }
      }
    });
    back(dq, x, wq, m, e, nq, dx, dwq, dbq);
    back(dk, x, wk, m, e, nk, dx, dwk, dbk);
    back(dv, x, wv, m, e, nv, dx, dwv, dbv);
  }
};

double difference(const std::vector<double>& expected, const auto& given) {
  double error = 0, size = 0;
  std::size_t i = 0;
  for (const auto x : given) {
    const double d = support::to_double(x) - expected[i];
    error += d * d;
    size += expected[i] * expected[i];
    ++i;
  }
  EXPECT_EQ(i, expected.size());
  return std::sqrt(error) / std::sqrt(size);
}
template <class A> std::vector<double> values(const mha::TensorView<A, 2>& v) {
  std::vector<double> all;
  for (Index i = 0; i < v.extent[0]; ++i)
    for (Index j = 0; j < v.extent[1]; ++j) all.push_back(support::to_double(v(i, j)));
  return all;
}
template <class A> std::vector<double> values(const mha::TensorView<A, 1>& v) {
  std::vector<double> all;
  for (Index i = 0; i < v.extent[0]; ++i) all.push_back(support::to_double(v(i)));
  return all;
}

template <class T, class B> void expect_by_hand(double bound) {
  ByHand hand{3, 37, 20, 4, 2, 7, 5, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::Causal> layer(
      {.d_model = 20, .num_heads = 4, .head_dim = 7, .value_dim = 5, .bias = true});
  draw(layer, "by hand");
  const auto x = random_rows<T>("by hand x", 3, 37, 20), dy = random_rows<T>("by hand dy", 3, 37, 20);
  const auto take = [](auto& to, const auto& from) {
    for (const auto w : from) to.push_back(support::to_double(w));
  };
  const auto w = layer.parameters();
  take(hand.x, x);
  take(hand.dy, dy);
  take(hand.wq, values(w.query.matrix()));
  take(hand.wk, values(w.key.matrix()));
  take(hand.wv, values(w.value.matrix()));
  take(hand.wo, values(w.output.matrix()));
  take(hand.bq, values(w.query.bias_row()));
  take(hand.bk, values(w.key.bias_row()));
  take(hand.bv, values(w.value.bias_row()));
  take(hand.bo, values(w.output.bias));
  hand.run();

  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape));
  const auto dx = layer.backward(dy, tape, g);
  EXPECT_LT(difference(hand.dx, dx), bound);
  EXPECT_LT(difference(hand.dwq, values(g.query.matrix())), bound);
  EXPECT_LT(difference(hand.dwk, values(g.key.matrix())), bound);
  EXPECT_LT(difference(hand.dwv, values(g.value.matrix())), bound);
  EXPECT_LT(difference(hand.dwo, values(g.output.matrix())), bound);
  EXPECT_LT(difference(hand.dbq, values(g.query.bias_row())), bound);
  EXPECT_LT(difference(hand.dbv, values(g.value.bias_row())), bound);
  EXPECT_LT(difference(hand.dbo, values(g.output.bias)), bound);
  // A key's bias shifts all logits of a row alike, which softmax does not see.
  double largest = 0;
  for (const auto d : values(g.key.bias_row())) largest = std::max(largest, std::abs(d));
  EXPECT_LT(largest, 100 * bound);
}

TEST(TrainableLayer, EqualsTheFormulasByHand) {
  expect_by_hand<double, Reference>(1e-13);
  expect_by_hand<double, mha::Cpu>(1e-13);
  expect_by_hand<float, mha::Cpu>(3e-6);
  expect_by_hand<mha::bfloat16, mha::Cpu>(3e-2);
}

template <class Threads> struct Outcome {
  mha::Tensor<float, 3> dx, d_memory;
  std::vector<float> gradients;

  explicit Outcome(const Threads& threads, int turns = 1) : dx(3, 70, 48), d_memory(3, 81, 48) {
    using B = mha::CpuWith<Threads>;
    mha::MultiHeadAttention<float, B, mha::GroupedQuery<2>, mha::Rotary<>, mha::QkNorm, mha::GatedHeads, mha::Sink>
        layer({.d_model = 48, .num_heads = 4, .head_dim = 32, .bias = true}, mha::Sink({0.f, 1.f, -1.f, 0.5f}),
              B(threads));
    draw(layer, "threads");
    const auto x = random_rows<float>("threads x", 3, 70, 48), memory = random_rows<float>("threads m", 3, 81, 48),
               dy = random_rows<float>("threads dy", 3, 70, 48);
    auto tape = layer.tape(), across = layer.tape();
    auto g = layer.gradients();
    for (int i = 0; i < turns; ++i) {
      g.clear();
      static_cast<void>(layer(x, tape, mha::Causal{}));
      static_cast<void>(layer(x, memory, across));
      layer.backward(dy, tape, g, mha::into(dx));
      layer.backward(dy, across, g, mha::into(dx), mha::memory_into(d_memory));
    }
    gradients.assign(g.flat().begin(), g.flat().end());
    for (Index h = 0; h < 4; ++h) gradients.push_back(g.sink(h));
  }
};

TEST(TrainableLayer, BitsDoNotDependOnTheThreads) {
  const Outcome one{mha::Serial{}};
  const auto expect = [&](const auto& other, int threads) {
    EXPECT_EQ(support::differing(one.dx, other.dx), 0u) << threads;
    EXPECT_EQ(support::differing(one.d_memory, other.d_memory), 0u) << threads;
    EXPECT_EQ(support::differing(one.gradients, other.gradients), 0u) << threads;
  };
  for (const int threads : {1, 2, 3, 5}) expect(Outcome{mha::ThreadPool(threads)}, threads);
  expect(Outcome(mha::ThreadPool(2), 20), 2);
}

TEST(TrainableLayer, AddsToTheGradientsAndTakesATapeTwice) {
  mha::MultiHeadAttention<double> layer({.d_model = 8, .num_heads = 2, .bias = true});
  draw(layer, "adds");
  const Rows x = random_rows("adds x", 2, 5, 8), dy = random_rows("adds dy", 2, 5, 8);
  auto tape = layer.tape();
  auto once = layer.gradients(), twice = layer.gradients();
  static_cast<void>(layer(x, tape));
  const Rows dx = layer.backward(dy, tape, once);
  static_cast<void>(layer.backward(dy, tape, twice));
  auto moved = std::move(tape);
  EXPECT_FALSE(tape.recorded());  // NOLINT(bugprone-use-after-move)
  const Rows again = layer.backward(dy, moved, twice);
  EXPECT_EQ(support::differing(dx, again), 0u);
  for (std::size_t i = 0; i < once.flat().size(); ++i) EXPECT_EQ(2 * once.flat()[i], twice.flat()[i]);
  twice.clear();
  for (const double g : twice.flat()) EXPECT_EQ(g, 0);
}

TEST(TrainableLayer, TakesEigenMatricesOfAnyOrder) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer({.d_model = 8, .num_heads = 2});
  draw(layer, "eigen");
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(6, 8), dy = Eigen::MatrixXf::Random(6, 8);  // column-major
  const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> x_rows = x, dy_rows = dy;
  auto tape = layer.tape();
  auto g = layer.gradients(), of_rows = layer.gradients();
  static_cast<void>(layer(x, tape));
  const Eigen::MatrixXf dx = layer.backward(dy, tape, g);
  Eigen::MatrixXf wide = Eigen::MatrixXf::Constant(6, 16, 7), y(6, 8);
  static_cast<void>(layer(x_rows, tape, mha::into(y)));
  layer.backward(dy_rows, tape, of_rows, mha::into(wide.rightCols(8)));
  EXPECT_TRUE((wide.rightCols(8).array() == dx.array()).all());
  EXPECT_TRUE((wide.leftCols(8).array() == 7).all());
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), of_rows.flat().begin()));
}

TEST(TrainableLayer, NaNInRowsThatNobodySeesReachesNobody) {
  mha::MultiHeadAttention<double, mha::Cpu, mha::Rotary<>, mha::QkNorm, mha::GatedHeads> layer(
      {.d_model = 8, .num_heads = 2, .bias = true});
  draw(layer, "nan");
  Rows x = random_rows("nan x", 1, 5, 8), memory = random_rows("nan memory", 1, 6, 8);
  const Rows dy = random_rows("nan dy", 1, 5, 8);
  const std::vector<Index> lengths{4};
  const auto apart = mha::mask([](auto, auto, auto q, auto k) { return q != 2 && k != 2; });
  const auto gradients = [&](Rows& dx, Rows& d_memory) {
    auto self = layer.tape(), across = layer.tape();
    auto g = layer.gradients();
    static_cast<void>(layer(x, self, apart));
    layer.backward(dy, self, g, mha::into(dx));
    static_cast<void>(layer(dy, memory, across, mha::Padding{lengths}));
    static_cast<void>(layer.backward(dy, across, g, mha::memory_into(d_memory)));
    return g;
  };
  Rows dx(1, 5, 8), d_memory(1, 6, 8), dx_nan(1, 5, 8), d_memory_nan(1, 6, 8);
  const auto clean = gradients(dx, d_memory);
  for (Index e = 0; e < 8; ++e) x(0, 2, e) = memory(0, 4, e) = memory(0, 5, e) = nan;
  const auto with_nan = gradients(dx_nan, d_memory_nan);
  EXPECT_TRUE(std::equal(clean.flat().begin(), clean.flat().end(), with_nan.flat().begin()));
  EXPECT_EQ(support::differing(dx, dx_nan), 0u);
  EXPECT_EQ(support::differing(d_memory, d_memory_nan), 0u);
  for (Index e = 0; e < 8; ++e) EXPECT_EQ(d_memory(0, 5, e), 0);
  // One that is seen propagates.
  memory(0, 0, 0) = nan;
  const auto seen = gradients(dx_nan, d_memory_nan);
  EXPECT_TRUE(std::isnan(seen.key.matrix()(0, 0)));
}

TEST(TrainableLayer, RefusesWhatDoesNotFitAndChangesNothing) {
  using Layer = mha::MultiHeadAttention<double>;
  Layer layer({.d_model = 8, .num_heads = 2}), other({.d_model = 8, .num_heads = 2}),
      larger({.d_model = 8, .num_heads = 2, .bias = true});
  for (Layer* l : {&layer, &other, &larger}) draw(*l, "refuses");
  Rows x = random_rows("refuses x", 2, 5, 8);
  Rows dy = random_rows("refuses dy", 2, 5, 8), dx(2, 5, 8), memory = random_rows("refuses m", 2, 3, 8);
  const std::vector<Index> offsets{0, 5};
  auto tape = layer.tape(), across = layer.tape();
  auto g = layer.gradients(), foreign = larger.gradients();
  const auto backward = [&](const auto& d, const auto& t, auto& to, const auto&... extra) {
    return message_of([&] { static_cast<void>(layer.backward(d, t, to, extra...)); });
  };
  EXPECT_EQ(backward(dy, tape, g), "backward: nothing was recorded on the tape: call it with x and the tape first");
  static_cast<void>(layer(x, tape));
  static_cast<void>(layer(x, memory, across));
  const Rows before = layer.backward(dy, tape, g);

  const std::string weights =
      "backward: the tape was recorded with other weights: by another layer, or before this one's weights changed";
  EXPECT_EQ(message_of([&] { static_cast<void>(other.backward(dy, tape, g)); }), weights);
  EXPECT_EQ(backward(Rows(2, 4, 8), tape, g), "backward: x has length 5 but dy has length 4");
  EXPECT_EQ(backward(Rows(1, 5, 8), tape, g), "backward: x has batch 2 but dy has batch 1");
  EXPECT_EQ(backward(Rows(2, 5, 7), tape, g), "backward: dy has width 7, expected 8");
  EXPECT_EQ(backward(dy, tape, foreign),
            "backward: the gradients are of other sizes: on axis 0 their query bias has extent 2, expected 0");
  Rows narrow(2, 5, 6), of_memory(2, 3, 8), empty, no_rows(2, 0, 8);
  EXPECT_EQ(backward(dy, tape, g, mha::into(narrow)), "backward: dx has width 6, expected 8");
  EXPECT_EQ(backward(dy, tape, g, mha::into(x)), "backward: dx overlaps x");
  EXPECT_EQ(backward(dy, tape, g, mha::into(support::repeated(dx.view(), 0))),
            support::overlaps_itself("backward: dx", "batch", 2));
  EXPECT_EQ(backward(dy, across, g, mha::memory_into(support::repeated(of_memory.view(), 1))),
            support::overlaps_itself("backward: d_memory", "length", 3));
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, tape, mha::into(support::repeated(dx.view(), 2)))); }),
            support::overlaps_itself("layer: the result", "width", 8));
  EXPECT_EQ(backward(dy, tape, g, mha::into(dy)), "backward: dx overlaps dy");
  EXPECT_EQ(backward(dy, tape, g, mha::memory_into(of_memory)),
            "backward: memory_into() is given, but the call on the tape had no memory");
  EXPECT_EQ(backward(dy, tape, g, mha::memory_into(empty)),
            "backward: memory_into() is given, but the call on the tape had no memory");
  EXPECT_EQ(backward(dy, across, g),
            "backward: the call on the tape had a memory: give mha::memory_into(d_memory) for its gradient");
  EXPECT_EQ(backward(dy, across, g, mha::memory_into(memory)), "backward: d_memory overlaps the memory");
  EXPECT_EQ(backward(dy, across, g, mha::memory_into(narrow)),
            "backward: memory has length 3 but d_memory has length 5");
  EXPECT_EQ(backward(dy, across, g, mha::memory_into(empty)), "backward: memory has batch 2 but d_memory has batch 0");
  EXPECT_EQ(backward(dy, across, g, mha::memory_into(no_rows)),
            "backward: memory has length 3 but d_memory has length 0");
  const Rows short_rows(2, 2, 4), heads_rows(2, 1, 5);
  EXPECT_EQ(backward(dy, tape, g, mha::LogSumExpGradient(short_rows)),
            "backward: the call on the tape has length 5 but LogSumExpGradient has length 4");
  EXPECT_EQ(backward(dy, tape, g, mha::LogSumExpGradient(heads_rows)),
            "backward: the call on the tape has 2 heads but LogSumExpGradient has 1");
  EXPECT_EQ(backward(dy, tape, g, mha::LogSumExpGradient(empty)),
            "backward: the call on the tape has batch 2 but LogSumExpGradient has batch 0");
  EXPECT_EQ(backward(dy, tape, g, mha::LogSumExpGradient(mha::view(dx.data(), 2, 2, 5)), mha::into(dx)),
            "backward: dx overlaps the LogSumExpGradient");
  EXPECT_EQ(backward(dy, tape, g, mha::LogSumExpGradient(mha::view(g.flat().data(), 2, 2, 5))),
            "backward: the LogSumExpGradient overlaps the gradients");
  const auto into_gradients = mha::view(g.flat().data(), 2, 5, 8);
  EXPECT_EQ(backward(dy, tape, g, mha::into(into_gradients)), "backward: dx overlaps the gradients");
  EXPECT_EQ(backward(into_gradients, tape, g), "backward: dy overlaps the gradients");
  auto of_gradients = layer.tape();
  static_cast<void>(layer(into_gradients, of_gradients));
  EXPECT_EQ(backward(dy, of_gradients, g), "backward: x overlaps the gradients");
  static_cast<void>(layer(x, mha::view(g.flat().data(), 2, 3, 8), of_gradients));
  EXPECT_EQ(backward(dy, of_gradients, g, mha::memory_into(of_memory)), "backward: the memory overlaps the gradients");
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, tape, mha::into(x))); }),
            "layer: the result overlaps x, which the backward pass of the tape reads");
  EXPECT_EQ(message_of([&] { static_cast<void>(layer(x, tape, mha::Ragged{offsets})); }),
            "layer: a ragged batch has batch 2, expected 1: offsets tell its sequences apart");

  // Tape and gradients are as they were.
  auto fresh = layer.gradients();
  EXPECT_EQ(support::differing(layer.backward(dy, tape, fresh), before), 0u);
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), fresh.flat().begin()));

  layer.update([](auto& p) { p.flat()[0] += 1; });
  EXPECT_EQ(backward(dy, tape, g), weights);
  static_cast<void>(layer(x, tape));
  layer.drop_unpacked();
  EXPECT_EQ(backward(dy, tape, g), "");  // the weights are the same
}

TEST(TrainableLayer, RefusesTheBackwardPassOfALayerThatWasMoved) {
  mha::MultiHeadAttention<double> layer({.d_model = 8, .num_heads = 2});
  draw(layer, "moved");
  const Rows x = random_rows("moved x", 2, 3, 8), dy = random_rows("moved dy", 2, 3, 8);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape));
  const Rows before = layer.backward(dy, tape, g);
  const auto after = std::move(layer);
  auto fresh = after.gradients();
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.backward(dy, tape, fresh)); }),
            "backward: expected 256 weights, got 0: call initialize, update or borrow first");
  for (const double d : fresh.flat()) EXPECT_EQ(d, 0);
  EXPECT_EQ(support::differing(after.backward(dy, tape, fresh), before), 0u);
}

TEST(TrainableLayer, RefusesMoreHeadsThanItCountsAndAddsNothing) {
  // Heads share a tile, so that the forward pass is short.
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<1>> layer({.d_model = 16, .num_heads = 16});
  draw(layer, "heads");
  const std::vector<float> ones(16, 1);
  const mha::TensorView<const float, 3> x{ones.data(), {1 << 17, 1, 16}, {0, 16, 1}};
  mha::Tensor<float, 3> y(1 << 17, 1, 16);
  auto tape = layer.tape();
  auto g = layer.gradients();
  layer(x, tape, mha::into(y));
  EXPECT_EQ(message_of([&] { layer.backward(x, tape, g, mha::into(y)); }),
            "backward: 2097152 heads in the batch, the limit is 2097151");
  for (const float d : g.flat()) EXPECT_EQ(d, 0);
}

TEST(TrainableLayer, ResultsOverlapNoParameterOfAnyKind) {
  using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::QkNorm, mha::GatedHeads>;
  Layer layer({.d_model = 8, .num_heads = 2, .bias = true});
  draw(layer, "kinds");
  mha::Tensor<float, 3> x = random_rows<float>("kinds x", 1, 1, 8);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape));
  const auto p = layer.parameters();
  int parts = 0;
  const auto look = [&](const char* name, const auto& part) {
    float* const first = const_cast<float*>(part.data);
    EXPECT_EQ(message_of([&] { layer.backward(x, tape, g, mha::into(mha::view(first, 1, 1, 8))); }),
              std::string("backward: dx overlaps the parameter '") + name + "'");
    ++parts;
  };
  mha::detail::PartsOf<mha::ParameterViews<const float>>::each(look, p);
  EXPECT_EQ(parts, 11);
}

TEST(TrainableLayer, RefusesToWriteOverWhatTheTapesBackwardPassReads) {
  mha::MultiHeadAttention<float> layer({.d_model = 4, .num_heads = 2});
  draw(layer, "reads");
  enum { of_x, of_memory, of_bias, of_y, of_lse, arrays };
  const char* const name[] = {"x", "the memory", "the AdditiveBias", "the result", "log-sum-exp"};
  std::vector<float> numbers(arrays * 20);
  support::Random("reads numbers").fill(numbers);
  auto tape = layer.tape();
  const auto call = [&](int written, int other) {
    const std::vector<float> before = numbers;
    const auto at = [&](int i) { return numbers.data() + 20 * (i == written ? other : i) + (i == written ? 2 : 0); };
    const auto x = mha::view(at(of_x), 1, 3, 4), memory = mha::view(at(of_memory), 1, 3, 4),
               y = mha::view(at(of_y), 1, 3, 4);
    const auto said = message_of([&] {
      layer(x, memory, tape, mha::SoftCap{2.f}, mha::AdditiveBias(mha::view(at(of_bias), 2, 3, 3)), mha::into(y),
            mha::LogSumExp(mha::view(at(of_lse), 1, 2, 3)));
    });
    EXPECT_EQ(said.empty(), numbers != before);
    return said;
  };
  for (const int written : {of_y, of_lse})
    for (const int other : {of_x, of_memory, of_bias})
      EXPECT_EQ(call(written, other), std::string("layer: ") + name[written] + " overlaps " + name[other] +
                                          ", which the backward pass of the tape reads");
  EXPECT_EQ(call(of_lse, of_y), "layer: log-sum-exp overlaps the result, expected separate memory");
  EXPECT_FALSE(tape.recorded());
  EXPECT_EQ(call(arrays, 0), "");
  EXPECT_TRUE(tape.recorded());
}

TEST(TrainableLayer, KeepsTheTapeWhereALargerCallIsRefused) {
  mha::MultiHeadAttention<double> layer({.d_model = 8, .num_heads = 2});
  draw(layer, "kept");
  const Rows x = random_rows("kept x", 1, 4, 8), dy = random_rows("kept dy", 1, 4, 8), longer(2, 40, 8);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape));
  const Rows dx = layer.backward(dy, tape, g);
  const std::vector<Index> lengths{1, 2, 3};
  EXPECT_NE(message_of([&] { static_cast<void>(layer(longer, tape, mha::Padding{lengths})); }), "");
  EXPECT_EQ(support::differing(layer.backward(dy, tape, g), dx), 0u);
}

TEST(TrainableLayer, ServesABatchWithoutRows) {
  mha::MultiHeadAttention<double> layer({.d_model = 8, .num_heads = 2, .bias = true});
  draw(layer, "empty");
  auto tape = layer.tape();
  auto g = layer.gradients();
  const Rows none(0, 3, 8), no_rows(2, 0, 8), memory = random_rows("empty memory", 2, 3, 8);
  static_cast<void>(layer(none, tape));
  EXPECT_EQ(layer.backward(none, tape, g).size(), 0u);
  static_cast<void>(layer(no_rows, memory, tape));
  Rows d_memory(2, 3, 8);
  support::poison_all(d_memory);
  static_cast<void>(layer.backward(no_rows, tape, g, mha::memory_into(d_memory)));
  for (const double d : d_memory) EXPECT_EQ(d, 0);
  static_cast<void>(layer(memory, no_rows, tape));
  Rows of_none(2, 0, 8), other(2, 1, 8);
  static_cast<void>(layer.backward(memory, tape, g, mha::memory_into(of_none)));
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.backward(memory, tape, g, mha::memory_into(other))); }),
            "backward: memory has length 0 but d_memory has length 1");
}

}  // namespace
