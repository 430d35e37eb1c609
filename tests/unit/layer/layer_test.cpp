// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <Eigen/Core>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/interop/eigen.hpp>
#include <mha/layer/layer.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/policy/mask/dense.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/softcap.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"
#include "scratch.hpp"

namespace {

using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMatrix = Eigen::MatrixXd;
using mha::Config;

template <class Backend = mha::Cpu, class... Policies>
using LayerOf = mha::MultiHeadAttention<double, Backend, Policies...>;

template <class Layer> Layer make(const Config& config) {
  Layer layer(config);
  layer.initialize(mha::XavierUniform{.seed = 11});
  if (config.bias)
    layer.update([](auto& p) {
      double next = 0.01;
      for (const auto& b : {p.query.bias_row(), p.key.bias_row(), p.value.bias_row(), p.output.bias})
        for (int i = 0; i < b.extent[0]; ++i) b(i) = next += 0.01;
    });
  return layer;
}

RowMatrix random_rows(const char* stream, int rows, int columns) {
  support::Random random(stream);
  RowMatrix m(rows, columns);
  for (double& x : m.reshaped()) x = random.normal();
  return m;
}
mha::Tensor<double, 3> random_batch(const char* stream, int batch, int length, int width) {
  support::Random random(stream);
  mha::Tensor<double, 3> t(batch, length, width);
  random.fill(t);
  return t;
}
RowMatrix sequence(const mha::Tensor<double, 3>& t, int b) {
  return Eigen::Map<const RowMatrix>(t.data() + std::ptrdiff_t{b} * t.extent(1) * t.extent(2), t.extent(1),
                                     t.extent(2));
}

void expect_near(const RowMatrix& a, const RowMatrix& b, double bound) {
  ASSERT_EQ(a.rows(), b.rows());
  ASSERT_EQ(a.cols(), b.cols());
  EXPECT_LE((a - b).cwiseAbs().maxCoeff(), bound) << a << "\n\ninstead of\n\n" << b;
}

template <class View> RowMatrix dense(const View& v) {
  RowMatrix m(v.extent[0], v.extent[1]);
  for (int i = 0; i < v.extent[0]; ++i)
    for (int j = 0; j < v.extent[1]; ++j) m(i, j) = v(i, j);
  return m;
}
template <class View> Eigen::RowVectorXd row(const View& v) {
  Eigen::RowVectorXd m(v.extent[0]);
  for (int i = 0; i < v.extent[0]; ++i) m(i) = v(i);
  return m;
}

/// The layer by its formula: one head after the other, every matrix written out.
template <class Layer, class Visible>
RowMatrix by_formula(const Layer& layer, const RowMatrix& x, const RowMatrix& keys, const RowMatrix& values,
                     Visible&& visible) {
  const Config& c = layer.config();
  const auto p = layer.parameters();
  RowMatrix heads(x.rows(), c.num_heads * c.value_dim);
  for (int h = 0; h < c.num_heads; ++h) {
    const int g = h / (c.num_heads / c.num_kv_heads);
    RowMatrix q = x * dense(p.query.head(h)), k = keys * dense(p.key.head(g)), v = values * dense(p.value.head(g));
    if (c.bias) {
      q.rowwise() += row(p.query.head_bias(h));
      k.rowwise() += row(p.key.head_bias(g));
      v.rowwise() += row(p.value.head_bias(g));
    }
    RowMatrix s = q * k.transpose() * (c.scale ? *c.scale : 1 / std::sqrt(double(c.head_dim)));
    for (int i = 0; i < s.rows(); ++i)
      for (int j = 0; j < s.cols(); ++j) s(i, j) = visible(i + int(s.cols() - s.rows()), j) ? std::exp(s(i, j)) : 0;
    for (int i = 0; i < s.rows(); ++i)
      if (s.row(i).sum() > 0) s.row(i) /= s.row(i).sum();
    heads.middleCols(h * c.value_dim, c.value_dim) = s * v;
  }
  if (p.output.matrix().data == nullptr) return heads;
  RowMatrix y = heads * dense(p.output.matrix());
  if (c.bias) y.rowwise() += row(p.output.bias);
  return y;
}
template <class Layer, class Visible>
RowMatrix by_formula(const Layer& layer, const RowMatrix& x, const RowMatrix& memory, Visible&& visible) {
  return by_formula(layer, x, memory, memory, visible);
}
constexpr auto all_visible = [](int, int) { return true; };
constexpr auto causal = [](int q, int k) { return k <= q; };

template <class Backend> class LayerCall : public testing::Test {};
using Backends = testing::Types<mha::Reference, mha::Cpu>;
TYPED_TEST_SUITE(LayerCall, Backends, );

TYPED_TEST(LayerCall, IsTheFormula) {
  const auto layer = make<LayerOf<TypeParam>>({.d_model = 12, .num_heads = 3});
  const RowMatrix x = random_rows("x", 7, 12);
  expect_near(layer(x), by_formula(layer, x, x, all_visible), 1e-12);
}

TYPED_TEST(LayerCall, IsTheFormulaWithEverySizeDifferent) {
  using L = LayerOf<TypeParam, mha::GroupedQuery<2>, mha::Causal>;
  const auto layer = make<L>(
      {.d_model = 10, .num_heads = 4, .head_dim = 3, .value_dim = 5, .kv_model = 7, .bias = true, .scale = 0.3});
  const RowMatrix x = random_rows("x", 6, 10), memory = random_rows("memory", 9, 7);
  const RowMatrix y = layer(x, memory);
  expect_near(y, by_formula(layer, x, memory, causal), 1e-12);
  EXPECT_EQ(y.cols(), 10);
}

TYPED_TEST(LayerCall, KeysAndValuesOfDifferentRowsAreTheFormula) {
  const Config config{.d_model = 7,
                      .num_heads = 4,
                      .num_kv_heads = 2,
                      .head_dim = 3,
                      .value_dim = 5,
                      .kv_model = 6,
                      .value_model = 2,
                      .bias = true};
  const RowMatrix x = random_rows("x", 4, 7), keys = random_rows("keys", 9, 6), values = random_rows("values", 9, 2);
  const auto expect = [&](const auto& layer) {
    const RowMatrix expected = by_formula(layer, x, keys, values, causal);
    expect_near(layer(x, keys, values, mha::Causal{}), expected, 1e-12);
    expect_near(layer(x, ColMatrix(keys), ColMatrix(values), mha::Causal{}), expected, 1e-12);
    const auto projected = layer.project_memory(keys, values);
    expect_near(layer(x, projected, mha::Causal{}), layer(x, keys, values, mha::Causal{}), 0);
  };
  expect(make<LayerOf<TypeParam, mha::GroupedQuery<2>>>(config));
  expect(make<LayerOf<TypeParam, mha::GroupedQuery<2>, mha::PerHeadProjection>>(config));
}

TYPED_TEST(LayerCall, AnyOfThreeMayBeTheSameRows) {
  const auto layer = make<LayerOf<TypeParam, mha::GroupedQuery<2>>>(
      {.d_model = 8, .num_heads = 4, .head_dim = 3, .value_dim = 5, .bias = true});
  const RowMatrix x = random_rows("x", 5, 8), m = random_rows("memory", 5, 8), copy_of_x = x, copy_of_m = m;
  expect_near(layer(x, m, m), layer(x, m), 0);
  expect_near(layer(x, x, x), layer(x), 0);
  expect_near(layer(x, x, m), by_formula(layer, x, x, m, all_visible), 1e-12);  // positions in queries and keys alone
  expect_near(layer(x, m, x), by_formula(layer, x, m, x, all_visible), 1e-12);
  expect_near(layer(x, m, copy_of_m), layer(x, m), 1e-12);
  expect_near(layer(x, x, m), layer(x, copy_of_x, m), 1e-12);
  RowMatrix in_place = x;
  layer(in_place, in_place, m, mha::residual(in_place), mha::into(in_place));
  expect_near(in_place, layer(x, x, m) + x, 1e-12);
}

TYPED_TEST(LayerCall, KeysAndValuesOfOneSequenceServeAll) {
  const auto layer = make<LayerOf<TypeParam, mha::GroupedQuery<1>, mha::Rotary<>>>(
      {.d_model = 8, .num_heads = 2, .kv_model = 6, .value_model = 3});
  const auto x = random_batch("x", 3, 4, 8), keys = random_batch("keys", 1, 5, 6),
             values = random_batch("values", 1, 5, 3);
  const auto y = layer(x, keys, values);
  for (int b = 0; b < 3; ++b)
    expect_near(sequence(y, b), layer(sequence(x, b), sequence(keys, 0), sequence(values, 0)), 1e-12);
}

TYPED_TEST(LayerCall, WeightsDoNotDependOnTheValues) {
  const auto layer = make<LayerOf<TypeParam>>({.d_model = 8, .num_heads = 2, .kv_model = 6, .value_model = 3});
  const auto x = random_batch("x", 2, 4, 8), keys = random_batch("keys", 2, 5, 6);
  mha::Tensor<double, 3> values(2, 5, 3);
  support::poison_all(values);
  const auto weights = layer.attention_weights(x, keys, values);
  EXPECT_EQ(support::differing(weights, layer.attention_weights(x, layer.project_memory(keys, values))), 0u);
  const auto mean = layer.mean_attention_weights(x, keys, values);
  EXPECT_NEAR(mean(1, 3, 4), (weights(1, 0, 3, 4) + weights(1, 1, 3, 4)) / 2, 1e-15);
}

TYPED_TEST(LayerCall, NoOutputReturnsTheHeads) {
  using L = LayerOf<TypeParam, mha::MultiQuery, mha::NoOutput>;
  const auto layer = make<L>({.d_model = 6, .num_heads = 3, .value_dim = 5});
  const RowMatrix x = random_rows("x", 5, 6);
  const RowMatrix y = layer(x);
  EXPECT_EQ(y.cols(), 15);
  expect_near(y, by_formula(layer, x, x, all_visible), 1e-12);

  ColMatrix columns(5, 15);
  layer(x, mha::into(columns));
  EXPECT_EQ(RowMatrix(columns), y);
}

TYPED_TEST(LayerCall, FusedAndPerHeadProjectionsAgree) {
  const Config config{.d_model = 12, .num_heads = 4, .value_dim = 2, .bias = true};
  using Fused = LayerOf<TypeParam, mha::GroupedQuery<2>>;
  using PerHead = LayerOf<TypeParam, mha::GroupedQuery<2>, mha::PerHeadProjection>;
  const auto fused = make<Fused>(config);
  const auto per_head = make<PerHead>(config);
  const RowMatrix x = random_rows("x", 6, 12);
  expect_near(fused(x), per_head(x), 1e-13);
}

TYPED_TEST(LayerCall, NoKeysGiveTheOutputBias) {
  const auto layer = make<LayerOf<TypeParam>>({.d_model = 4, .num_heads = 2, .bias = true});
  const RowMatrix x = random_rows("x", 3, 4), none(0, 4);
  const RowMatrix y = layer(x, none);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(y.row(i), row(layer.parameters().output.bias));
  EXPECT_EQ(RowMatrix(layer(none, x)).rows(), 0);
  EXPECT_EQ(layer(mha::Tensor<double, 3>(0, 3, 4)).extent(0), 0);
}

TEST(Layer, StorageOrderOfTheInputDoesNotMatter) {
  const auto layer = make<LayerOf<>>({.d_model = 12, .num_heads = 3});
  const RowMatrix x = random_rows("x", 7, 12);
  const ColMatrix columns = x;
  const RowMatrix y = layer(x);
  static_assert(std::is_same_v<decltype(layer(columns)), RowMatrix>, "results have contiguous rows");
  expect_near(layer(columns), y, 1e-13);
  expect_near(layer(x.topRows(7)), y, 0);
  expect_near(layer(Eigen::Map<const RowMatrix>(x.data(), 7, 12)), y, 0);
}

TEST(Layer, TakesViewsAndTensors) {
  const auto layer = make<LayerOf<>>({.d_model = 12, .num_heads = 3});
  const mha::Tensor<double, 3> x = random_batch("x", 3, 5, 12);
  const mha::Tensor<double, 3> y = layer(x);
  EXPECT_EQ(y.extent(0), 3);
  EXPECT_EQ(y.extent(1), 5);
  EXPECT_EQ(y.extent(2), 12);
  EXPECT_EQ(support::differing(layer(x.view()), y), 0U);
  const mha::Tensor<double, 2> one = layer(mha::view(x.data(), 5, 12));
  EXPECT_TRUE(std::equal(one.begin(), one.end(), y.begin()));
}

TEST(Layer, ABatchEqualsItsSequences) {
  const auto layer = make<LayerOf<mha::Cpu, mha::Causal>>({.d_model = 8, .num_heads = 2});
  const mha::Tensor<double, 3> x = random_batch("x", 3, 6, 8), memory = random_batch("memory", 3, 9, 8);
  const auto self = layer(x), cross = layer(x, memory);
  for (int b = 0; b < 3; ++b) {
    expect_near(sequence(self, b), layer(sequence(x, b)), 1e-13);
    expect_near(sequence(cross, b), layer(sequence(x, b), sequence(memory, b)), 1e-13);
  }
}

TEST(Layer, BatchesNeedNotFollowEachOther) {
  const auto layer = make<LayerOf<>>({.d_model = 8, .num_heads = 2});
  const mha::Tensor<double, 3> x = random_batch("x", 3, 6, 8);
  const auto y = layer(x);
  // The same numbers as (L, B, E) memory, and with every other row.
  mha::Tensor<double, 3> swapped(6, 3, 8), spread(3, 12, 8);
  for (int b = 0; b < 3; ++b)
    for (int l = 0; l < 6; ++l)
      for (int e = 0; e < 8; ++e) swapped(l, b, e) = spread(b, 2 * l, e) = x(b, l, e);
  EXPECT_EQ(support::differing(layer(mha::TensorView<double, 3>{swapped.data(), {3, 6, 8}, {8, 24, 1}}), y), 0U);
  EXPECT_EQ(support::differing(layer(mha::TensorView<double, 3>{spread.data(), {3, 6, 8}, {96, 16, 1}}), y), 0U);
}

// A learned query repeated, or a sequence read backwards: a stride of zero or less than a row is a stride.
TYPED_TEST(LayerCall, RowsMayRepeatOverlapOrRunBackwards) {
  const auto layer = make<LayerOf<TypeParam>>({.d_model = 4, .num_heads = 2});
  const RowMatrix memory = random_rows("memory", 6, 4);
  const std::vector<double> numbers{1, -2, 3, -4, 5, -6, 7};
  const auto strided = [&](std::ptrdiff_t first, std::ptrdiff_t stride) {
    return mha::TensorView<const double, 2>{numbers.data() + first, {4, 4}, {stride, 1}};
  };
  for (const auto& x : {strided(0, 0), strided(0, 1), strided(3, -1)}) {
    SCOPED_TRACE("row stride " + std::to_string(x.stride[0]));
    const mha::Tensor<double, 2> found = layer(x, mha::view(memory));
    expect_near(dense(found.view()), layer(dense(x), memory), 1e-13);
  }
}

// Cross-attention of some rows over all of them: the two share a pointer and nothing else.
TYPED_TEST(LayerCall, QueriesMayBeTheFirstRowsOfTheMemory) {
  const auto layer = make<LayerOf<TypeParam>>({.d_model = 8, .num_heads = 2});
  const RowMatrix all = random_rows("all", 9, 8);
  const RowMatrix first = all.topRows(2);
  expect_near(layer(all.topRows(2), all), layer(first, all), 1e-13);
  const RowMatrix few = all.topRows(4);
  expect_near(layer(all, all.topRows(4)), layer(all, few), 1e-13);

  const auto narrow = make<LayerOf<TypeParam>>({.d_model = 8, .num_heads = 2, .kv_model = 5});
  const RowMatrix left = all.leftCols(5);
  expect_near(narrow(all, all.leftCols(5)), narrow(all, left), 1e-13);
}

TYPED_TEST(LayerCall, TheResultMayBeTheInput) {
  const auto layer = make<LayerOf<TypeParam, mha::Causal>>({.d_model = 12, .num_heads = 3, .bias = true});
  mha::Tensor<double, 3> x = random_batch("in place", 2, 150, 12);
  const auto y = layer(x);
  layer(x, mha::into(x));
  EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin()));
  const auto heads = make<LayerOf<TypeParam, mha::NoOutput>>({.d_model = 12, .num_heads = 3});
  const auto mixed = heads(x);
  heads(x, mha::into(x));
  EXPECT_TRUE(std::equal(x.begin(), x.end(), mixed.begin()));
}

template <class L> void expect_residual_added(const Config& config) {
  const auto layer = make<L>(config);
  const mha::Tensor<double, 3> x = random_batch("x", 2, 9, 12), r = random_batch("residual", 2, 9, 12);
  mha::Tensor<double, 3> expected = layer(x);
  for (std::size_t i = 0; i < expected.size(); ++i) expected.data()[i] += r.data()[i];
  const auto expect_sum = [&](const auto& y) {
    for (int b = 0; b < 2; ++b)
      for (int l = 0; l < 9; ++l)
        for (int e = 0; e < 12; ++e) ASSERT_NEAR(y(b, l, e), expected(b, l, e), 1e-13) << b << ' ' << l << ' ' << e;
  };
  expect_sum(layer(x, mha::residual(r)));
  expect_sum(layer(x, layer.project_memory(x), mha::residual(r)));
  mha::Tensor<double, 3> y = r;
  layer(x, mha::residual(y), mha::into(y));
  expect_sum(y);
  // A result that begins a row before its residual.
  const auto part = [](mha::Tensor<double, 2>& t, int row) { return mha::view(t.data() + row * 12, 2, 9, 12); };
  mha::Tensor<double, 2> rows(19, 12);
  std::copy(r.begin(), r.end(), rows.data() + 12);
  layer(x, mha::residual(part(rows, 1)), mha::into(part(rows, 0)));
  expect_sum(part(rows, 0));
  // Sequences of the residual, then of the result too, that do not follow each other.
  mha::Tensor<double, 4> spread(9, 2, 2, 12);
  const mha::TensorView<double, 3> apart{spread.data(), {2, 9, 12}, {24, 48, 1}};
  for (int b = 0; b < 2; ++b)
    for (int l = 0; l < 9; ++l) std::copy_n(&r(b, l, 0), 12, apart.pointer(b, l, 0));
  expect_sum(layer(x, mha::residual(apart)));
  layer(x, mha::residual(apart), mha::into(apart));
  expect_sum(apart);
}

TYPED_TEST(LayerCall, AddsAResidual) {
  expect_residual_added<LayerOf<TypeParam, mha::Causal>>({.d_model = 12, .num_heads = 3, .bias = true});
  expect_residual_added<LayerOf<TypeParam, mha::NoOutput>>({.d_model = 12, .num_heads = 3});
  const auto layer = make<LayerOf<TypeParam>>({.d_model = 12, .num_heads = 3});
  const mha::Tensor<double, 3> x = random_batch("x", 1, 9, 12), twice = layer(x, mha::residual(x));
  mha::Tensor<double, 3> y = x;
  layer(y, mha::residual(y), mha::into(y));
  EXPECT_EQ(support::differing(y, twice), 0u);
}

TEST(Layer, IntoWritesOnlyItsElements) {
  const auto layer = make<LayerOf<>>({.d_model = 8, .num_heads = 2, .bias = true});
  const RowMatrix x = random_rows("x", 5, 8);
  const RowMatrix y = layer(x);

  RowMatrix frame = RowMatrix::Constant(9, 12, 77);
  auto middle = frame.block(2, 1, 5, 8);
  layer(x, mha::into(middle));
  expect_near(middle, y, 1e-13);
  EXPECT_EQ((frame.array() == 77).count(), 9 * 12 - 5 * 8);

  ColMatrix columns(5, 8);
  layer(x, mha::into(columns));
  expect_near(columns, y, 1e-13);

  const mha::Tensor<double, 3> batch = random_batch("batch", 3, 5, 8);
  const auto expected = layer(batch);
  mha::Tensor<double, 4> spread(5, 3, 2, 8);  // (L, B, …): sequences interleaved, a gap after each row
  std::fill(spread.begin(), spread.end(), 77.);
  layer(batch, mha::into(mha::TensorView<double, 3>{spread.data(), {3, 5, 8}, {16, 48, 1}}));
  for (int b = 0; b < 3; ++b)
    for (int l = 0; l < 5; ++l)
      for (int e = 0; e < 8; ++e) {
        EXPECT_NEAR(spread(l, b, 0, e), expected(b, l, e), 1e-13);
        EXPECT_EQ(spread(l, b, 1, e), 77);
      }
}

TEST(Layer, TheSecondCallAllocatesNothing) {
  const auto layer = make<LayerOf<mha::Cpu, mha::GroupedQuery<1>>>({.d_model = 32, .num_heads = 2, .bias = true});
  const RowMatrix x = random_rows("x", 70, 32);
  const ColMatrix columns = x;
  RowMatrix y(70, 32);
  mha::Workspace workspace;
  layer(x, workspace, mha::into(y));
  const RowMatrix first = y;
  const int allocations = workspace.allocations();
  const std::size_t bytes = workspace.bytes();
  EXPECT_GT(allocations, 0);
  for (int i = 0; i < 3; ++i) layer(x, workspace, mha::into(y));
  EXPECT_EQ(workspace.allocations(), allocations);
  EXPECT_EQ(workspace.bytes(), bytes);
  EXPECT_EQ(y, first);
  static_cast<void>(layer(RowMatrix(x.topRows(9)), workspace));  // a smaller call fits
  EXPECT_EQ(workspace.allocations(), allocations);

  layer(columns, workspace, mha::into(y));  // needs a little more: its rows are packed
  const int grown = workspace.allocations();
  layer(columns, workspace, mha::into(y));
  EXPECT_EQ(workspace.allocations(), grown);

  const RowMatrix keys = random_rows("keys", 60, 32), values = random_rows("values", 60, 32);
  layer(x, keys, values, workspace, mha::into(y));
  const int apart = workspace.allocations();
  layer(x, keys, values, workspace, mha::into(y));
  EXPECT_EQ(workspace.allocations(), apart);

  mha::Workspace sized(bytes);
  layer(x, sized, mha::into(y));
  EXPECT_EQ(sized.allocations(), 1);
}

TEST(Layer, LogSumExpOfEveryHead) {
  const auto layer = make<LayerOf<mha::Cpu, mha::GroupedQuery<1>, mha::Causal>>({.d_model = 8, .num_heads = 2});
  const mha::Tensor<double, 3> x = random_batch("x", 2, 5, 8);
  mha::Tensor<double, 3> lse(2, 2, 5);
  const auto y = layer(x, mha::LogSumExp{lse});
  EXPECT_EQ(support::differing(layer(x), y), 0U);
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 2; ++h) {
      const RowMatrix q = sequence(x, b) * dense(layer.parameters().query.head(h)),
                      k = sequence(x, b) * dense(layer.parameters().key.head(0));
      for (int i = 0; i < 5; ++i) {
        double sum = 0;
        for (int j = 0; j <= i; ++j) sum += std::exp(q.row(i).dot(k.row(j)) / 2);
        EXPECT_NEAR(lse(b, h, i), std::log(sum), 1e-12);
      }
    }
}

TEST(Layer, CallMasksIntersectWithTheLayers) {
  const auto layer = make<LayerOf<mha::Cpu, mha::Causal>>({.d_model = 8, .num_heads = 2});
  const mha::Tensor<double, 3> x = random_batch("x", 2, 6, 8);
  const std::vector<int> lengths{4, 6};
  const auto y = layer(x, mha::Padding{lengths}, mha::SlidingWindow{.left = 2, .right = 5});
  for (int b = 0; b < 2; ++b) {
    const int length = lengths[std::size_t(b)];
    expect_near(sequence(y, b),
                by_formula(layer, sequence(x, b), sequence(x, b),
                           [&](int q, int k) { return k <= q && k < length && k >= q - 2; }),
                1e-12);
  }
}

TEST(Layer, CallScoresComeAfterTheLayers) {
  LayerOf<mha::Cpu, mha::SoftCap> layer({.d_model = 8, .num_heads = 2}, mha::SoftCap{0.5f});
  layer.initialize(mha::XavierUniform{.seed = 11, .gain = 4});
  const RowMatrix x = random_rows("x", 4, 8);
  RowMatrix bias = random_rows("bias", 4, 4);
  bias(0, 3) = -std::numeric_limits<double>::infinity();
  const auto weights = layer.attention_weights(x, mha::AdditiveBias{bias});
  for (int h = 0; h < 2; ++h) {
    const RowMatrix q = x * dense(layer.parameters().query.head(h)), k = x * dense(layer.parameters().key.head(h));
    for (int i = 0; i < 4; ++i) {
      Eigen::RowVectorXd s(4);
      for (int j = 0; j < 4; ++j) s(j) = std::exp(0.5 * std::tanh(q.row(i).dot(k.row(j)) / 2 / 0.5) + bias(i, j));
      for (int j = 0; j < 4; ++j) EXPECT_NEAR(weights(0, h, i, j), s(j) / s.sum(), 1e-12);
    }
  }
  EXPECT_EQ(weights(0, 0, 0, 3), 0);
}

TYPED_TEST(LayerCall, AttentionWeightsAreTheSoftmax) {
  const auto layer =
      make<LayerOf<TypeParam, mha::GroupedQuery<2>, mha::Causal, mha::NoOutput>>({.d_model = 8, .num_heads = 4});
  const mha::Tensor<double, 3> x = random_batch("x", 2, 5, 8), memory = random_batch("memory", 2, 7, 8);
  mha::Workspace workspace;
  const mha::Tensor<double, 4> w = layer.attention_weights(x, memory, workspace);
  const mha::Tensor<double, 3> y = layer(x, memory);
  const mha::Tensor<double, 3> mean = layer.mean_attention_weights(x, memory);
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < 4; ++h) {
      const RowMatrix v = sequence(memory, b) * dense(layer.parameters().value.head(h / 2));
      for (int i = 0; i < 5; ++i) {
        double sum = 0;
        for (int k = 0; k < 7; ++k) sum += w(b, h, i, k);
        EXPECT_NEAR(sum, 1, 1e-13);
        for (int k = i + 3; k < 7; ++k) EXPECT_EQ(w(b, h, i, k), 0);
        for (int d = 0; d < 2; ++d) {
          double head = 0;
          for (int k = 0; k < 7; ++k) head += w(b, h, i, k) * v(k, d);
          EXPECT_NEAR(y(b, i, h * 2 + d), head, 1e-12);
        }
      }
    }
    for (int i = 0; i < 5; ++i)
      for (int k = 0; k < 7; ++k)
        EXPECT_NEAR(mean(b, i, k), (w(b, 0, i, k) + w(b, 1, i, k) + w(b, 2, i, k) + w(b, 3, i, k)) / 4, 1e-15);
  }
  const auto one = layer.attention_weights(sequence(x, 1));
  EXPECT_EQ(one.extent(0), 1);
  const auto mean_of_one = layer.mean_attention_weights(sequence(x, 1));
  EXPECT_EQ(mean_of_one.extent(1), 5);
}

TEST(Layer, CopiesAreIndependentAndMovesWork) {
  auto a = make<LayerOf<>>({.d_model = 8, .num_heads = 2});
  const RowMatrix x = random_rows("x", 3, 8);
  const RowMatrix before = a(x);
  LayerOf<> b = a;
  EXPECT_NE(a.parameters().flat().data(), b.parameters().flat().data());
  b.update([](auto& p) { p.output.matrix()(0, 0) += 1; });
  EXPECT_EQ(RowMatrix(a(x)), before);
  const RowMatrix changed = b(x);
  EXPECT_NE(changed, before);

  LayerOf<> c = std::move(b);
  EXPECT_EQ(RowMatrix(c(x)), changed);
  a = c;
  c.update([](auto& p) { std::fill(p.flat().begin(), p.flat().end(), 0.); });
  EXPECT_EQ(RowMatrix(a(x)), changed);
  EXPECT_TRUE(RowMatrix(c(x)).isZero(0));
}

TEST(Layer, BorrowsACheckpointAndKeepsItAlive) {
  const auto own = make<LayerOf<>>({.d_model = 6, .num_heads = 2, .bias = true});
  const RowMatrix x = random_rows("x", 4, 6);
  // As PyTorch stores them: (out, in), all in one allocation that only the layer holds.
  struct File {
    RowMatrix q, k, v, o;
    Eigen::RowVectorXd qb, kb, vb, ob;
  };
  const auto p = own.parameters();
  auto file = std::make_shared<const File>(File{dense(p.query.matrix()).transpose(), dense(p.key.matrix()).transpose(),
                                                dense(p.value.matrix()).transpose(),
                                                dense(p.output.matrix()).transpose(), row(p.query.bias_row()),
                                                row(p.key.bias_row()), row(p.value.bias_row()), row(p.output.bias)});
  const std::weak_ptr<const File> watch = file;
  const auto vector = [](const Eigen::RowVectorXd& v) { return mha::view(v.data(), static_cast<int>(v.size())); };

  auto layer = std::make_unique<LayerOf<>>(own);
  const mha::BorrowedWeights<double> weights{.query = mha::transposed(mha::view(file->q)),
                                             .key = mha::transposed(mha::view(file->k)),
                                             .value = mha::transposed(mha::view(file->v)),
                                             .output = mha::transposed(mha::view(file->o)),
                                             .query_bias = vector(file->qb),
                                             .key_bias = vector(file->kb),
                                             .value_bias = vector(file->vb),
                                             .output_bias = vector(file->ob)};
  layer->borrow(weights, std::exchange(file, nullptr));
  expect_near((*layer)(x), own(x), 1e-13);
  EXPECT_NE(layer->explain(1, 4, 4).find("borrowed"), std::string::npos);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { layer->update([](auto&) { FAIL(); }); }),
            "update: the layer's 168 parameters are borrowed, so they cannot be written: copy them in the update() of "
            "a new layer");
  EXPECT_NE(mha_test::message_of<mha::ShapeError>([&] { layer->initialize(mha::XavierUniform{}); }), "");

  const LayerOf<> copy = *layer;
  layer.reset();
  EXPECT_FALSE(watch.expired());
  expect_near(copy(x), own(x), 1e-13);
}

TEST(Layer, BorrowsEigenMatricesAndVectors) {
  const Config config{.d_model = 6, .num_heads = 2, .bias = true};
  const ColMatrix q = random_rows("q", 6, 6), k = random_rows("k", 6, 6);
  RowMatrix v = random_rows("v", 6, 6), o = random_rows("o", 6, 6);
  const Eigen::VectorXd q_bias = random_rows("qb", 6, 1);
  const Eigen::RowVectorXd k_bias = random_rows("kb", 1, 6);
  const RowMatrix others = random_rows("others", 2, 6);
  LayerOf<> own(config), borrowed(config);
  own.update([&](auto& p) {
    for (int i = 0; i < 6; ++i) {
      for (int j = 0; j < 6; ++j) {
        p.query.matrix()(i, j) = q(i, j);
        p.key.matrix()(i, j) = k(i, j);
        p.value.matrix()(i, j) = v(i, j);
        p.output.weight(i, j) = o(j, i);
      }
      p.query.bias_row()(i) = q_bias(i);
      p.key.bias_row()(i) = k_bias(i);
      p.value.bias_row()(i) = others(0, i);
      p.output.bias(i) = others(1, i);
    }
  });
  const auto first = others.row(0), second = others.row(1);
  borrowed.borrow({.query = q,
                   .key = k,
                   .value = v,
                   .output = o.transpose(),
                   .query_bias = q_bias,
                   .key_bias = k_bias,
                   .value_bias = first,
                   .output_bias = second});
  const RowMatrix x = random_rows("x", 5, 6);
  expect_near(borrowed(x), own(x), 1e-12);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { borrowed.borrow({.query = q, .query_bias = others}); }),
            "borrow: a bias, norm or gate is (2, 6), expected one row or one column");
}

TEST(Layer, WritesIntoATemporaryBlock) {
  const auto layer = make<LayerOf<>>({.d_model = 6, .num_heads = 2});
  const ColMatrix x = random_rows("x", 4, 6);
  ColMatrix y = ColMatrix::Constant(9, 6, 7);
  layer(x, mha::into(y.middleRows(2, 4)));
  expect_near(y.middleRows(2, 4), layer(x), 0);
  EXPECT_TRUE((y.topRows(2).array() == 7).all() && (y.bottomRows(3).array() == 7).all());
}

TEST(Layer, UpdateTakesEigenMatrices) {
  auto layer = make<LayerOf<>>({.d_model = 8, .num_heads = 2}), twin = make<LayerOf<>>({.d_model = 8, .num_heads = 2});
  const ColMatrix query = random_rows("query", 8, 8), output = random_rows("output", 8, 8);
  layer.update([&](auto& p) {
    p.query = query;
    p.output = output.transpose().eval();
  });
  twin.update([&](auto& p) {
    for (int i = 0; i < 8; ++i)
      for (int j = 0; j < 8; ++j) {
        p.query.matrix()(i, j) = query(i, j);
        p.output.matrix()(i, j) = output(j, i);
      }
  });
  const RowMatrix x = random_rows("x", 4, 8);
  expect_near(layer(x), twin(x), 0);
}

TEST(Layer, ANewLayerHasNoWeights) {
  const LayerOf<> layer({.d_model = 8, .num_heads = 2});
  const RowMatrix x = random_rows("x", 4, 8);
  const std::string rest = ": expected 256 weights, got 0: call initialize, update or borrow first";
  const std::string expected = "layer" + rest;
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer(x)); }), expected);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer(x, x)); }), expected);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer.attention_weights(x)); }), expected);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer.project_memory(x)); }),
            "project_memory" + rest);
  EXPECT_NE(layer.explain(1, 4, 4).find("256 double, none yet"), std::string::npos);
  EXPECT_EQ(layer.parameters().query.heads.data, nullptr);
}

// One set of weights under two masks: the second layer points at the first's memory.
TEST(Layer, BorrowsAnotherLayersWeights) {
  auto full = make<LayerOf<mha::Cpu, mha::PerHeadProjection>>({.d_model = 8, .num_heads = 2, .bias = true});
  LayerOf<mha::Cpu, mha::Causal, mha::PerHeadProjection> decoder({.d_model = 8, .num_heads = 2, .bias = true});
  decoder.borrow(full.parameters());
  EXPECT_EQ(decoder.parameters().query.heads.data, full.parameters().query.heads.data);
  const RowMatrix x = random_rows("x", 5, 8);
  EXPECT_EQ(RowMatrix(decoder(x)), RowMatrix(full(x, mha::Causal{})));
  full.update([](auto& p) { p.output.matrix()(0, 0) += 1; });
  decoder.borrow(full.parameters());  // what a backend packed is read anew
  EXPECT_EQ(RowMatrix(decoder(x)), RowMatrix(full(x, mha::Causal{})));
}

// What was packed from the weights never goes stale.
TYPED_TEST(LayerCall, EveryChangeOfTheWeightsReachesTheNextCall) {
  using LayerType = LayerOf<TypeParam, mha::GroupedQuery<2>>;
  const mha::Config config{.d_model = 8, .num_heads = 4, .bias = true};
  auto layer = make<LayerType>(config);
  const mha::Tensor<double, 3> x = random_batch("x", 2, 4, 8);
  const auto result_of_a_new_one = [&](const LayerType& like) {
    LayerType fresh(config);
    fresh.update([&](auto& p) { std::copy_n(like.parameters().all.data(), p.flat().size(), p.flat().data()); });
    return fresh(x);
  };
  auto before = layer(x);
  const LayerType copy = layer;
  const auto change_one = [&](auto&& pick) {
    layer.update([&](auto& p) { pick(p) += 0.5; });
    const auto after = layer(x);
    EXPECT_NE(support::differing(after, before), 0U);
    EXPECT_EQ(support::differing(after, result_of_a_new_one(layer)), 0U);
    before = layer(x);
  };
  const auto at_first = copy(x);
  change_one([](auto& p) -> double& { return p.query.heads(1, 2, 1); });
  change_one([](auto& p) -> double& { return p.key.heads(1, 2, 1); });
  change_one([](auto& p) -> double& { return p.value.heads(1, 2, 1); });
  change_one([](auto& p) -> double& { return p.value.bias(0, 1); });
  change_one([](auto& p) -> double& { return p.output.weight(1, 2); });
  change_one([](auto& p) -> double& { return p.output.bias(3); });
  EXPECT_EQ(support::differing(copy(x), at_first), 0U) << "a copy has weights of its own";
  // An update that fails half-way: what it wrote counts.
  struct Failure {};
  EXPECT_THROW(layer.update([](auto& p) {
    p.output.weight(0, 0) += 1;
    throw Failure{};
  }),
               Failure);
  EXPECT_NE(support::differing(layer(x), before), 0U);
  EXPECT_EQ(support::differing(layer(x), result_of_a_new_one(layer)), 0U);
  before = layer(x);
  LayerType wrong({.d_model = 8, .num_heads = 4, .head_dim = 4, .bias = true});
  wrong.initialize(mha::XavierUniform{.seed = 9});
  EXPECT_THROW(layer.borrow(wrong.parameters()), mha::ShapeError);
  EXPECT_EQ(support::differing(layer(x), before), 0U) << "a failed borrow changes nothing";
  layer.borrow(copy.parameters());
  EXPECT_EQ(support::differing(layer(x), at_first), 0U);
}

TYPED_TEST(LayerCall, KeysAndValuesProjectedOnceGiveTheSameBits) {
  const auto layer = make<LayerOf<TypeParam, mha::GroupedQuery<2>, mha::Causal>>(
      {.d_model = 8, .num_heads = 4, .value_dim = 3, .kv_model = 5, .bias = true});
  const mha::Tensor<double, 3> x = random_batch("x", 2, 4, 8), memory = random_batch("memory", 2, 6, 5);
  const mha::KeyValues<double> made = layer.project_memory(memory);
  EXPECT_EQ(made.key.extent(2), 2);
  EXPECT_EQ(made.key.extent(3), 2);
  EXPECT_EQ(made.value.extent(3), 3);
  EXPECT_EQ(support::differing(layer(x, made), layer(x, memory)), 0U);
  EXPECT_EQ(support::differing(layer.attention_weights(x, made), layer.attention_weights(x, memory)), 0U);
  EXPECT_EQ(support::differing(layer.mean_attention_weights(x, made), layer.mean_attention_weights(x, memory)), 0U);

  mha::KeyValues<double> other{mha::Tensor<double, 4>(2, 6, 4, 2), mha::Tensor<double, 4>(2, 6, 4, 3)};
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer(x, other)); }),
            "layer: key has 4 heads but the layer has 2");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer.project_memory(x)); }),
            "project_memory: memory has width 8 but kv_model is 5");
}

TYPED_TEST(LayerCall, QueriesStandAtTheirOrigin) {
  const auto layer = make<LayerOf<TypeParam, mha::Causal, mha::Rotary<>>>({.d_model = 8, .num_heads = 2});
  const RowMatrix x = random_rows("x", 7, 8), y = layer(x);
  expect_near(layer(RowMatrix(x.bottomRows(3)), x), y.bottomRows(3), 1e-13);
  expect_near(layer(RowMatrix(x.middleRows(2, 3)), x, mha::Origin{2}), y.middleRows(2, 3), 1e-13);
}

TYPED_TEST(LayerCall, QueriesOfEachSequenceStandAtAnOriginOfItsOwn) {
  const auto layer = make<LayerOf<TypeParam, mha::Causal, mha::Rotary<>>>({.d_model = 8, .num_heads = 2});
  const mha::Tensor<double, 3> x = random_batch("x", 3, 6, 8);
  mha::Tensor<double, 3> memory = random_batch("memory", 3, 9, 8);
  // Sequence b has lengths[b] keys; its queries go on where they end.
  const std::vector<int> lengths{9, 4, 7}, origins{3, -2, 1}, few{3, -2};
  const mha::Tensor<double, 3> y = layer(x, memory, mha::Padding{lengths}, mha::Origin{origins});
  const auto made = layer.project_memory(memory);
  EXPECT_EQ(support::differing(layer(x, made, mha::Padding{lengths}, mha::Origin{origins}), y), 0U);
  for (int b = 0; b < 3; ++b) {
    const RowMatrix keys = sequence(memory, b).topRows(lengths[static_cast<std::size_t>(b)]);
    expect_near(sequence(y, b), layer(sequence(x, b), keys), 1e-13);
  }
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer(x, memory, mha::Origin{few})); }),
            "layer: Origin has 2 positions for a batch of 3");
}

TYPED_TEST(LayerCall, KeysOfEachSequenceAreTurnedToTheirOrigin) {
  const auto layer = make<LayerOf<TypeParam, mha::Rotary<>>>({.d_model = 8, .num_heads = 2});
  const mha::Tensor<double, 3> memory = random_batch("memory", 2, 7, 8);
  const auto whole = layer.project_memory(memory);
  mha::Tensor<double, 3> parts(2, 4, 8);  // rows 1 to 4 of the first sequence, 3 to 6 of the second
  const std::vector<int> origins{1, 3}, three{1, 3, 5}, far{0, 1073741821};
  for (int b = 0; b < 2; ++b)
    for (int l = 0; l < 4; ++l)
      for (int e = 0; e < 8; ++e) parts(b, l, e) = memory(b, l + origins[static_cast<std::size_t>(b)], e);
  const auto part = layer.project_memory(parts, mha::Origin{origins});
  for (int b = 0; b < 2; ++b)
    for (int l = 0; l < 4; ++l)
      for (int h = 0; h < 2; ++h)
        for (int d = 0; d < 4; ++d)
          EXPECT_NEAR(part.key(b, l, h, d), whole.key(b, l + origins[static_cast<std::size_t>(b)], h, d), 1e-14);
  const auto error = [&](const mha::Origin& origin) {
    return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer.project_memory(parts, origin)); });
  };
  EXPECT_EQ(error(mha::Origin{three}), "project_memory: Origin has 3 positions for a batch of 2");
  EXPECT_EQ(error(mha::Origin{far}), "project_memory: the origin 1073741821 puts 4 keys beyond position 1073741823");
}

// A batch padded in front gives every sequence the rows it has alone: rotary positions are distances.
TYPED_TEST(LayerCall, LeftPaddingChangesNoRowOfASequence) {
  const auto layer = make<LayerOf<TypeParam, mha::Causal, mha::Rotary<>>>({.d_model = 8, .num_heads = 2});
  mha::Tensor<double, 3> x = random_batch("x", 3, 7, 8);
  const std::vector<int> lengths{7, 3, 5};
  for (int b = 0; b < 3; ++b)
    for (int l = 0; l < 7 - lengths[static_cast<std::size_t>(b)]; ++l)
      for (int e = 0; e < 8; ++e) x(b, l, e) = std::numeric_limits<double>::quiet_NaN();
  const mha::Tensor<double, 3> y = layer(x, mha::LeftPadding{lengths});
  for (int b = 0; b < 3; ++b) {
    const int n = lengths[static_cast<std::size_t>(b)];
    expect_near(sequence(y, b).bottomRows(n), layer(RowMatrix(sequence(x, b).bottomRows(n))), 1e-13);
  }
}

TYPED_TEST(LayerCall, PackedSequencesAreEachOnTheirOwn) {
  const auto layer = make<LayerOf<TypeParam, mha::Causal>>({.d_model = 8, .num_heads = 2, .kv_model = 5});
  const RowMatrix x = random_rows("x", 9, 8), memory = random_rows("memory", 12, 5);
  const std::vector<int> offsets{0, 4, 4, 9}, key_offsets{0, 7, 8, 12}, none{0}, few{0, 4, 8}, back{0, 5, 4, 9};
  const RowMatrix y = layer(x, memory, mha::Ragged{offsets, key_offsets});
  expect_near(y.topRows(4), layer(RowMatrix(x.topRows(4)), RowMatrix(memory.topRows(7))), 1e-13);
  expect_near(y.bottomRows(5), layer(RowMatrix(x.bottomRows(5)), RowMatrix(memory.bottomRows(4))), 1e-13);
  const auto made = layer.project_memory(memory, mha::Ragged{key_offsets});
  expect_near(layer(x, made, mha::Ragged{offsets, key_offsets}), y, 0);
  expect_near(layer(x, made, mha::Ragged{offsets}), y, 0);  // the keys' offsets are those they were made with

  const auto error = [&](const mha::Ragged& ragged) {
    RowMatrix poisoned = RowMatrix::Constant(9, 8, 77);
    const auto message = mha_test::message_of<mha::ShapeError>([&] { layer(x, memory, ragged, mha::into(poisoned)); });
    EXPECT_TRUE((poisoned.array() == 77).all());
    return message;
  };
  EXPECT_EQ(error({few, key_offsets}), "layer: the last offset of x is 8 but there are 9 rows");
  EXPECT_EQ(error({back, key_offsets}), "layer: the offsets of x decrease from 5 to 4 at sequence 1");
  EXPECT_EQ(error({offsets, offsets}), "layer: the last offset of memory is 9 but there are 12 rows");
  EXPECT_EQ(error({none, key_offsets}), "layer: the last offset of x is 0 but there are 9 rows");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>(
                [&] { static_cast<void>(layer.project_memory(memory, mha::Ragged{offsets})); }),
            "project_memory: the last offset of memory is 9 but there are 12 rows");
  const auto self = make<LayerOf<TypeParam>>({.d_model = 8, .num_heads = 2});
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] {
              static_cast<void>(self(x, mha::Ragged{offsets, few}));
            }),
            "layer: the last offset of x is 8 but there are 9 rows");
}

// Keys and values know how they were projected: a call cannot cut them elsewhere or attend across sequences.
TYPED_TEST(LayerCall, KeptMemoryKnowsItsSequences) {
  const auto layer = make<LayerOf<TypeParam, mha::Rotary<>>>({.d_model = 8, .num_heads = 2, .kv_model = 5});
  const RowMatrix x = random_rows("x", 9, 8), memory = random_rows("memory", 12, 5);
  const std::vector<int> offsets{0, 4, 4, 9}, key_offsets{0, 7, 8, 12}, other{0, 7, 9, 12}, two{0, 7, 12}, one{0, 12},
      all{0, 9};
  const auto made = layer.project_memory(memory, mha::Ragged{key_offsets}), whole = layer.project_memory(memory);
  const auto error = [&](const auto& kept, const auto&... extra) {
    RowMatrix poisoned = RowMatrix::Constant(9, 8, 77);
    const auto message = mha_test::message_of<mha::ShapeError>([&] { layer(x, kept, mha::into(poisoned), extra...); });
    EXPECT_EQ((poisoned.array() == 77).all(), !message.empty());
    return message;
  };
  EXPECT_EQ(error(made),
            "layer: the memory was projected as 3 sequences, but the call has no Ragged: give "
            "mha::Ragged with the offsets of x");
  EXPECT_EQ(error(made, mha::Ragged{offsets, other}),
            "layer: Ragged says that key sequence 2 starts at row 9, but the memory was projected with 8");
  EXPECT_EQ(error(made, mha::Ragged{offsets, two}),
            "layer: Ragged has 2 key sequences, but the memory was projected as 3");
  EXPECT_EQ(
      error(whole, mha::Ragged{offsets, key_offsets}),
      "layer: the memory was projected as one sequence, but Ragged cuts it into 3: give project_memory() the same "
      "Ragged");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer.attention_weights(x, made)); }),
            error(made));
  EXPECT_EQ(error(made, mha::Ragged{offsets}), "");
  EXPECT_EQ(error(whole, mha::Ragged{all, one}), "");
  EXPECT_EQ(error(layer.project_memory(memory, mha::Ragged{one})), "");
}

TYPED_TEST(LayerCall, KeptMemoryOfChangedWeightsIsRefused) {
  auto layer = make<LayerOf<TypeParam>>({.d_model = 8, .num_heads = 2});
  const RowMatrix x = random_rows("x", 4, 8), memory = random_rows("memory", 6, 8);
  auto kept = layer.project_memory(memory);
  auto same_weights = layer;
  LayerOf<TypeParam, mha::Causal> borrower({.d_model = 8, .num_heads = 2});
  borrower.borrow(layer);
  expect_near(same_weights(x, kept), layer(x, kept), 0);
  expect_near(borrower(x, kept), borrower(x, memory), 1e-13);

  const auto error = [&](const auto& with) {
    return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(with(x, kept)); });
  };
  const std::string changed =
      "layer: these keys and values were projected with other weights than the layer has now: call project_memory() "
      "again";
  layer.update([](auto& p) { p.key.heads(0, 0, 0) += 1; });
  EXPECT_EQ(error(layer), changed);
  EXPECT_EQ(error(same_weights), "") << "a copy has weights of its own";
  EXPECT_EQ(error(make<LayerOf<TypeParam>>({.d_model = 8, .num_heads = 2})), changed);
  EXPECT_EQ(error(make<LayerOf<TypeParam, mha::Causal>>({.d_model = 8, .num_heads = 2})), changed);
  kept = layer.project_memory(memory);
  expect_near(layer(x, kept), layer(x, memory), 1e-13);
  layer.initialize(mha::XavierUniform{.seed = 9});
  EXPECT_EQ(error(layer), changed);
  borrower.borrow(layer);
  EXPECT_EQ(error(borrower), changed);

  // Keys and values from elsewhere belong to no weights.
  const mha::KeyValues<double> own{mha::Tensor<double, 4>(1, 6, 2, 4), mha::Tensor<double, 4>(1, 6, 2, 4)};
  EXPECT_TRUE(layer(x, own).isZero());
}

/// A position of a user, which cannot be compared.
struct Shift {
  static constexpr auto role = mha::Role::position;
  double by = 0;
  template <class T> void apply(const mha::TensorView<T, 4>& x, const mha::Origins&) const {
    for (int b = 0; b < x.extent[0]; ++b)
      for (int l = 0; l < x.extent[1]; ++l)
        for (int h = 0; h < x.extent[2]; ++h) x(b, l, h, 0) += by;
  }
};

TEST(Layer, KeptMemoryIsSharedByBorrowersThatMakeTheSameKeys) {
  using mha::Rotary, mha::QkNorm;
  const Config c{.d_model = 8, .num_heads = 2};
  const RowMatrix x = random_rows("x", 4, 8), memory = random_rows("memory", 6, 8);
  // Whether a layer with the second list of policies takes what one with the first has kept, and is right then.
  const auto shared = [&](const auto& owner_policy, const auto& policy) {
    auto owner = mha::make_attention<double, mha::Cpu>(c, owner_policy);
    owner.initialize(mha::XavierUniform{.seed = 11});
    auto borrower = mha::make_attention<double, mha::Cpu>(c, policy, mha::Causal{});
    borrower.borrow(owner);
    const auto kept = owner.project_memory(memory);
    const std::string error =
        mha_test::message_of<mha::ShapeError>([&] { expect_near(borrower(x, kept), borrower(x, memory), 1e-13); });
    EXPECT_TRUE(error.empty() || error.find("projected with other weights") != error.npos) << error;
    return error.empty();
  };
  EXPECT_TRUE(shared(mha::NoPosition{}, mha::NoPosition{}));
  EXPECT_FALSE(shared(mha::NoPosition{}, Rotary<>{}));
  EXPECT_FALSE(shared(Rotary<>{}, mha::NoPosition{}));
  EXPECT_FALSE(shared(Rotary<>{}, Rotary<mha::Interleaved>{}));
  EXPECT_TRUE(shared(Rotary<>{}, Rotary<>{}));
  EXPECT_TRUE(shared(Rotary<>{.base = 5e5, .dims = 2}, Rotary<>{.base = 5e5, .dims = 2}));
  EXPECT_FALSE(shared(Rotary<>{}, Rotary<>{.base = 5e5}));
  EXPECT_FALSE(shared(Rotary<>{}, Rotary<>{.dims = 2}));
  const auto scaled = [](auto scaling) { return Rotary<mha::Halves, decltype(scaling)>{.scaling = scaling}; };
  EXPECT_TRUE(shared(scaled(mha::LinearScaling{2}), scaled(mha::LinearScaling{2})));
  EXPECT_FALSE(shared(scaled(mha::LinearScaling{2}), scaled(mha::LinearScaling{3})));
  EXPECT_FALSE(shared(scaled(mha::NtkScaling{2}), scaled(mha::NtkScaling{3})));
  EXPECT_FALSE(shared(scaled(mha::Llama3Scaling{}), scaled(mha::Llama3Scaling{.original_length = 4})));
  EXPECT_TRUE(shared(QkNorm{}, QkNorm{}));
  EXPECT_FALSE(shared(QkNorm{}, QkNorm{.eps = 1e-2}));
  EXPECT_FALSE(shared(QkNorm{}, QkNorm{.zero_centered = true}));
  EXPECT_FALSE(shared(Shift{1}, Shift{1})) << "values that cannot be compared";
}

TEST(Layer, ErrorsNameTheSizeAndWriteNothing) {
  const auto layer = make<LayerOf<>>({.d_model = 8, .num_heads = 2, .kv_model = 6});
  mha::Tensor<double, 3> y(2, 3, 8), lse(2, 2, 3);
  support::poison_all(y);
  support::poison_all(lse);
  const mha::Tensor<double, 3> poisoned = y, poisoned_lse = lse;
  const auto error = [&](auto&&... arguments) {
    return mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer(arguments...)); });
  };
  const mha::Tensor<double, 3> x(2, 3, 8), memory(2, 5, 6);
  EXPECT_EQ(error(mha::Tensor<double, 3>(2, 3, 7), memory, mha::into(y)), "layer: x has width 7 but d_model is 8");
  EXPECT_EQ(error(x, mha::Tensor<double, 3>(2, 5, 8), mha::into(y)), "layer: memory has width 8 but kv_model is 6");
  EXPECT_EQ(error(x, mha::into(y)), "layer: x has width 8 but kv_model is 6");
  EXPECT_EQ(error(x, mha::Tensor<double, 3>(3, 5, 6), mha::into(y)), "layer: x has batch 2 but memory has batch 3");
  EXPECT_EQ(error(mha::Tensor<double, 3>(1, 3, 8), mha::Tensor<double, 3>(1, 5, 6), mha::into(y)),
            "layer: x has batch 1 but the result has batch 2");
  EXPECT_EQ(error(mha::Tensor<double, 3>(2, 4, 8), memory, mha::into(y)),
            "layer: x has length 4 but the result has length 3");
  mha::Tensor<double, 3> wide(2, 3, 9);
  EXPECT_EQ(error(x, memory, mha::into(wide)), "layer: the layer's output has width 8 but the result has width 9");
  mha::Tensor<double, 3> long_lse(2, 2, 4);
  EXPECT_EQ(error(x, memory, mha::into(y), mha::LogSumExp{long_lse}),
            "layer: x has length 3 but log-sum-exp has length 4");
  const std::vector<int> lengths{5, 6}, one{5};
  EXPECT_EQ(error(x, memory, mha::into(y), mha::LogSumExp{lse}, mha::Padding{lengths}),
            "Padding: length 6 of sequence 1 is outside [0, 5], the number of keys");
  EXPECT_EQ(error(x, memory, mha::into(y), mha::LogSumExp{lse}, mha::Padding{one}),
            "Padding: 1 lengths for a batch of 2");
  EXPECT_EQ(error(mha::view(static_cast<const double*>(nullptr), 2, 3, 8), memory, mha::into(y)),
            "layer: x has 48 elements but its data is null");
  EXPECT_EQ(error(x, mha::view(static_cast<const double*>(nullptr), 2, 5, 6), mha::into(y)),
            "layer: memory has 60 elements but its data is null");
  EXPECT_EQ(error(x, memory, mha::into(mha::view(static_cast<double*>(nullptr), 2, 3, 8))),
            "layer: the result has 48 elements but its data is null");
  EXPECT_EQ(error(x, memory, mha::into(support::repeated(y.view(), 0))),
            support::overlaps_itself("layer: the result", "batch", 2));
  EXPECT_EQ(error(x, memory, mha::into(y), mha::LogSumExp{support::repeated(lse.view(), 1)}),
            support::overlaps_itself("layer: log-sum-exp", "heads", 2));
  mha::Tensor<double, 3> r(2, 3, 8);
  EXPECT_EQ(error(x, memory, mha::into(y), mha::LogSumExp{mha::view(&y(1, 0, 0), 2, 2, 3)}),
            "layer: log-sum-exp overlaps the result, expected separate memory");
  EXPECT_EQ(error(x, memory, mha::into(y), mha::residual(r), mha::LogSumExp{mha::view(&r(1, 0, 0), 2, 2, 3)}),
            "layer: log-sum-exp overlaps the residual, expected separate memory");
  const mha::Tensor<double, 3> few(1, 3, 8), short_r(2, 2, 8), narrow(2, 3, 7);
  EXPECT_EQ(error(x, memory, mha::into(y), mha::residual(few)), "layer: x has batch 2 but the residual has batch 1");
  EXPECT_EQ(error(x, memory, mha::into(y), mha::residual(short_r)),
            "layer: x has length 3 but the residual has length 2");
  EXPECT_EQ(error(x, memory, mha::into(y), mha::residual(narrow)),
            "layer: the layer's output has width 8 but the residual has width 7");
  const mha::Tensor<double, 3> values(2, 5, 6), shorter(2, 4, 6), alone(1, 5, 6), wider(2, 5, 8);
  EXPECT_EQ(error(x, memory, shorter, mha::into(y)), "layer: key has length 5 but value has length 4");
  EXPECT_EQ(error(x, memory, alone, mha::into(y)), "layer: key has batch 2 but value has batch 1");
  EXPECT_EQ(error(x, alone, values, mha::into(y)), "layer: key has batch 1 but value has batch 2");
  EXPECT_EQ(error(x, wider, values, mha::into(y)), "layer: key has width 8 but kv_model is 6");
  EXPECT_EQ(error(x, memory, wider, mha::into(y)), "layer: value has width 8 but value_model is 6");
  EXPECT_EQ(error(mha::Tensor<double, 3>(3, 3, 8), memory, values), "layer: x has batch 3 but key has batch 2");
  EXPECT_EQ(error(x, memory, mha::view(static_cast<const double*>(nullptr), 2, 5, 6), mha::into(y)),
            "layer: value has 60 elements but its data is null");
  EXPECT_EQ(support::differing(y, poisoned), 0U);
  EXPECT_EQ(support::differing(lse, poisoned_lse), 0U);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(layer.attention_weights(x)); }),
            "layer: x has width 8 but kv_model is 6");
  const auto apart = make<LayerOf<>>({.d_model = 8, .num_heads = 2, .value_model = 5});
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(apart(x)); }),
            "layer: x has width 8 but value_model is 5");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(apart(x, wider)); }),
            "layer: memory has width 8 but value_model is 5");
}

template <class... P> void expect_own_cost(const char* name, const Config& config, const P&... policies) {
  const mha::MultiHeadAttention<float, mha::Cpu, P...> layer(config, policies...);
  EXPECT_EQ(layer.cost(2, 3, 5).parameters(), layer.parameter_count()) << name;
}

TEST(Layer, CostHasItsParameters) {
  const Config c{
      .d_model = 20, .num_heads = 6, .num_kv_heads = 2, .head_dim = 5, .value_dim = 3, .kv_model = 14, .bias = true};
  expect_own_cost("linear", c, mha::GroupedQuery<2>{});
  expect_own_cost("no output", c, mha::GroupedQuery<2>{}, mha::NoOutput{});
  expect_own_cost("norm", c, mha::GroupedQuery<2>{}, mha::QkNorm{});
  expect_own_cost("gates", c, mha::GroupedQuery<2>{}, mha::GatedHeads{});
  expect_own_cost("all", c, mha::GroupedQuery<2>{}, mha::NoOutput{}, mha::GatedHeads{}, mha::QkNorm{});
  expect_own_cost("multi-query", {.d_model = 8, .num_heads = 4}, mha::MultiQuery{});
}

TEST(Layer, CostFollowsItsMaskItsOutputAndTheCallsMasks) {
  const Config c{.d_model = 12, .num_heads = 3};
  const LayerOf<mha::Cpu, mha::Causal> decoder(c);
  const LayerOf<mha::Cpu, mha::NoOutput> bare(c);
  const mha::Cost by_hand = mha::cost<mha::MultiHead, double>(c, 2, 7, 9, mha::Causal{}), own = decoder.cost(2, 7, 9);
  EXPECT_EQ(own.visible_pairs, by_hand.visible_pairs);
  EXPECT_EQ(own.total_flop(), by_hand.total_flop());
  EXPECT_EQ(own.total_bytes(), by_hand.total_bytes());
  EXPECT_EQ(own.crossover_length, by_hand.crossover_length);

  EXPECT_EQ(bare.cost(2, 7, 9).output.flop, 0);
  EXPECT_EQ(bare.cost(2, 7, 9).output.parameters, 0);
  EXPECT_EQ(bare.cost(2, 7, 9).projection.flop, own.projection.flop);
  EXPECT_EQ(bare.cost(2, 7, 9).crossover_length, 1.5 * 12) << "three matrices of E x E instead of four";

  // Seven queries at 2 … 8: of 9 keys they see 3 … 9, of the first 4 keys 3, 4, 4, …; the second sequence has no keys.
  const std::vector<int> lengths{4, 0};
  EXPECT_EQ(decoder.cost(2, 7, 9, mha::Padding{lengths}).visible_pairs, 3 + 6 * 4);
  EXPECT_EQ(decoder.cost(2, 7, 9, mha::Padding{lengths}, mha::SlidingWindow{.left = 1}).visible_pairs, 2 + 2 + 1);
  EXPECT_EQ(
      mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(decoder.cost(3, 7, 9, mha::Padding{lengths})); }),
      "Padding: 2 lengths for a batch of 3");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(decoder.cost(1, -7, 9)); }),
            "cost: queries is -7, it must be at least 0");
}

TEST(Layer, ExplainNamesThePoliciesAndTheKernel) {
  const auto cpu =
      make<LayerOf<mha::CpuWith<mha::Serial>, mha::GroupedQuery<2>>>({.d_model = 512, .num_heads = 8, .value_dim = 32});
  const auto plain =
      make<LayerOf<mha::Reference, mha::PerHeadProjection, mha::NoOutput>>({.d_model = 4, .num_heads = 2});
  const auto expect_facts = [](const std::string& text, std::initializer_list<const char*> facts) {
    for (const char* fact : facts) EXPECT_NE(text.find(fact), std::string::npos) << "no '" << fact << "' in\n" << text;
  };
  expect_facts(cpu.explain(2, 100, 100),
               {"8 query heads share 2 key/value heads, head_dim 64, value_dim 32", "mask:        Full",
                "sink:        none", "491520 double, owned", "FusedProjection", "ConcatHeads", "LinearOutput",
                "projections: 144.2 MFLOP", "attention:   30.72 MFLOP", "20000 of 20000 pairs",
                "output:      52.43 MFLOP", "Cpu: fused online softmax in double", "Serial with 1 worker"});
  // Every second key, so that the pairs are not those of a full call.
  const auto half = mha::mask([](int, int, int, int k) { return k % 2 == 0; });
  expect_facts(plain.explain(1, 200, 300, half),
               {"48 double, owned", "PerHeadProjection", "NoOutput", "projections: 25.6 kFLOP",
                "attention:   480 kFLOP", "30000 of 60000 pairs", "output:      0 FLOP", "Reference: plain loops"});
  const std::vector<int> lengths{100};
  expect_facts(plain.explain(1, 200, 300, half, mha::Padding{lengths}),
               {"mask:        functor and Padding", "attention:   160 kFLOP", "10000 of 60000"});
}

}  // namespace
