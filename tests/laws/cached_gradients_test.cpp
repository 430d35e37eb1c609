// SPDX-License-Identifier: Apache-2.0
// A text that is given to a layer in pieces, through a cache, has the gradients of the whole text.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

template <class B, class S> struct On {
  using Backend = B;
  using T = S;
};
template <class Setup> class CachedGradients : public testing::Test {};
using Setups = testing::Types<On<mha::Cpu, float>, On<mha::Cpu, double>, On<mha::Cpu, mha::bfloat16>,
                              On<mha::Systolic<>, mha::bfloat16>, On<mha::EigenCpu, float>, On<mha::Reference, double>>;
TYPED_TEST_SUITE(CachedGradients, Setups);

template <class Setup, class... Policies>
using LayerOf = mha::MultiHeadAttention<typename Setup::T, typename Setup::Backend, mha::GroupedQuery<mha::Dynamic>,
                                        mha::Rotary<>, mha::QkNorm, Policies...>;

/// Sums over calls and over tiles that begin elsewhere: an error in the norm of the whole.
template <class T> constexpr double bound = 4 * support::gradient_bound<T>;

/// Sequences of these lengths, each in pieces of these many rows, a step for the i-th pieces of all.
struct Pieces {
  std::vector<std::vector<Index>> rows;  ///< of each sequence

  std::size_t steps() const { return rows[0].size(); }
  Index length(std::size_t b) const {
    Index n = 0;
    for (const Index r : rows[b]) n += r;
    return n;
  }
  Index all() const {
    Index n = 0;
    for (std::size_t b = 0; b < rows.size(); ++b) n += length(b);
    return n;
  }
  std::vector<Index> offsets() const {
    std::vector<Index> to{0};
    for (std::size_t b = 0; b < rows.size(); ++b) to.push_back(to.back() + length(b));
    return to;
  }
  std::vector<Index> of_step(std::size_t i) const {
    std::vector<Index> to;
    for (const auto& of : rows) to.push_back(of[i]);
    return to;
  }
  /// f(row of the whole text, row of step i).
  template <class F> void each_row(std::size_t i, const F& f) const {
    Index to = 0, begin = 0;
    for (std::size_t b = 0; b < rows.size(); ++b) {
      Index from = begin;
      for (std::size_t j = 0; j < i; ++j) from += rows[b][j];
      for (Index r = 0; r < rows[b][i]; ++r) f(from + r, to++);
      begin += length(b);
    }
  }
};

template <class T> mha::Tensor<T, 2> rows_of(const Pieces& p, const mha::Tensor<T, 2>& all, std::size_t i) {
  Index n = 0;
  for (const Index r : p.of_step(i)) n += r;
  mha::Tensor<T, 2> to(n, all.extent(1));
  p.each_row(i, [&](Index from, Index at) {
    for (Index e = 0; e < all.extent(1); ++e) to(at, e) = all(from, e);
  });
  return to;
}

/// What training on the text gives: the gradients of x, and of the weights one after another.
template <class Layer> struct Trained {
  mha::Tensor<typename Layer::Scalar, 2> dx;
  std::vector<double> weights;
};
template <class G> std::vector<double> numbers(const G& gradients) {
  std::vector<double> to;
  gradients.for_each([&](auto all) { to.insert(to.end(), all.begin(), all.end()); });
  return to;
}

template <class Layer, class... Extra>
Trained<Layer> whole(const Layer& layer, const Pieces& p, const mha::Tensor<typename Layer::Scalar, 2>& x,
                     const mha::Tensor<typename Layer::Scalar, 2>& dy, const Extra&... extra) {
  const auto offsets = p.offsets();
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape, mha::Ragged{offsets}, extra...));
  auto dx = layer.backward(dy, tape, g);
  return {std::move(dx), numbers(g)};
}
template <class Storage, class Layer, class... Extra>
Trained<Layer> in_pieces(const Layer& layer, const Storage& storage, const Pieces& p,
                         const mha::Tensor<typename Layer::Scalar, 2>& x,
                         const mha::Tensor<typename Layer::Scalar, 2>& dy, const Extra&... extra) {
  using Rows = mha::Tensor<typename Layer::Scalar, 2>;
  const auto sequences = static_cast<Index>(p.rows.size());
  auto cache = mha::make_cache(layer, storage, {.sequences = sequences});
  for (Index b = 0; b < sequences; ++b) cache.add();
  std::vector<decltype(layer.tape())> tapes(p.steps());
  std::vector<Rows> pieces;
  Index longest = 0;
  for (std::size_t b = 0; b < p.rows.size(); ++b) longest = std::max(longest, p.length(b));
  for (std::size_t i = 0; i < p.steps(); ++i) {
    pieces.push_back(rows_of(p, x, i));
    auto step = cache.step(cache.ids(), p.of_step(i));
    static_cast<void>(layer(pieces.back(), step[0], tapes[i], extra...));
    step.commit();
  }
  auto g = layer.gradients();
  auto d = layer.key_value_gradients(sequences, longest);
  Rows dx(x.extent(0), x.extent(1));
  support::poison_all(dx);
  for (std::size_t i = p.steps(); i-- > 0;) {
    const Rows part = layer.backward(rows_of(p, dy, i), tapes[i], g, d);
    p.each_row(i, [&](Index to, Index from) {
      for (Index e = 0; e < dx.extent(1); ++e) dx(to, e) = part(from, e);
    });
  }
  return {std::move(dx), numbers(g)};
}

double error(const std::vector<double>& got, const std::vector<double>& expected) {
  double sum = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    sum += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(sum / size);
}

template <class Setup> struct Text {
  using T = typename Setup::T;
  mha::Tensor<T, 2> x, dy;
  Text(const Pieces& p, Index width) : x(p.all(), width), dy(p.all(), width) {
    support::Random random("text in pieces");
    random.fill(x);
    random.fill(dy);
  }
};

const mha::Config sizes{.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .value_dim = 10};
const Pieces pieces{{{40, 1, 30}, {1, 20, 7}, {0, 64, 1}}};

template <class Setup, class Storage, class... Extra> void expect_whole(const Storage& storage, const Extra&... extra) {
  LayerOf<Setup> layer(sizes);
  layer.initialize(mha::XavierUniform{.seed = support::seed()});
  const Text<Setup> text(pieces, sizes.d_model);
  const auto expected = whole(layer, pieces, text.x, text.dy, extra...);
  const auto got = in_pieces(layer, storage, pieces, text.x, text.dy, extra...);
  EXPECT_LE(support::relative_error(got.dx, expected.dx), bound<typename Setup::T>);
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  EXPECT_LE(error(got.weights, expected.weights), bound<typename Setup::T>);
}

TYPED_TEST(CachedGradients, AreThoseOfTheWholeText) {
  expect_whole<TypeParam>(mha::Contiguous{.length = 80}, mha::Causal{});
  expect_whole<TypeParam>(mha::Paged{.pages = 16, .length = 80, .page = 16}, mha::Causal{}, mha::SoftCap{4.});
  expect_whole<TypeParam>(mha::Ring{.left = 9, .rows = 64}, mha::SlidingWindow{.left = 9});
}

TYPED_TEST(CachedGradients, DoNotDependOnTheStorageOrTheThreads) {
  using B = typename TypeParam::Backend;
  LayerOf<TypeParam> layer(sizes);
  layer.initialize(mha::XavierUniform{.seed = support::seed()});
  const Text<TypeParam> text(pieces, sizes.d_model);
  const mha::SlidingWindow window{.left = 9};
  const auto first = in_pieces(layer, mha::Contiguous{.length = 80}, pieces, text.x, text.dy, window);
  const auto expect_same = [&](const Trained<LayerOf<TypeParam>>& other) {
    EXPECT_EQ(support::differing(other.dx, first.dx), 0u);
    EXPECT_EQ(other.weights, first.weights);
  };
  if constexpr (!std::is_same_v<B, mha::EigenCpu>) {  // whose bits depend on where rows lie
    expect_same(in_pieces(layer, mha::Paged{.pages = 16, .length = 80, .page = 16}, pieces, text.x, text.dy, window));
    expect_same(in_pieces(layer, mha::Ring{.left = 9, .rows = 64}, pieces, text.x, text.dy, window));
  }
  if constexpr (std::is_constructible_v<B, mha::ThreadPool>)
    for (const int threads : {1, 3}) {
      LayerOf<TypeParam> other(sizes, B(mha::ThreadPool(threads)));
      other.initialize(mha::XavierUniform{.seed = support::seed()});
      expect_same(in_pieces(other, mha::Contiguous{.length = 80}, pieces, text.x, text.dy, window));
    }
}

/// Prefix tuning: keys and values that no layer made, in 16 bits, learn.
TEST(CachedGradients16, ReachKeysThatAreStoredInAnotherScalar) {
  using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>;
  Layer layer({.d_model = 16, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = support::seed()});
  auto cache = mha::make_cache<mha::bfloat16>(layer, mha::Contiguous{.length = 16});
  const mha::SequenceId id = cache.add();
  mha::Tensor<mha::bfloat16, 3> key(5, 2, 8), value(5, 2, 8);
  support::Random random("prefix in 16 bits");
  random.fill(key);
  random.fill(value);
  auto prefix = cache.step(id, 5);
  prefix.append(0, key, value);
  prefix.commit();
  mha::Tensor<float, 2> x(3, 16), dy(3, 16);
  random.fill(x);
  random.fill(dy);
  auto tape = layer.tape();
  auto step = cache.step(id, 3);
  static_cast<void>(layer(x, step[0], tape));
  auto d = layer.key_value_gradients(1, 8);
  static_cast<void>(layer.backward(dy, tape, d));
  double sum = 0;
  for (Index k = 0; k < 8; ++k) {
    double of_row = 0;
    for (Index g = 0; g < 2; ++g)
      for (Index i = 0; i < 8; ++i) of_row += std::abs(d.key(0, k, g, i)) + std::abs(d.value(0, k, g, i));
    EXPECT_EQ(of_row > 0, k < 5) << "row " << k;
    sum += of_row;
  }
  EXPECT_GT(sum, 0);
}

/// A prefix and a text in 8 bits: what the layer learns is what it learns from the numbers that are stored.
template <class B, class T> void expect_gradients_of_stored_numbers() {
  using Layer = mha::MultiHeadAttention<T, B, mha::Causal>;
  Layer layer({.d_model = 16, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = support::seed()});
  auto cache = mha::make_cache<mha::scaled_int8>(layer, mha::Contiguous{.length = 16});
  const mha::SequenceId id = cache.add();
  mha::Tensor<T, 3> key(5, 2, 8), value(5, 2, 8);
  support::Random random("prefix in 8 bits");
  random.fill(key);
  random.fill(value);
  auto prefix = cache.step(id, 5);
  prefix.append(0, key, value);
  prefix.commit();
  mha::Tensor<T, 2> x(3, 16), dy(3, 16);
  random.fill(x);
  random.fill(dy);
  auto tape = layer.tape();
  auto step = cache.step(id, 3);
  const auto y = layer(x, step[0], tape);
  auto d = layer.key_value_gradients(1, 8);
  auto weights = layer.gradients();
  static_cast<void>(layer.backward(dy, tape, weights, d));
  // The same rows as a source of float.
  mha::Tensor<float, 4> stored_key(1, 8, 2, 8), stored_value(1, 8, 2, 8);
  const auto source = step.source(0);
  for (Index k = 0; k < 8; ++k)
    for (Index g = 0; g < 2; ++g) {
      const auto run = source.run(0, g, k, k + 1);
      mha::read_row(run.key, 8, &stored_key(0, k, g, 0));
      mha::read_row(run.value, 8, &stored_value(0, k, g, 0));
    }
  const mha::ContiguousKv<float> rows{stored_key.view(), stored_value.view()};
  auto other_tape = layer.tape();
  const auto other_y = layer(x, rows, other_tape);
  auto other_d = layer.key_value_gradients(1, 8);
  auto other_weights = layer.gradients();
  static_cast<void>(layer.backward(dy, other_tape, other_weights, other_d));
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(support::bits(y.data()[i]), support::bits(other_y.data()[i]));
  for (Index k = 0; k < 5; ++k)  // those of the text's own rows are in its weights
    for (Index g = 0; g < 2; ++g)
      for (Index i = 0; i < 8; ++i) {
        ASSERT_EQ(support::bits(d.key(0, k, g, i)), support::bits(other_d.key(0, k, g, i)));
        ASSERT_EQ(support::bits(d.value(0, k, g, i)), support::bits(other_d.value(0, k, g, i)));
      }
  const auto got = std::as_const(weights).flat(), expected = std::as_const(other_weights).flat();
  ASSERT_EQ(got.size(), 4u * 256u);
  double sum = 0;
  for (std::size_t i = 0; i < 256; ++i) {
    ASSERT_EQ(got[i], expected[i]) << "of the queries' weight";
    ASSERT_EQ(got[768 + i], expected[768 + i]) << "of the output's weight";
    sum += std::abs(support::to_double(got[256 + i]));
  }
  EXPECT_GT(sum, 0) << "the text's keys pass their gradients on as if they were not rounded";
}
TEST(CachedGradients8, AreThoseOfTheStoredNumbers) {
  expect_gradients_of_stored_numbers<mha::Cpu, float>();
  expect_gradients_of_stored_numbers<mha::Reference, float>();
}

}  // namespace
