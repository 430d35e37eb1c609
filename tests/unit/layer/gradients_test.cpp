// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/layer/gradients.hpp>
#include <mha/mha.hpp>

#include "block_backward_checks.hpp"
#include "compare.hpp"
#include "failing_new.hpp"
#include "random.hpp"
#include "trained_scores.hpp"

namespace {

using mha::Index;
using support::BentScore;
using support::inner;
using support::message_of;
using support::numbers_of;
using support::random_rows;
using support::TableScore;
using Rows = mha::Tensor<double, 3>;

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

template <class Projection> void expect_order() {
  using Ordered =
      mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::QkNorm, mha::GatedHeads, Projection>;
  constexpr bool fused = std::is_same_v<Projection, mha::FusedProjection>;
  const Ordered owner({.d_model = 6, .num_heads = 4, .head_dim = 2, .value_dim = 3, .kv_model = 5, .bias = true});
  auto g = owner.gradients();
  const float* next = g.flat().data();
  const auto row = [&](const auto& v) {
    for (Index i = 0; i < v.extent[0]; ++i) EXPECT_EQ(&v(i), next++);
  };
  const auto matrix = [&](const auto& m) {
    for (Index i = 0; i < m.extent[0]; ++i)
      for (Index j = 0; j < m.extent[1]; ++j) EXPECT_EQ(&m(i, j), next++);
  };
  for (const auto* w : {&g.query, &g.key, &g.value}) {
    if (fused) matrix(w->matrix());
    for (Index h = 0; !fused && h < w->head_count(); ++h) matrix(w->head(h));
    row(w->bias_row());
  }
  matrix(g.output.weight), row(g.output.bias);
  row(g.query_norm), row(g.key_norm), row(g.gate);
  EXPECT_EQ(next, g.flat().data() + g.flat().size());
}
TEST(LayerGradients, FlatHasTheOrderOfTheDocumentation) {
  expect_order<mha::FusedProjection>();
  expect_order<mha::PerHeadProjection>();
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

// In a program whose operator new can fail: replaced_new.hpp is in weights_test.cpp.
TEST(LayerGradients, AssignmentThrowsWhereMemoryGivesOut) {
  auto g = layer().gradients(), copy = g;
  g.sink(1) = 4;
  static_assert(!std::is_nothrow_copy_assignable_v<decltype(g)> && std::is_nothrow_move_assignable_v<decltype(g)>);
  const int failed = support::with_each_allocation_failing([&] { copy = g; }, [&](int) { EXPECT_EQ(copy.sink(1), 0); });
  EXPECT_GT(failed, 0);
  EXPECT_EQ(copy.sink(1), 4);
}

TEST(LayerGradients, AreRefusedByALayerOfOtherSizes) {
  const auto g = layer().gradients();
  const mha::MultiHeadAttention<float> other({.d_model = 6, .num_heads = 2});
  const auto own = other.gradients();
  using Views = mha::LayerGradientViews<float>;
  mha::detail::require_gradients<Views, Views>("backward", own, own);
  const auto refusal = [&](const auto& given) {
    return message_of([&] { mha::detail::require_gradients<Views, Views>("backward", given, own); });
  };
  const std::string sizes = "backward: the gradients are of other sizes: on axis ";
  EXPECT_EQ(refusal(g), sizes + "2 their query has extent 4, expected 3");
  // The same numbers in another order.
  const auto apart = mha::MultiHeadAttention<float, mha::Cpu, mha::PerHeadProjection>({.d_model = 6, .num_heads = 2});
  EXPECT_EQ(refusal(apart.gradients()), sizes + "0 their query has stride 18, expected 3");
}

template <class Layer> void draw(Layer& layer, const std::string& stream) {
  support::Random random(stream);
  layer.update([&](auto& p) {
    for (auto& w : p.flat())
      w = random.rounded<std::remove_reference_t<decltype(w)>>(random.normal() / std::sqrt(layer.config().d_model));
  });
}

TEST(LayerGradients, ForEachPassesTheWeightsTheScoreAndTheSink) {
  using Score = mha::Chain<mha::RelativeBias, mha::Chain<mha::SoftCap, BentScore<>>>;
  using Own = mha::MultiHeadAttention<double, mha::Cpu, Score, mha::Sink>;
  const auto of = [](Index buckets, Index heads) {
    return Own({.d_model = 6, .num_heads = heads},
               Score{mha::RelativeBias(std::vector<float>(static_cast<std::size_t>(buckets * heads)),
                                       {.count = buckets, .max_distance = 16}),
                     {mha::SoftCap{2.f}, BentScore<>{}}},
               mha::Sink(std::vector<float>(static_cast<std::size_t>(heads))));
  };
  Own layer = of(8, 2);
  draw(layer, "each");
  auto g = layer.gradients();
  std::vector<std::size_t> sizes;
  double next = 0;
  g.for_each([&](const auto& numbers) {
    sizes.push_back(numbers.size());
    for (auto& number : numbers) number = static_cast<std::remove_reference_t<decltype(number)>>(++next);
  });
  EXPECT_EQ(sizes, (std::vector<std::size_t>{g.flat().size(), 16, 1, 2, 2}));
  EXPECT_EQ(g.flat()[0], 1);
  EXPECT_EQ(g.score.first.numbers()[3], float(g.flat().size() + 4));
  EXPECT_EQ(g.score.second.second.bend, float(g.flat().size() + 19));
  EXPECT_EQ(g.sink(1), next);
  std::vector<double> read, stepped;
  std::as_const(g).for_each([&](const auto& numbers) {
    static_assert(std::is_const_v<typename std::remove_cvref_t<decltype(numbers)>::element_type>);
    read.insert(read.end(), numbers.begin(), numbers.end());
  });
  for (std::size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i], double(i + 1));
  EXPECT_EQ(double(read.size()), next);
  layer.update([&](auto& p) {
    p.for_each(
        g, [&](const auto&, const auto& numbers) { stepped.insert(stepped.end(), numbers.begin(), numbers.end()); });
  });
  EXPECT_EQ(stepped, read);

  // Those of two threads.
  const auto add = [](const auto& to, const auto& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += 2 * from[i];
  };
  auto sum = g;
  sum.for_each(g, add);
  std::size_t at = 0;
  sum.for_each([&](const auto& numbers) {
    for (const double number : numbers) EXPECT_EQ(number, 3 * read[at++]);
  });
  EXPECT_EQ(g.sink(1), next);
  const auto refusal = [&](const Own& other) {
    return message_of(
        [&, theirs = other.gradients()] { sum.for_each(theirs, [](const auto&, const auto&) { FAIL(); }); });
  };
  EXPECT_EQ(refusal(of(10, 2)), "for_each: the gradients are of another RelativeBias: its count is 10, expected 8");
  const auto sinks = [](std::vector<float> logits) {
    const Index heads = static_cast<Index>(logits.size());
    return mha::MultiHeadAttention<float, mha::Cpu, mha::Sink>({.d_model = 6, .num_heads = heads, .head_dim = 3},
                                                               mha::Sink(std::move(logits)))
        .gradients();
  };
  auto two = sinks({1, 2});
  EXPECT_EQ(message_of([&] {
              two.for_each(sinks({1, 2, 3}), add);
            }),
            "for_each: the gradients are of other sizes: their sink has 3 numbers, expected 2");
  two.for_each([](const auto& numbers) { EXPECT_FALSE(numbers.empty()); });
}

/// A BentScore with one of its numbers a variable.
struct BentByDuals {
  BentScore<double> score;
  int member;
  template <class S> S operator()(S s, Index b, Index h, Index q, Index k) const {
    if constexpr (std::is_same_v<S, mha::Dual<double>>) {
      BentScore<S> lifted{S(score.slope), S(score.bend)};
      (member == 0 ? lifted.slope : lifted.bend).derivative[0] = 1;
      return lifted(s, b, h, q, k);
    } else {
      return static_cast<S>(score(s, b, h, q, k));
    }
  }
};

/// Number i of them += by.
template <class Layer, class G> void change(Layer& layer, const G& of_its_type, std::size_t i, double by) {
  layer.update([&](auto& p) {
    std::size_t first = 0;
    mha::detail::for_each_numbers(p.score, of_its_type, [&](const auto& numbers, const auto&) {
      if (i >= first && i < first + numbers.size())
        numbers[i - first] += static_cast<std::remove_cvref_t<decltype(numbers[0])>>(by);
      first += numbers.size();
    });
  });
}

/// Gradients of the score's numbers against difference quotients without their error of second order. The numbers
/// may be floats: steps are powers of two.
template <class Layer, class... Extra>
void expect_score(const char* name, Layer& layer, Index batch, Index length, const Extra&... extra) {
  SCOPED_TRACE(name);
  draw(layer, name);
  const Rows x = random_rows(std::string(name) + " x", batch, length, layer.config().d_model);
  const Rows dy = random_rows(std::string(name) + " dy", batch, length, layer.config().d_model);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape, extra...));
  const Rows dx = layer.backward(dy, tape, g);
  const auto quotient = [&](std::size_t i, double step) {
    const auto loss = [&] { return inner(dy, layer(x, extra...)); };
    change(layer, g.score, i, step);
    const double up = loss();
    change(layer, g.score, i, -2 * step);
    const double down = loss();
    change(layer, g.score, i, step);
    return (up - down) / (2 * step);
  };
  const auto gradients = numbers_of(g.score);
  ASSERT_FALSE(gradients.empty());
  double largest = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const double expected = (4 * quotient(i, 0x1p-7) - quotient(i, 0x1p-6)) / 3;
    EXPECT_NEAR(gradients[i], expected, 2e-7 * (1 + std::abs(expected))) << i;
    largest = std::max(largest, std::abs(gradients[i]));
  }
  EXPECT_GT(largest, 1e-3);
  // Beside them the other gradients are those without, and a second call adds.
  static_cast<void>(layer(x, tape, extra...));
  static_cast<void>(layer.backward(dy, tape, g));
  const auto twice = numbers_of(g.score);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    EXPECT_NEAR(twice[i], 2 * gradients[i], 1e-5 * (1 + std::abs(gradients[i])));
  g.clear();
  for (const double number : numbers_of(g.score)) EXPECT_EQ(number, 0);
}

template <class B> void expect_scores() {
  const mha::Config config{.d_model = 6, .num_heads = 3, .head_dim = 4};
  mha::MultiHeadAttention<double, B, mha::Causal, BentScore<double>> bent(config, BentScore<double>{0.5, 0.25});
  expect_score("a functor", bent, 2, 5);
  const std::vector<Index> offsets{0, 3, 7};
  expect_score("a functor, ragged", bent, 1, 7, mha::Ragged{offsets});

  const mha::AlibiSlopes slopes({0.5f, 0.25f, 0.125f});
  mha::MultiHeadAttention<double, B, mha::AlibiSlopes> alibi(config, slopes);
  expect_score("slopes", alibi, 2, 5, mha::Causal{});

  using T5 = mha::RelativeBias;
  std::vector<float> table(24);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = 0.0625f * static_cast<float>(i % 7);
  const T5 bias(table, {.count = 8, .max_distance = 6});
  mha::MultiHeadAttention<double, B, T5> relative(config, bias);
  expect_score("a table", relative, 2, 9);
  mha::Tensor<float, 4> added(1, 3, 9, 9);
  support::Random("added").fill(added);
  expect_score("a table, and a bias of the call", relative, 2, 9, mha::AdditiveBias{added});

  mha::MultiHeadAttention<double, B, mha::Causal, TableScore<6>> steps(config, TableScore<6>{{0.5, 0, 1, -1, 0.25, 2}});
  expect_score("a table that accumulates", steps, 2, 5);

  using Both = mha::Chain<mha::SoftCap, mha::AlibiSlopes>;
  mha::MultiHeadAttention<double, B, mha::Causal, Both> both(config, Both{mha::SoftCap{2.f}, slopes});
  expect_score("a cap and slopes", both, 2, 5);
}

TEST(LayerScoreGradients, OnTheReferenceEqualDifferenceQuotients) { expect_scores<mha::Reference>(); }
TEST(LayerScoreGradients, OnTheProcessorEqualDifferenceQuotients) { expect_scores<mha::Cpu>(); }

TEST(LayerScoreGradients, EqualDualNumbersThroughTheForwardPass) {
  using Dual = mha::Dual<double>;
  const mha::Config config{.d_model = 6, .num_heads = 2, .head_dim = 5};
  const BentScore<double> score{0.75, -0.5};
  const auto expect = [&]<class B>(const B&) {
    mha::MultiHeadAttention<double, B, mha::Causal, BentScore<double>> layer(config, score);
    draw(layer, "dual");
    const Rows x = random_rows("dual x", 2, 7, 6), dy = random_rows("dual dy", 2, 7, 6);
    auto tape = layer.tape();
    auto g = layer.gradients();
    static_cast<void>(layer(x, tape));
    static_cast<void>(layer.backward(dy, tape, g));
    for (int member = 0; member < 2; ++member) {
      mha::MultiHeadAttention<Dual, mha::Reference, mha::Causal, BentByDuals> dual(config, BentByDuals{score, member});
      dual.update([&](auto& p) {
        for (std::size_t i = 0; i < p.flat().size(); ++i) p.flat()[i] = Dual(layer.parameters().flat()[i]);
      });
      mha::Tensor<Dual, 3> rows(2, 7, 6);
      for (std::size_t i = 0; i < rows.size(); ++i) rows.data()[i] = Dual(x.data()[i]);
      const auto y = dual(rows);
      double expected = 0;
      for (std::size_t i = 0; i < y.size(); ++i) expected += dy.data()[i] * y.data()[i].derivative[0];
      EXPECT_NEAR(member == 0 ? g.score.slope : g.score.bend, expected, 1e-11 * (1 + std::abs(expected)));
    }
  };
  expect(mha::Reference{});
  expect(mha::Cpu{});
}

/// Steps of gradient descent by the score alone towards the rows of a layer with other numbers; a step that is too
/// large is taken back. What is left of the error, and the score.
template <class Score> std::pair<double, Score> learnt(const Score& from, const Score& goal, int steps) {
  const mha::Config config{.d_model = 16, .num_heads = 2};
  using Own = mha::MultiHeadAttention<float, mha::Cpu, Score>;
  Own teacher(config, goal), pupil(config, from);
  for (Own* layer : {&teacher, &pupil}) draw(*layer, "learnt");
  const auto x = random_rows<float>("learnt x", 4, 24, 16);
  const auto target = teacher(x);
  auto tape = pupil.tape();
  auto g = pupil.gradients();
  mha::Tensor<float, 3> dy(4, 24, 16);
  double first = 0, least = 0, rate = 0.05;
  Score best = from;
  for (int i = 0; i < steps; ++i) {
    const auto y = pupil(x, tape);
    for (std::size_t j = 0; j < y.size(); ++j) dy.data()[j] = y.data()[j] - target.data()[j];
    const double error = inner(dy, dy);
    if (i == 0) first = least = error;
    const bool better = error <= least;
    rate *= better ? 1.2 : 0.25;
    if (better) {
      least = error;
      g.clear();
      static_cast<void>(pupil.backward(dy, tape, g));
    }
    pupil.update([&](auto& p) {
      if (better) best = p.score;
      p.score = best;
      mha::detail::for_each_numbers(p.score, g.score, [&](const auto& numbers, const auto& d) {
        for (std::size_t j = 0; j < numbers.size(); ++j) numbers[j] -= static_cast<float>(rate) * d[j];
      });
    });
  }
  return {least / first, best};
}

TEST(LayerScoreGradients, TeachATableOfDistancesSlopesAndAFunctor) {
  const mha::RelativeBuckets buckets{.count = 8, .max_distance = 16};
  std::vector<float> goal(16);
  for (std::size_t i = 0; i < goal.size(); ++i) goal[i] = 0.5f * std::sin(float(i));
  EXPECT_LT(learnt(mha::RelativeBias(std::vector<float>(16), buckets), mha::RelativeBias(goal, buckets), 200).first,
            1e-3);
  const auto [error, slopes] = learnt(mha::AlibiSlopes({0.f, 0.f}), mha::AlibiSlopes({0.25f, 0.0625f}), 200);
  EXPECT_LT(error, 1e-3);
  EXPECT_NEAR(slopes.per_head()[0], 0.25f, 0.02);
  EXPECT_NEAR(slopes.per_head()[1], 0.0625f, 0.02);
  const auto [rest, score] = learnt(BentScore<>{0.15f, 0.4f}, BentScore<>{0.25f, 0.5f}, 200);
  EXPECT_LT(rest, 1e-3);
  EXPECT_NEAR(score.slope, 0.25f, 0.02);
}

TEST(LayerScoreGradients, HaveTheSameBitsForAnyThreads) {
  std::vector<float> table(32);
  support::Random random("table");
  for (float& t : table) t = static_cast<float>(random.normal());
  using Score = mha::Chain<mha::RelativeBias, BentScore<>>;
  const Score score{mha::RelativeBias(table, {.count = 8, .max_distance = 60}), BentScore<>{0.5f, 0.25f}};
  const auto bits = [&]<class Threads>(const Threads& threads) {
    using B = mha::CpuWith<Threads>;
    mha::MultiHeadAttention<float, B, mha::GroupedQuery<2>, mha::Causal, Score> layer(
        {.d_model = 32, .num_heads = 4, .head_dim = 16}, score, B(threads));
    draw(layer, "threads");
    const auto x = random_rows<float>("threads x", 2, 330, 32), dy = random_rows<float>("threads dy", 2, 330, 32);
    mha::Tensor<float, 4> bias(1, 4, 330, 330), d_bias(1, 4, 330, 330);
    support::Random("bias").fill(bias);
    auto tape = layer.tape();
    auto g = layer.gradients();
    static_cast<void>(layer(x, tape, mha::AdditiveBias{bias}));
    static_cast<void>(layer.backward(dy, tape, g, mha::BiasGradient(d_bias)));
    std::vector<double> all = numbers_of(g.score);
    all.insert(all.end(), d_bias.begin(), d_bias.end());
    return all;
  };
  const auto alone = bits(mha::Serial{});
  for (const int threads : {1, 2, 3, 5}) EXPECT_EQ(bits(mha::ThreadPool(threads)), alone) << threads;
}

template <class B, class T, class E> void expect_bias(const char* name, const mha::Tensor<double, 4>& shape) {
  SCOPED_TRACE(name);
  mha::MultiHeadAttention<double, B, mha::Causal, mha::Rotary<>> wide({.d_model = 6, .num_heads = 3, .head_dim = 4});
  mha::MultiHeadAttention<T, B, mha::Causal, mha::Rotary<>> layer({.d_model = 6, .num_heads = 3, .head_dim = 4});
  draw(layer, name);
  wide.update([&](auto& p) {
    for (std::size_t i = 0; i < p.flat().size(); ++i) p.flat()[i] = support::to_double(layer.parameters().flat()[i]);
  });
  const auto x = random_rows<T>("bias x", 2, 5, 6), dy = random_rows<T>("bias dy", 2, 5, 6);
  const auto widened = [](const auto& from) {
    Rows to(2, 5, 6);
    for (std::size_t i = 0; i < to.size(); ++i) to.data()[i] = support::to_double(from.data()[i]);
    return to;
  };
  const Rows wide_x = widened(x), wide_dy = widened(dy);
  mha::Tensor<double, 4> bias = shape;
  support::Random("bias").fill(bias);
  mha::Tensor<E, 4> d(bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3));
  support::poison_all(d);
  auto tape = layer.tape();
  auto g = layer.gradients(), alone = layer.gradients();
  static_cast<void>(layer(x, tape, mha::AdditiveBias{bias}));
  const auto without = layer.backward(dy, tape, alone);
  const auto dx = layer.backward(dy, tape, g, mha::BiasGradient(d));
  EXPECT_EQ(support::differing(dx, without), 0u);
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), alone.flat().begin()));
  using A = mha::Accumulator<T>;
  mha::Tensor<A, 4> rounded_once(d.extent(0), d.extent(1), d.extent(2), d.extent(3));
  static_cast<void>(layer.backward(dy, tape, alone, mha::BiasGradient(rounded_once)));
  auto sum = d, expected_sum = d;
  for (std::size_t i = 0; i < d.size(); ++i)
    expected_sum.data()[i] = static_cast<E>(static_cast<A>(d.data()[i]) + rounded_once.data()[i]);
  static_cast<void>(layer.backward(dy, tape, alone, mha::BiasGradient(mha::add_to(sum))));
  EXPECT_EQ(support::differing(sum, expected_sum), 0u);
  const double bound = std::is_same_v<T, double> ? 1e-7 : 0.05;
  for (std::size_t i = 0; i < bias.size(); ++i) {
    const double expected = support::quotient([&] { return inner(wide_dy, wide(wide_x, mha::AdditiveBias{bias})); },
                                              bias.data()[i], [&](double to) { bias.data()[i] = to; });
    EXPECT_NEAR(support::to_double(d.data()[i]), expected, bound * (1 + std::abs(expected))) << i;
  }
}

TEST(LayerBiasGradient, EqualsDifferenceQuotientsForRepeatedAxes) {
  expect_bias<mha::Reference, double, double>("reference", mha::Tensor<double, 4>(2, 3, 5, 5));
  expect_bias<mha::Cpu, double, double>("every pair", mha::Tensor<double, 4>(2, 3, 5, 5));
  expect_bias<mha::Cpu, double, double>("one for the batch", mha::Tensor<double, 4>(1, 3, 5, 5));
  expect_bias<mha::Cpu, double, double>("one for all heads", mha::Tensor<double, 4>(2, 1, 5, 5));
  expect_bias<mha::Cpu, double, double>("keys alone", mha::Tensor<double, 4>(1, 1, 1, 5));
  expect_bias<mha::Cpu, mha::bfloat16, float>("16 bits", mha::Tensor<double, 4>(1, 3, 5, 5));
  expect_bias<mha::Cpu, mha::bfloat16, mha::bfloat16>("into 16 bits", mha::Tensor<double, 4>(1, 3, 5, 5));
}

/// A table that it borrows: its copies write to the same numbers.
struct BorrowedTable {
  std::span<float> table;
  std::span<float> numbers() const { return table; }
  static std::size_t at(Index q, Index k) { return static_cast<std::size_t>(mha::abs(q - k)); }
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const { return s + table[at(q, k)]; }
  template <class G, class S> void accumulate(G gradient, S dt, S, Index, Index, Index q, Index k) const {
    gradient[at(q, k)] += dt;
  }
};
TEST(LayerScoreGradients, OfAScoreWhoseCopiesShareItsNumbersAreRefused) {
  const mha::Config config{.d_model = 4, .num_heads = 2};
  std::vector<float> table(3, 0.5f);
  const std::vector<float> before = table;
  BorrowedTable score{table};
  const mha::MultiHeadAttention<float, mha::Cpu, BorrowedTable> own(config, score);
  const std::string shares =
      ": a copy of the score shares the memory of its 3 numbers(), expected a copy with numbers of its own";
  EXPECT_EQ(message_of([&] { static_cast<void>(own.gradients()); }), "gradients" + shares);
  EXPECT_EQ(table, before);

  mha::MultiHeadAttention<float, mha::Cpu, mha::AlibiSlopes> layer(config, mha::AlibiSlopes({1.f, 2.f}));
  draw(layer, "borrowed table");
  const auto x = random_rows<float>("borrowed x", 1, 3, 4);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape, score));
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.backward(x, tape, g, mha::ScoreGradient(score))); }),
            "backward" + shares);
  EXPECT_EQ(table, before);
  for (const float number : g.flat()) EXPECT_EQ(number, 0);
  // Without it nothing is written to the table.
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.backward(x, tape, g)); }), "");
  EXPECT_EQ(table, before);
}

TEST(LayerBiasGradient, IsRefusedWhereItDoesNotFit) {
  mha::MultiHeadAttention<float> layer({.d_model = 4, .num_heads = 2});
  draw(layer, "refused");
  const auto x = random_rows<float>("refused x", 1, 3, 4);
  auto dy = random_rows<float>("refused dy", 1, 3, 4);
  mha::Tensor<float, 4> bias(1, 2, 3, 3), d(1, 2, 3, 3), other(1, 2, 3, 4), empty, no_keys(1, 2, 3, 0);
  auto tape = layer.tape();
  auto g = layer.gradients();
  const auto refusal = [&](auto& to) {
    return message_of([&] { static_cast<void>(layer.backward(dy, tape, g, mha::BiasGradient(to))); });
  };
  static_cast<void>(layer(x, tape));
  EXPECT_EQ(refusal(d), "backward: BiasGradient is given, but the call on the tape has 0 AdditiveBiases, expected 1");
  EXPECT_EQ(refusal(empty), refusal(d));
  static_cast<void>(layer(x, tape, mha::AdditiveBias{bias}, mha::AdditiveBias{bias}));
  EXPECT_EQ(refusal(d), "backward: BiasGradient is given, but the call on the tape has 2 AdditiveBiases, expected 1");
  static_cast<void>(layer(x, tape, mha::AdditiveBias{bias}));
  EXPECT_EQ(refusal(other), "backward: AdditiveBias has keys 3 but BiasGradient has keys 4");
  EXPECT_EQ(refusal(no_keys), "backward: AdditiveBias has keys 3 but BiasGradient has keys 0");
  EXPECT_EQ(refusal(empty), "backward: AdditiveBias has batch 1 but BiasGradient has batch 0");
  auto inside = mha::view(g.flat().data(), 1, 2, 3, 3);
  EXPECT_EQ(refusal(inside), "backward: the BiasGradient overlaps the gradients");
  for (const float number : g.flat()) EXPECT_EQ(number, 0);
  EXPECT_EQ(refusal(d), "");
}

TEST(LayerBiasGradient, OfTablesWithoutElementsIsAcceptedWhereTheBiasHasNone) {
  mha::MultiHeadAttention<mha::bfloat16> layer({.d_model = 4, .num_heads = 2});
  draw(layer, "no rows");
  const mha::Tensor<mha::bfloat16, 3> x(1, 0, 4);
  const mha::Tensor<float, 4> bias(1, 2, 0, 0);
  mha::Tensor<float, 4> wide(1, 2, 0, 0);
  mha::Tensor<mha::bfloat16, 4> narrow(1, 2, 0, 0);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape, mha::AdditiveBias{bias}));
  EXPECT_EQ(layer.backward(x, tape, g, mha::BiasGradient(wide)).size(), 0u);
  EXPECT_EQ(layer.backward(x, tape, g, mha::BiasGradient(narrow)).size(), 0u);
  for (const float number : g.flat()) EXPECT_EQ(number, 0);
}

TEST(LayerScoreGradients, OfOtherSizesOrAnotherScoreAreRefused) {
  const mha::Config config{.d_model = 4, .num_heads = 2};
  mha::MultiHeadAttention<float, mha::Cpu, mha::RelativeBias> layer(
      config, mha::RelativeBias(std::vector<float>(8), {.count = 4, .max_distance = 9})),
      larger(config, mha::RelativeBias(std::vector<float>(16), {.count = 8, .max_distance = 9}));
  mha::MultiHeadAttention<float, mha::Cpu, mha::AlibiSlopes> alibi(config, mha::AlibiSlopes({1.f, 2.f}));
  draw(layer, "sizes");
  alibi.borrow(layer);
  const auto x = random_rows<float>("sizes x", 1, 3, 4);
  auto tape = layer.tape();
  auto g = layer.gradients(), of_larger = larger.gradients();
  auto of_alibi = alibi.gradients();
  static_cast<void>(layer(x, tape));
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.backward(x, tape, of_larger)); }),
            "backward: the gradients are of another RelativeBias: its count is 8, expected 4");
  const mha::MultiHeadAttention<float, mha::Cpu, mha::RelativeBias> further(
      config, mha::RelativeBias(std::vector<float>(8), {.count = 4, .max_distance = 11})),
      one_way(config,
              mha::RelativeBias(std::vector<float>(8), {.count = 4, .max_distance = 9, .bidirectional = false}));
  auto of_further = further.gradients(), of_one_way = one_way.gradients();
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.backward(x, tape, of_further)); }),
            "backward: the gradients are of another RelativeBias: its max_distance is 11, expected 9");
  EXPECT_EQ(message_of([&] { static_cast<void>(layer.backward(x, tape, of_one_way)); }),
            "backward: the gradients are of another RelativeBias: its bidirectional is 0, expected 1");
  larger.borrow(layer);
  EXPECT_EQ(message_of([&] { static_cast<void>(larger.backward(x, tape, of_larger)); }),
            message_of([&] { static_cast<void>(alibi.backward(x, tape, of_alibi)); }));
  // It has the weights of the call, but not its score.
  EXPECT_EQ(message_of([&] { static_cast<void>(alibi.backward(x, tape, of_alibi)); }),
            "backward: the tape was recorded under other policies: by another layer of these weights, or before an "
            "update() of this one's score or Sink");
}

TEST(LayerUpdate, OfGradientsOfOtherSizesStepsNothing) {
  using Own = mha::MultiHeadAttention<float, mha::Cpu, mha::AlibiSlopes, mha::Sink>;
  const mha::Config two{.d_model = 4, .num_heads = 2}, four{.d_model = 4, .num_heads = 4};
  Own own(two, mha::AlibiSlopes({1.f, 2.f}), mha::Sink({1.f, 2.f}));
  const Own other(four, mha::AlibiSlopes({1.f, 2.f, 3.f, 4.f}), mha::Sink({1.f, 2.f, 3.f, 4.f}));
  auto g = own.gradients();
  const auto refusal = [&] {
    return message_of(
        [&] { own.update([&](auto& p) { p.for_each(g, [](auto, auto) { ADD_FAILURE() << "a step"; }); }); });
  };
  const std::string sizes = "for_each: the gradients are of other sizes: their ";
  g.score = other.gradients().score;
  EXPECT_EQ(refusal(), sizes + "score has 4 numbers, expected 2");
  g = own.gradients();
  g.sink.extent[0] = 1;
  EXPECT_EQ(refusal(), sizes + "sink has 1 numbers, expected 2");
  g = other.gradients();
  g.score = own.gradients().score;
  g.sink.extent[0] = 2;
  EXPECT_EQ(refusal(), "for_each: the gradients are of other sizes: on axis 0 their query has extent 4, expected 2");
}

TEST(LayerUpdate, ReachesScoreAndSink) {
  using Own = mha::MultiHeadAttention<float, mha::Cpu, BentScore<>, mha::Sink>;
  const mha::Sink sink({1.f, 2.f});
  Own one({.d_model = 4, .num_heads = 2}, BentScore<>{0.5f, 0.25f}, sink);
  draw(one, "update");
  const Own before = one;
  auto g = one.gradients();
  g.flat()[3] = 1;
  g.score.bend = 2;
  g.sink(1) = 4;
  std::vector<std::size_t> sizes;
  one.update([&](auto& p) {
    p.for_each(g, [&](const auto& numbers, const auto& d) {
      ASSERT_EQ(numbers.size(), d.size());
      sizes.push_back(d.size());
      for (std::size_t i = 0; i < d.size(); ++i) numbers[i] -= 0.5f * d[i];
    });
    EXPECT_EQ(p.score.bend, 0.25f - 1);
    EXPECT_EQ(p.sink.per_head()[1], 0);
  });
  EXPECT_EQ(one.score().bend, -0.75f);
  EXPECT_EQ(one.sink().per_head()[1], 0);
  EXPECT_EQ(before.score().bend, 0.25f);
  EXPECT_EQ(sizes, (std::vector<std::size_t>{static_cast<std::size_t>(one.parameter_count()), 2, 2}));
  EXPECT_EQ(one.parameters().flat()[3], before.parameters().flat()[3] - 0.5f);
  Own expected({.d_model = 4, .num_heads = 2}, BentScore<>{0.5f, -0.75f}, mha::Sink({1.f, 0.f}));
  expected.borrow(one);
  const auto x = random_rows<float>("update x", 1, 5, 4);
  EXPECT_EQ(support::differing(one(x), expected(x)), 0u);
  EXPECT_GT(support::differing(one(x), before(x)), 0u);
  EXPECT_EQ(sink.per_head()[1], 2);
  const auto wrong = [&] { one.update([](auto& p) { p.sink = mha::Sink({1.f}); }); };
  EXPECT_EQ(message_of(wrong), "Sink: 1 logits for 2 heads");
  EXPECT_EQ(support::differing(one(x), expected(x)), 0u);
}

}  // namespace
