// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Reference;
using support::BackwardCase;
using support::BackwardSizes;
using One = mha::CpuWith<mha::Serial>;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class E> using Table = mha::Tensor<E, 4>;

/// The bias' shape: the call's with 1 on the axes of this set.
template <class E> Table<E> repeated(const BackwardSizes& n, int axes) {
  const int of[4] = {n.batch, n.heads, n.queries, n.keys};
  const auto extent = [&](int a) { return (axes >> a & 1) != 0 ? 1 : of[a]; };
  return Table<E>(extent(0), extent(1), extent(2), extent(3));
}

template <class B, class T, class E, class... Extra>
Table<E> bias_gradient(const BackwardCase<T>& c, const Table<E>& bias, const B& backend, const Extra&... extra) {
  Table<E> g(bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3));
  support::poison_all(g);
  mha::AttentionTape<T, B> tape;
  const auto out = mha::attention(c.q, c.k, c.v, mha::AdditiveBias{bias}, extra..., backend, mha::record(tape));
  mha::attention_backward_into({{}, {}, {}}, c.d_out, c.q, c.k, c.v, out, tape, mha::AdditiveBias{bias}, extra...,
                               backend, mha::BiasGradient(g));
  return g;
}

/// ⟨d_out, J δ⟩ for a change δ of the bias, by dual numbers through the Reference's forward.
template <class... Extra>
double along(const BackwardCase<double>& c, const Table<double>& bias, const Table<double>& delta,
             const Extra&... extra) {
  using Dual = mha::Dual<double>;
  const auto dual = [](const Table<double>& x) {
    Table<Dual> r(x.extent(0), x.extent(1), x.extent(2), x.extent(3));
    for (std::size_t i = 0; i < x.size(); ++i) r.data()[i].value = x.data()[i];
    return r;
  };
  auto moved = dual(bias);
  for (std::size_t i = 0; i < bias.size(); ++i) moved.data()[i].derivative[0] = delta.data()[i];
  const auto out = mha::attention<Reference>(dual(c.q), dual(c.k), dual(c.v), mha::AdditiveBias{moved}, extra...);
  double sum = 0;
  for (std::size_t i = 0; i < out.size(); ++i) sum += c.d_out.data()[i] * out.data()[i].derivative[0];
  return sum;
}

TEST(BiasGradient, EqualsDualNumbersForEveryRepeatedAxis) {
  const BackwardSizes n{};
  const BackwardCase<double> c("bias", n);
  support::Random random("table");
  for (int axes = 0; axes < 16; ++axes) {
    SCOPED_TRACE(axes);
    Table<double> bias = repeated<double>(n, axes), delta = bias;
    random.fill(bias);
    random.fill(delta);
    const auto expect = [&](const auto&... extra) {
      const double expected = along(c, bias, delta, extra...);
      EXPECT_NEAR(support::inner(bias_gradient(c, bias, Reference{}, extra...), delta), expected, 1e-11);
      EXPECT_NEAR(support::inner(bias_gradient(c, bias, One{}, extra...), delta), expected, 1e-11);
    };
    expect();
    expect(mha::Causal{}, mha::SoftCap{1.5f});
    expect(mha::Alibi{}, mha::SlidingWindow{.left = 2, .right = 1}, mha::Sink({0.5f, -1.f, 0.f, 2.f}));
  }
}

TEST(BiasGradient, OnTheProcessorEqualsTheReference) {
  for (const BackwardSizes n : {BackwardSizes{2, 35, 101, 2, 1, 11, 5}, BackwardSizes{1, 101, 67, 3, 1, 8, 16}}) {
    const BackwardCase<float> c("float", n);
    const BackwardCase<double> wide = c.as<double>();
    for (int axes = 0; axes < 16; ++axes) {
      SCOPED_TRACE(axes);
      Table<float> bias = repeated<float>(n, axes);
      support::Random("table").fill(bias);
      const auto expect = [&](const auto&... extra) {
        const auto expected = bias_gradient(wide, bias, Reference{}, extra...);
        const double least = 0.1 * std::sqrt(support::inner(c.d_out, c.d_out));  // the sum over all keys is 0
        EXPECT_LT(support::relative_error(bias_gradient(c, bias, One{}, extra...), expected, least), 5e-6);
      };
      expect(mha::Causal{});
      if (axes % 5 == 0) expect(mha::SoftCap{2.f});
    }
  }
}

TEST(BiasGradient, HasTheSameBitsForAnyThreads) {
  using Pool = mha::CpuWith<mha::ThreadPool>;
  // Two pieces of queries and of keys, all of which see something; two of keys; one, of many heads.
  for (const BackwardSizes n : {BackwardSizes{1, 310, 450, 2, 1, 8, 8}, BackwardSizes{2, 37, 301, 4, 2, 8, 16},
                                BackwardSizes{3, 33, 65, 6, 6, 16, 16}}) {
    const BackwardCase<float> c("threads", n);
    for (const int axes : {0, 1, 2, 3, 4, 7, 9, 12, 15}) {
      SCOPED_TRACE(axes);
      Table<float> bias = repeated<float>(n, axes);
      support::Random("table").fill(bias);
      const auto alone = bias_gradient(c, bias, One{}, mha::Causal{});
      for (const int threads : {2, 5})
        EXPECT_EQ(support::differing(bias_gradient(c, bias, Pool(mha::ThreadPool(threads)), mha::Causal{}), alone), 0u);
    }
  }
}

TEST(BiasGradient, ChangesNoOtherGradient) {
  const BackwardSizes n{2, 90, 70, 4, 2, 24, 16};
  const BackwardCase<float> c("others", n);
  Table<float> bias = repeated<float>(n, 1), g = bias;
  support::Random("table").fill(bias);
  const auto expect = [&](const auto&... extra) {
    const auto expected = c.gradients<mha::Cpu>(mha::AdditiveBias{bias}, extra...);
    mha::AttentionTape<float> tape;
    const auto out = mha::attention(c.q, c.k, c.v, mha::AdditiveBias{bias}, extra..., mha::record(tape));
    const auto with = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::AdditiveBias{bias}, extra...,
                                              mha::BiasGradient(g));
    EXPECT_EQ(support::differing(with.query, expected.query), 0u);
    EXPECT_EQ(support::differing(with.key, expected.key), 0u);
    EXPECT_EQ(support::differing(with.value, expected.value), 0u);
  };
  expect();
  expect(mha::SoftCap{3.f}, mha::Causal{});
}

/// A trained template whose members may be narrower than the logits.
template <class T = float> struct Steep {
  T slope;
  template <class S> auto operator()(S s, Index, Index, Index q, Index k) const {
    return s - slope * float(mha::abs(q - k));
  }
};

TEST(ScoreGradient, ChangesNoOtherGradient) {
  const BackwardSizes n{2, 40, 30, 2, 1, 8, 5};
  const mha::SoftCap cap{1.5f};
  const auto expect = [&](auto backend, auto t, const auto& score) {
    using B = decltype(backend);
    const BackwardCase<decltype(t)> c("others of a score", n);
    mha::AttentionTape<decltype(t), B> tape;
    const auto out = mha::attention<B>(c.q, c.k, c.v, score, cap, mha::record(tape));
    auto without = c, with = c;
    mha::Chain to{score, cap};
    mha::attention_backward_into({without.q, without.k, without.v}, c.d_out, c.q, c.k, c.v, out, tape, score, cap);
    mha::attention_backward_into({with.q, with.k, with.v}, c.d_out, c.q, c.k, c.v, out, tape, score, cap,
                                 mha::ScoreGradient(to));
    const double bound = 16 * std::numeric_limits<decltype(t)>::epsilon();
    EXPECT_LT(support::largest_difference(with.q, without.q), bound);
    EXPECT_LT(support::largest_difference(with.k, without.k), bound);
    EXPECT_LT(support::largest_difference(with.v, without.v), bound);
    EXPECT_NE(to.second.cap, cap.cap);
  };
  const mha::AlibiSlopes slopes({0.1f, 0.37f});
  const auto on = [&](auto backend) {
    expect(backend, 0., slopes);
    expect(backend, 0., Steep<float>{0.1f});
    expect(backend, 0., Steep<double>{0.1});
    expect(backend, 0.f, slopes);
  };
  on(mha::Cpu{});
  on(Reference{});
}

TEST(ScoreGradient, OfRelativeBiasFarFromTheFirstKeyTakesNoMoreMemory) {
  const BackwardCase<float> c("far origin", {.queries = 2, .keys = 2, .heads = 8, .kv_heads = 8});
  mha::RelativeBias bias(std::vector<float>(8 * 8, 0.1f), {.count = 8, .max_distance = 16});
  const auto gradient = [&](Index origin) {
    mha::AttentionTape<float> tape;
    mha::Workspace workspace;
    const auto out = mha::attention(c.q, c.k, c.v, bias, mha::Origin{origin}, mha::record(tape));
    mha::RelativeBias to = bias;
    mha::attention_backward_into({}, c.d_out, c.q, c.k, c.v, out, tape, bias, mha::Origin{origin},
                                 mha::ScoreGradient(to), workspace);
    EXPECT_LT(workspace.bytes(), 100000u);
    return to.table();
  };
  const auto near = gradient(100);
  EXPECT_EQ(gradient(5000000), near) << "all in the last bucket";
  EXPECT_EQ(near[0], 0.f);
  EXPECT_NE(gradient(3), near);
}

TEST(BiasGradient, OfRaggedSequencesIsThatOfEach) {
  const std::vector<Index> queries{0, 3, 3, 8}, keys{0, 2, 6, 11};
  const BackwardCase<double> c("ragged", {.batch = 1, .queries = 8, .keys = 11});
  Table<double> bias(3, 1, 5, 5), delta = bias;
  support::Random random("table");
  random.fill(bias);
  random.fill(delta);
  const mha::Ragged ragged{queries, keys};
  const double expected = along(c, bias, delta, ragged);
  EXPECT_NEAR(support::inner(bias_gradient(c, bias, Reference{}, ragged), delta), expected, 1e-11);
  EXPECT_NEAR(support::inner(bias_gradient(c, bias, One{}, ragged), delta), expected, 1e-11);
}

TEST(BiasGradient, IsZeroOfHiddenPairsAndEmptyRowsWhateverStandsThere) {
  const BackwardSizes n{2, 40, 50, 4, 2, 8, 8};
  BackwardCase<double> c("hidden", n);
  const std::vector<Index> lengths{50, 31};
  const auto hides = mha::Padding{lengths};
  const mha::Causal causal;
  for (int axes : {0, 1, 3}) {
    Table<double> bias = repeated<double>(n, axes);
    support::Random("table").fill(bias);
    bias(0, 0, 3, 4) = -std::numeric_limits<double>::infinity();
    const mha::Origin origin{-2};  // the first two queries see nothing
    const auto clean = bias_gradient(c, bias, One{}, hides, causal, origin);
    BackwardCase<double> poisoned = c;
    for (Index k = 31; k < 50; ++k)
      for (Index d = 0; d < 8; ++d) poisoned.k(1, k, 0, d) = poisoned.v(1, k, 1, d) = nan;
    for (Index d = 0; d < 8; ++d) poisoned.d_out(0, 0, 2, d) = poisoned.q(0, 1, 1, d) = nan;
    for (const auto& g : {bias_gradient(poisoned, bias, One{}, hides, causal, origin),
                          bias_gradient(poisoned, bias, Reference{}, hides, causal, origin)}) {
      EXPECT_LT(support::relative_error(g, clean), 1e-13);
      EXPECT_EQ(g(0, 0, 0, 0), 0);
      EXPECT_EQ(g(0, 0, 3, 40), 0);
      if (axes == 0) {
        EXPECT_EQ(g(0, 0, 3, 4), 0);
      }
    }
  }
}

TEST(BiasGradient, BehindASaturatingScoreIsThatOfTheSaturatedLogit) {
  // SoftCap makes −cap of −∞: the pair is seen, and its logit does not change.
  const BackwardSizes n{};
  const BackwardCase<double> c("saturated", n);
  Table<double> bias = repeated<double>(n, 1), lowest = bias;
  support::Random("table").fill(bias);
  for (std::size_t i = 0; i < bias.size(); i += 3) bias.data()[i] = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < bias.size(); ++i) lowest.data()[i] = std::max(bias.data()[i], -1e6);
  const auto expect = [&](const auto& backend, const auto& score) {
    using B = std::remove_cvref_t<decltype(backend)>;
    const auto g = c.gradients<B>(mha::AdditiveBias{bias}, score);
    const auto expected = c.gradients<B>(mha::AdditiveBias{lowest}, score);
    EXPECT_LT(support::relative_error(g.query, expected.query), 1e-13);
    EXPECT_LT(support::relative_error(g.key, expected.key), 1e-13);
    const auto of_bias = bias_gradient(c, bias, backend, score);
    EXPECT_LT(support::relative_error(of_bias, bias_gradient(c, lowest, backend, score)), 1e-13);
    EXPECT_EQ(of_bias.data()[0], 0);
  };
  const auto squashed = mha::score([](auto s, int, int, int, int) { return 3 * mha::tanh(s * s * s / 2.f); });
  expect(Reference{}, mha::SoftCap{2.f});
  expect(One{}, mha::SoftCap{2.f});
  expect(Reference{}, squashed);
  expect(One{}, squashed);
}

TEST(BiasGradient, RefusesAnotherShapeAndWritesNothing) {
  const BackwardSizes n{};
  const BackwardCase<double> c("errors", n);
  const mha::Tensor<double, 3> bias(4, 5, 7);
  mha::Tensor<double, 3> g(1, 5, 7);
  mha::AttentionTape<double, Reference> tape;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::AdditiveBias{bias}, mha::record(tape));
  Table<double> dq(2, 5, 4, 3);
  dq(0, 0, 0, 0) = g(0, 0, 0) = 42;
  try {
    mha::attention_backward_into({dq, {}, {}}, c.d_out, c.q, c.k, c.v, out, tape, mha::AdditiveBias{bias},
                                 mha::BiasGradient(g));
    ADD_FAILURE() << "accepted";
  } catch (const mha::ShapeError& e) {
    EXPECT_STREQ(e.what(), "attention_backward: AdditiveBias has 4 heads but BiasGradient has 1");
  }
  EXPECT_EQ(dq(0, 0, 0, 0), 42);
  EXPECT_EQ(g(0, 0, 0), 42);
}

/// Two numbers; every head bends otherwise.
template <class X = float> struct Bent {
  X slope, bend;
  template <class T> auto operator()(T s, Index b, Index h, Index q, Index k) const {
    return mha::tanh(s * bend) * (1 + 0.25f * static_cast<float>(h) + 0.125f * static_cast<float>(b)) -
           slope * static_cast<float>(mha::abs(q - k));
  }
};

/// Eleven numbers, more than one pass takes: a value for each distance, the last for all beyond.
template <class X> struct ByDistance {
  X value[11];
  template <class T> auto operator()(T s, Index, Index, Index q, Index k) const {
    const Index distance = mha::abs(q - k);
    return mha::tanh(s / 3.f) * value[distance < 10 ? distance : 10];
  }
};

template <int N, class F> auto members(const F& f) { return std::bit_cast<std::array<double, std::size_t{N}>>(f); }

/// The trained score F<double> whose number `i` is a variable, for the Reference's forward in dual numbers.
template <template <class> class F, int N> struct Along {
  F<double> score;
  int i;
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    if constexpr (std::is_same_v<T, mha::Dual<double>>) {
      std::array<T, std::size_t{N}> x;
      for (std::size_t j = 0; j < N; ++j) x[j] = members<N>(score)[j];
      x[static_cast<std::size_t>(i)].derivative[0] = 1;
      return std::bit_cast<F<T>>(x)(s, b, h, q, k);
    } else {
      return static_cast<T>(score(s, b, h, q, k));
    }
  }
};

/// ∂⟨d_out, out⟩ by number i of the score, by dual numbers.
template <template <class> class F, int N, class... Extra>
double by_number(const BackwardCase<double>& c, const F<double>& score, int i, const Extra&... extra) {
  BackwardCase<double> still = c;
  for (auto* x : {&still.q, &still.k, &still.v}) std::fill(x->begin(), x->end(), 0.);
  return support::derivative_along(c, still, Along<F, N>{score, i}, extra...);
}

TEST(ScoreGradient, OfAUsersNumbersEqualsDualNumbers) {
  const BackwardSizes n{2, 27, 33, 4, 2, 5, 6};
  const BackwardCase<double> c("trained", n);
  const Bent<double> bent{0.1, 0.7};
  ByDistance<double> values{};
  for (int i = 0; i < 11; ++i) values.value[i] = 2 - 0.1 * i;
  const auto expect = [&](const auto&... extra) {
    double of_bent[2], of_values[11];
    for (int i = 0; i < 2; ++i) of_bent[i] = by_number<Bent, 2>(c, bent, i, extra...);
    for (int i = 0; i < 11; ++i) of_values[i] = by_number<ByDistance, 11>(c, values, i, extra...);
    const auto on = [&](const auto& backend) {
      const auto g = c.gradients<std::remove_cvref_t<decltype(backend)>>(bent, extra...).score;
      static_assert(std::is_same_v<std::remove_cvref_t<decltype(g)>, Bent<double>>);
      EXPECT_NEAR(g.slope, of_bent[0], 1e-11 * (1 + std::abs(g.slope)));
      EXPECT_NEAR(g.bend, of_bent[1], 1e-11 * (1 + std::abs(g.bend)));
      const auto v = c.gradients<std::remove_cvref_t<decltype(backend)>>(values, extra...).score;
      for (int i = 0; i < 11; ++i) EXPECT_NEAR(v.value[i], of_values[i], 1e-11 * (1 + std::abs(v.value[i])));
    };
    on(Reference{});
    on(One{});
  };
  expect();
  expect(mha::Causal{}, mha::Sink({0.5f, -1.f, 0.f, 2.f}));
  expect(mha::SlidingWindow{.left = 9}, mha::Scale{1.5}, mha::Origin{3});
}

TEST(ScoreGradient, OfAChainHasTheTypesOfItsTrainedScores) {
  const BackwardSizes n{2, 37, 53, 4, 2, 5, 6};
  const BackwardCase<double> c("chain", n);
  const Bent<double> bent{0.1, 0.7};
  ByDistance<double> values{};
  for (int i = 0; i < 11; ++i) values.value[i] = 2 - 0.1 * i;
  mha::Tensor<double, 3> bias(4, 37, 53), g_bias(4, 37, 53), expected_bias(4, 37, 53);
  support::Random("bias").fill(bias);
  const mha::AdditiveBias added{bias};
  const auto on = [&](const auto& backend, auto& to) {
    using B = std::remove_cvref_t<decltype(backend)>;
    mha::AttentionTape<double, B> tape;
    const auto out = mha::attention(c.q, c.k, c.v, values, added, mha::Alibi{}, bent, backend, mha::record(tape));
    return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, values, added, mha::Alibi{}, bent, backend,
                                   mha::BiasGradient(to));
  };
  const auto g = on(One{}, g_bias), expected = on(Reference{}, expected_bias);
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(g.score)>, mha::Chain<ByDistance<double>, Bent<double>>>);
  const double step = 1e-5;
  const auto loss = [&](const Bent<double>& b) {
    return support::inner(c.d_out, mha::attention<Reference>(c.q, c.k, c.v, values, added, mha::Alibi{}, b));
  };
  for (const auto& score : {g.score, expected.score}) {
    EXPECT_NEAR(score.second.slope, (loss({0.1 + step, 0.7}) - loss({0.1 - step, 0.7})) / (2 * step), 1e-6);
    EXPECT_NEAR(score.second.bend, (loss({0.1, 0.7 + step}) - loss({0.1, 0.7 - step})) / (2 * step), 1e-6);
  }
  for (int i = 0; i < 11; ++i) EXPECT_NEAR(g.score.first.value[i], expected.score.first.value[i], 1e-11) << i;
  EXPECT_LT(support::relative_error(g_bias, expected_bias), 1e-12);
  EXPECT_LT(support::relative_error(g.query, expected.query), 1e-12);
  EXPECT_LT(support::relative_error(g.key, expected.key), 1e-12);
}

TEST(ScoreGradient, OnTheProcessorIsNearTheReferenceInFloatAndHasTheSameBitsForAnyThreads) {
  using Pool = mha::CpuWith<mha::ThreadPool>;
  const Bent<float> bent{0.01f, 0.7f};
  for (const BackwardSizes n : {BackwardSizes{1, 310, 450, 1, 1, 16, 16}, BackwardSizes{2, 37, 301, 6, 2, 24, 8}}) {
    const BackwardCase<float> c("float", n);
    const auto on = [&](const auto& at, const auto& backend) {
      using B = std::remove_cvref_t<decltype(backend)>;
      using T = mha::ScalarOf<decltype(at.q)>;
      mha::AttentionTape<T, B> tape;
      const auto out = mha::attention(at.q, at.k, at.v, bent, mha::Causal{}, backend, mha::record(tape));
      return mha::attention_backward(at.d_out, at.q, at.k, at.v, out, tape, bent, mha::Causal{}, backend).score;
    };
    const auto alone = on(c, One{}), expected = on(c.as<double>(), Reference{});
    const double least = std::sqrt(support::inner(c.d_out, c.d_out));
    EXPECT_NEAR(alone.slope, expected.slope, 5e-6 * (std::abs(expected.slope) + 100 * least));
    EXPECT_NEAR(alone.bend, expected.bend, 5e-6 * (std::abs(expected.bend) + least));
    for (const int threads : {2, 5}) {
      const auto g = on(c, Pool(mha::ThreadPool(threads)));
      EXPECT_EQ(support::bits(g.slope), support::bits(alone.slope));
      EXPECT_EQ(support::bits(g.bend), support::bits(alone.bend));
    }
  }
}

TEST(ScoreGradient, IsThatOfTheVisiblePairsWhateverStandsInTheOthers) {
  const BackwardSizes n{2, 40, 50, 4, 2, 8, 8};
  const BackwardCase<double> c("padded", n);
  const std::vector<Index> lengths{50, 31};
  const auto hides = mha::Padding{lengths};
  const mha::Origin origin{-2};  // the first two queries see nothing
  const Bent<double> bent{0.1, 0.7};
  BackwardCase<double> poisoned = c;
  for (Index k = 31; k < 50; ++k)
    for (Index d = 0; d < 8; ++d) poisoned.k(1, k, 0, d) = poisoned.v(1, k, 1, d) = nan;
  for (Index d = 0; d < 8; ++d) poisoned.d_out(0, 0, 2, d) = poisoned.q(0, 1, 1, d) = nan;
  const auto clean = c.gradients<Reference>(hides, mha::Causal{}, origin, bent).score;
  for (const auto& g : {poisoned.gradients<One>(hides, mha::Causal{}, origin, bent).score,
                        poisoned.gradients<Reference>(hides, mha::Causal{}, origin, bent).score}) {
    EXPECT_NEAR(g.slope, clean.slope, 1e-11);
    EXPECT_NEAR(g.bend, clean.bend, 1e-11);
  }
  for (Index d = 0; d < 8; ++d) poisoned.d_out(0, 20, 2, d) = nan;  // a visible one
  EXPECT_TRUE(std::isnan(poisoned.gradients<One>(hides, mha::Causal{}, origin, bent).score.slope));
  const auto empty = c.gradients<One>(mha::mask([](auto, auto, auto, auto) { return false; }), bent).score;
  EXPECT_EQ(empty.slope, 0);
  EXPECT_EQ(empty.bend, 0);
}

TEST(ScoreGradient, IsWrittenToAScoreThatIsGiven) {
  const BackwardCase<double> c("given", {});
  const Bent<double> bent{0.1, 0.7};
  Bent<double> to{7, 7};
  mha::AttentionTape<double, Reference> tape;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, bent, mha::record(tape));
  mha::attention_backward_into({{}, {}, {}}, c.d_out, c.q, c.k, c.v, out, tape, bent, mha::ScoreGradient(to));
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, bent);
  EXPECT_EQ(to.slope, g.score.slope);
  EXPECT_EQ(to.bend, g.score.bend);
  static_assert(std::is_same_v<decltype(c.gradients<Reference>(mha::Alibi{}).score), mha::NoScore>);
}

TEST(ScoreGradient, OfSoftCapIsThatOfItsCap) {
  const BackwardSizes n{2, 37, 53, 4, 2, 5, 6};
  const BackwardCase<double> c("cap", n);
  Table<double> bias = repeated<double>(n, 1);
  support::Random("table").fill(bias);
  for (std::size_t i = 0; i < bias.size(); i += 3) bias.data()[i] = -std::numeric_limits<double>::infinity();
  const mha::AdditiveBias added{bias};
  const auto loss = [&](float cap) {
    return support::inner(c.d_out, mha::attention<Reference>(c.q, c.k, c.v, added, mha::SoftCap{cap}, mha::Causal{}));
  };
  const float step = 1.f / 1024;
  const double expected = (loss(1.5f + step) - loss(1.5f - step)) / (2 * double(step));
  const auto expect = [&]<class B>(const B&) {
    mha::AttentionTape<double, B> tape;
    const auto out = mha::attention<B>(c.q, c.k, c.v, added, mha::SoftCap{1.5f}, mha::Causal{}, mha::record(tape));
    mha::SoftCap to{1};
    mha::attention_backward_into({{}, {}, {}}, c.d_out, c.q, c.k, c.v, out, tape, added, mha::SoftCap{1.5f},
                                 mha::Causal{}, mha::ScoreGradient(to));
    EXPECT_NEAR(double(to.cap), expected, 1e-5);
  };
  expect(One{});
  expect(Reference{});
  static_assert(std::is_same_v<decltype(c.gradients<One>(mha::SoftCap{1.5f}).score), mha::NoScore>, "asked for only");
}

/// Twice the derivative that its operator() has, so that it shows who is asked.
template <class T = float> struct Own {
  T slope;
  template <class S> auto operator()(const S& s, Index, Index, Index q, Index k) const {
    return s * 2.f + slope * float(q - k);
  }
  float derivative(float, float, Index, Index, Index, Index) const { return 4; }
  double derivative(double, double, Index, Index, Index, Index) const { return 4; }
};

TEST(ScoreGradient, LeavesTheDerivativeByTheLogitToTheScoresOwn) {
  const BackwardCase<double> c("own", {2, 37, 53, 4, 2, 5, 6});
  const Own<double> own{.slope = 0.25};
  const auto expect = [&]<class B>(const B&) {
    mha::AttentionTape<double, B> tape;
    const auto out = mha::attention<B>(c.q, c.k, c.v, own, mha::record(tape));
    const auto trained = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, own);
    auto dq = trained.query, dk = trained.key;
    support::poison_all(dq);
    support::poison_all(dk);
    mha::attention_backward_into({dq, dk, {}}, c.d_out, c.q, c.k, c.v, out, tape, own);
    EXPECT_LT(support::largest_difference(trained.query, dq), 1e-13);
    EXPECT_LT(support::largest_difference(trained.key, dk), 1e-13);
    return trained.score.slope;
  };
  const double step = 1. / 65536;
  const auto loss = [&](double slope) {
    return support::inner(c.d_out, mha::attention<Reference>(c.q, c.k, c.v, Own<double>{slope}));
  };
  const double expected = (loss(0.25 + step) - loss(0.25 - step)) / (2 * step);
  EXPECT_NEAR(expect(One{}), expected, 1e-5);
  EXPECT_NEAR(expect(Reference{}), expected, 1e-5);
}

TEST(BiasGradient, OfATableThatHeadsShareTakesMemoryForOneGroupOfThem) {
  using Two = mha::CpuWith<mha::ThreadPool>;
  const Two two(mha::ThreadPool(2));
  const auto bytes = [&](Index batch) {
    const BackwardSizes n{
        .batch = batch, .queries = 300, .keys = 310, .heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 16};
    const BackwardCase<float> c("shared", n);
    const Table<float> bias(1, 1, n.queries, n.keys);
    Table<float> g(1, 1, n.queries, n.keys);
    mha::AttentionTape<float, Two> tape;
    const auto out = mha::attention(c.q, c.k, c.v, mha::AdditiveBias{bias}, two, mha::record(tape));
    mha::Workspace workspace;
    mha::attention_backward_into({{}, {}, {}}, c.d_out, c.q, c.k, c.v, out, tape, mha::AdditiveBias{bias}, two,
                                 mha::BiasGradient(g), workspace);
    return workspace.bytes();
  };
  EXPECT_LT(bytes(8), 2 * bytes(1));
}

/// What `adds` gives for a pair as a term whose derivative is `slope`, for the Reference's forward in dual numbers.
template <class Adds, class Slope> struct TermOf {
  const Adds* adds;
  const Slope* slope;
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    T t = (*adds)(s, b, h, q, k);
    if constexpr (std::is_same_v<T, mha::Dual<double>>) t.derivative[0] += (*slope)(h, q, k);
    return t;
  }
};

template <class Adds, class Slope, class... Extra>
double by_term(const BackwardCase<double>& c, const Adds& adds, const Slope& slope, const Extra&... extra) {
  BackwardCase<double> still = c;
  for (auto* x : {&still.q, &still.k, &still.v}) std::fill(x->begin(), x->end(), 0.);
  return support::derivative_along(c, still, TermOf<Adds, Slope>{&adds, &slope}, extra...);
}

TEST(ScoreGradient, OfSlopesPerHeadAndOfRelativeBiasEqualsDualNumbers) {
  const BackwardSizes n{2, 27, 33, 4, 2, 5, 6};
  const BackwardCase<double> c("library", n);
  const mha::AlibiSlopes slopes({0.5f, 0.25f, -0.125f, 0.f});
  const mha::RelativeBuckets buckets{.count = 8, .max_distance = 20};
  std::vector<float> numbers(32);
  support::Random("numbers").fill(numbers);
  const mha::RelativeBias relative(numbers, buckets);
  const auto expect = [&](const auto&... extra) {
    std::vector<double> of_slopes(4), of_buckets(32);
    for (Index h = 0; h < 4; ++h) {
      const auto far = [&](Index i, Index q, Index k) { return i == h ? -std::abs(double(q - k)) : 0.; };
      of_slopes[static_cast<std::size_t>(h)] = by_term(c, slopes, far, extra...);
      for (Index j = 0; j < 8; ++j) {
        const auto in = [&](Index i, Index q, Index k) { return i == h && buckets.bucket(q, k) == j ? 1. : 0.; };
        of_buckets[static_cast<std::size_t>(4 * j + h)] = by_term(c, relative, in, extra...);
      }
    }
    const auto near = [](const auto& trained, const std::vector<double>& expected) {
      ASSERT_EQ(trained.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(double(trained[i]), expected[i], 1e-6 * (1 + std::abs(expected[i]))) << i;
    };
    const auto of = [](const auto& score) {  // alone or the first of a chain
      if constexpr (requires { score.first; })
        return score.first;
      else
        return score;
    };
    const auto on = [&]<class B>(const B&) {
      near(of(c.gradients<B>(slopes, extra...).score).per_head(), of_slopes);
      near(of(c.gradients<B>(relative, extra...).score).table(), of_buckets);
    };
    on(Reference{});
    on(One{});
  };
  expect();
  expect(mha::Causal{}, mha::SoftCap{2.f});
  expect(mha::SlidingWindow{.left = 9}, mha::Origin{3});
}

TEST(ScoreGradient, OfAllScoresTogetherIsTheReferencesAndHasTheSameBitsForAnyThreads) {
  using Pool = mha::CpuWith<mha::ThreadPool>;
  for (const BackwardSizes n : {BackwardSizes{1, 310, 450, 1, 1, 16, 16}, BackwardSizes{2, 41, 301, 4, 2, 8, 8}}) {
    const BackwardCase<float> c("all", n);
    const auto heads = static_cast<std::size_t>(n.heads);
    std::vector<float> numbers(32 * heads);
    support::Random("numbers").fill(numbers);
    const mha::RelativeBias relative(numbers);
    const mha::AlibiSlopes slopes(std::vector<float>(heads, 0.125f));
    mha::Tensor<float, 2> bias(n.queries, n.keys), zero(n.queries, n.keys);
    support::Random("bias").fill(bias);
    const mha::AdditiveBias added{bias};
    const auto on = [&](const auto& at, const auto& backend) {
      using B = std::remove_cvref_t<decltype(backend)>;
      using T = mha::ScalarOf<decltype(at.q)>;
      mha::AttentionTape<T, B> tape;
      mha::Tensor<float, 2> to(n.queries, n.keys);
      const auto out = mha::attention(at.q, at.k, at.v, relative, mha::SoftCap{4.f}, added, slopes, mha::Causal{},
                                      backend, mha::record(tape));
      const auto score = mha::attention_backward(at.d_out, at.q, at.k, at.v, out, tape, relative, mha::SoftCap{4.f},
                                                 added, slopes, mha::Causal{}, backend, mha::BiasGradient(to))
                             .score;
      const auto per_head = score.second.second.per_head();
      return std::array<std::vector<float>, 4>{
          score.first.table(), {score.second.first.cap}, {per_head.begin(), per_head.end()}, {to.begin(), to.end()}};
    };
    const auto alone = on(c, One{}), expected = on(c.as<double>(), Reference{});
    // Of each part alone, or the largest hides the others' errors; what its sums are made of beside what they come to.
    const double terms = 0.1 * std::sqrt(support::inner(c.d_out, c.d_out));
    const double least[] = {terms, terms, terms * n.keys / 4, terms};
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_LT(support::relative_error(alone[i], expected[i], least[i]), 5e-6) << "part " << i;
      EXPECT_GT(support::inner(expected[i], expected[i]), 0) << "part " << i;
    }
    for (const int threads : {2, 5}) {
      const auto g = on(c, Pool(mha::ThreadPool(threads)));
      for (std::size_t i = 0; i < g.size(); ++i) EXPECT_EQ(support::differing(g[i], alone[i]), 0u) << "part " << i;
    }
  }
}

TEST(AttentionBackward, TheGradientOfTheValuesAloneHasTheSameBits) {
  const BackwardCase<float> c("values", {2, 90, 110, 4, 2, 24, 16});
  const auto expected = c.gradients<One>(mha::Causal{}, mha::SoftCap{2.f});
  mha::AttentionTape<float, One> tape;
  const auto out = mha::attention<One>(c.q, c.k, c.v, mha::Causal{}, mha::SoftCap{2.f}, mha::record(tape));
  mha::Tensor<float, 4> dv(2, 110, 2, 16);
  mha::attention_backward_into({{}, {}, dv}, c.d_out, c.q, c.k, c.v, out, tape, mha::Causal{}, mha::SoftCap{2.f});
  EXPECT_EQ(support::differing(dv, expected.value), 0u);
}

/// A user's table of distances, its logit bent, with the gradient of the table as it says itself.
template <std::size_t Count = 12, class X = double> struct DistanceTable {
  std::array<X, Count> table{};
  std::span<X> numbers() { return table; }
  std::span<const X> numbers() const { return table; }
  static std::size_t at(Index q, Index k) { return std::min(static_cast<std::size_t>(mha::abs(q - k)), Count - 1); }
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const {
    return mha::tanh(s) * table[at(q, k)] + 0.5f * s;
  }
  template <class G, class S> void accumulate(G gradient, S dt, S s, Index, Index, Index q, Index k) const {
    gradient[at(q, k)] += dt * mha::tanh(s);
  }
};
/// The same with its numbers elsewhere, so that copies are not trivial, and a derivative of its own.
struct VectorTable {
  std::vector<float> table;
  std::span<float> numbers() { return table; }
  std::span<const float> numbers() const { return table; }
  std::size_t at(Index q, Index k) const {
    return std::min(static_cast<std::size_t>(mha::abs(q - k)), table.size() - 1);
  }
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const {
    return static_cast<S>(mha::tanh(s) * table[at(q, k)] + 0.5f * s);
  }
  template <class S> S derivative(S s, S, Index, Index, Index q, Index k) const {
    const S t = std::tanh(s);
    return (1 - t * t) * static_cast<S>(table[at(q, k)]) + S(0.5);
  }
  template <class S> void accumulate(std::span<double> gradient, S dt, S s, Index, Index, Index q, Index k) const {
    gradient[at(q, k)] += double(dt * std::tanh(s));
  }
};
/// The table as numbers of a class template, for the dual numbers of a class with so few.
template <class X = double> struct TwelveNumbers {
  std::array<X, 12> table;
  template <class S> auto operator()(S s, Index, Index, Index q, Index k) const {
    return table[DistanceTable<>::at(q, k)] * mha::tanh(s) + 0.5 * s;
  }
};

template <class B, class T, class S, class... Extra>
auto learnt_gradient(const BackwardCase<T>& c, const S& score, const Extra&... extra) {
  mha::AttentionTape<T, B> tape;
  const auto out = mha::attention(c.q, c.k, c.v, extra..., score, mha::record(tape), B{});
  return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, extra..., score, B{});
}

TEST(Accumulate, GivesTheGradientsThatDualNumbersGive) {
  const BackwardCase<double> c("accumulate", {2, 21, 30, 4, 2, 8, 8});
  DistanceTable<> own;
  for (std::size_t i = 0; i < 12; ++i) own.table[i] = 0.25 * std::cos(double(i));
  const TwelveNumbers<> by_duals{own.table};
  VectorTable elsewhere{std::vector<float>(own.table.begin(), own.table.end())};
  DistanceTable<> rounded = own;
  for (std::size_t i = 0; i < 12; ++i) rounded.table[i] = elsewhere.table[i];
  const auto expect = [&]<class B>(const B&, const auto&... extra) {
    const auto expected = learnt_gradient<B>(c, by_duals, extra...);
    const auto g = learnt_gradient<B>(c, own, extra...);
    double largest = 0;
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_NEAR(g.score.table[i], expected.score.table[i], 1e-12 * (1 + std::abs(expected.score.table[i])));
      largest = std::max(largest, std::abs(g.score.table[i]));
    }
    EXPECT_GT(largest, 0.01);
    EXPECT_LT(support::relative_error(g.query, expected.query), 1e-13);
    const auto of_rounded = learnt_gradient<B>(c, rounded, extra...);
    const auto of_vector = learnt_gradient<B>(c, elsewhere, extra...);
    for (std::size_t i = 0; i < 12; ++i)
      EXPECT_NEAR(of_vector.score.table[i], of_rounded.score.table[i], 1e-6 * (1 + largest));
    EXPECT_LT(support::relative_error(of_vector.query, of_rounded.query), 1e-13);
  };
  expect(Reference{});
  expect(One{});
  expect(Reference{}, mha::Causal{});
  expect(One{}, mha::Causal{});
}

TEST(Accumulate, KnowsWhatItIsAskedInAChain) {
  // In front of a cap, behind slopes, and beside ten numbers by dual numbers: more than one pass has.
  const BackwardCase<double> c("chain", {1, 19, 26, 2, 1, 8, 8});
  DistanceTable<> own;
  for (std::size_t i = 0; i < 12; ++i) own.table[i] = 0.25 * std::sin(double(i));
  const TwelveNumbers<> twelve{own.table};
  const mha::AlibiSlopes slopes({0.25f, 0.5f});
  const auto expect = [&]<class B>(const B&) {
    const auto expected = learnt_gradient<B>(c, mha::Chain{mha::Chain{slopes, twelve}, mha::SoftCap{2.f}});
    const auto g = learnt_gradient<B>(c, mha::Chain{mha::Chain{slopes, own}, mha::SoftCap{2.f}});
    for (std::size_t i = 0; i < 12; ++i)
      EXPECT_NEAR(g.score.first.second.table[i], expected.score.first.second.table[i], 1e-12);
    for (std::size_t h = 0; h < 2; ++h)
      EXPECT_NEAR(g.score.first.first.per_head()[h], expected.score.first.first.per_head()[h], 1e-5);
    EXPECT_NEAR(g.score.second.cap, expected.score.second.cap, 1e-5);
    const auto many = learnt_gradient<B>(c, mha::Chain{twelve, own});
    const auto all_duals = learnt_gradient<B>(c, mha::Chain{twelve, twelve});
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_NEAR(many.score.first.table[i], all_duals.score.first.table[i], 1e-12);
      EXPECT_NEAR(many.score.second.table[i], all_duals.score.second.table[i], 1e-12);
    }
  };
  expect(Reference{});
  expect(One{});
}

TEST(Accumulate, SumsInDoubleWithTheSameBitsForAnyThreads) {
  using Pool = mha::CpuWith<mha::ThreadPool>;
  const BackwardCase<float> c("bits", {2, 37, 301, 4, 2, 8, 16});  // by heads, and on 5 threads by pieces
  DistanceTable<100, float> score;
  for (std::size_t i = 0; i < 100; ++i) score.table[i] = 0.125f * std::sin(float(i));
  const auto gradient = [&](const auto& backend) {
    using B = std::remove_cvref_t<decltype(backend)>;
    mha::AttentionTape<float, B> tape;
    const auto out = mha::attention(c.q, c.k, c.v, mha::Causal{}, score, mha::record(tape), backend);
    return mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::Causal{}, score, backend);
  };
  const auto alone = gradient(One{});
  for (const int threads : {2, 3, 5}) {
    const auto g = gradient(Pool(mha::ThreadPool(threads)));
    EXPECT_EQ(g.score.table, alone.score.table) << threads;
  }
  DistanceTable<100> wide;
  for (std::size_t i = 0; i < 100; ++i) wide.table[i] = score.table[i];
  const auto expected = learnt_gradient<Reference>(c.as<double>(), wide, mha::Causal{});
  double error = 0, size = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    error += std::pow(alone.score.table[i] - expected.score.table[i], 2);
    size += std::pow(expected.score.table[i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), 5e-6);
}

TEST(Accumulate, IsNotCalledForHiddenPairsWhateverStandsThere) {
  BackwardCase<double> c("hidden", {1, 6, 9, 2, 1, 8, 8});
  const std::vector<Index> lengths{7};
  DistanceTable<> score;
  for (std::size_t i = 0; i < 12; ++i) score.table[i] = 0.25;
  const auto gradients = [&] {
    return std::pair(learnt_gradient<Reference>(c, score, mha::Padding{lengths}),
                     learnt_gradient<One>(c, score, mha::Padding{lengths}));
  };
  const auto [clean, fast] = gradients();
  for (Index d = 0; d < 8; ++d) c.k(0, 7, 0, d) = c.v(0, 8, 0, d) = nan;
  const auto [with_nan, fast_nan] = gradients();
  EXPECT_EQ(clean.score.table, with_nan.score.table);
  EXPECT_EQ(fast.score.table, fast_nan.score.table);
}

/// A table in memory that copies allocate.
struct Frozen {
  static constexpr bool trainable = false;
  std::vector<float> table;
  std::span<float> numbers() { return table; }
  std::span<const float> numbers() const { return table; }
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const {
    return s + table[static_cast<std::size_t>(mha::abs(q - k))];
  }
  template <class G, class S> void accumulate(G, S, S, Index, Index, Index, Index) const {
    ADD_FAILURE() << "it does not want to be trained";
  }
};
template <class T = float> struct Slope {
  T slope;
  template <class S> auto operator()(S s, Index, Index, Index q, Index k) const {
    return s - slope * static_cast<float>(mha::abs(q - k));
  }
};
TEST(Accumulate, LeavesAFrozenScoreBesideATrainedOneAlone) {
  const support::BackwardCase<float> c("frozen", {.batch = 1, .queries = 20, .keys = 20, .heads = 1, .kv_heads = 1});
  const Frozen frozen{std::vector<float>(64, 0.5f)};
  const auto beside = c.gradients<mha::Cpu>(Slope<>{0.1f}, frozen), alone = c.gradients<mha::Cpu>(Slope<>{0.1f});
  EXPECT_NEAR(beside.score.slope, alone.score.slope, 1e-4f * (1 + std::abs(alone.score.slope)));
}

/// A table that it borrows: its copies write to the same numbers.
struct BorrowedTable {
  std::span<float> table;
  std::span<float> numbers() const { return table; }
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const {
    return s + table[static_cast<std::size_t>(mha::abs(q - k))];
  }
  template <class G, class S> void accumulate(G gradient, S dt, S, Index, Index, Index q, Index k) const {
    gradient[static_cast<std::size_t>(mha::abs(q - k))] += dt;
  }
};
TEST(Accumulate, RefusesAScoreWhoseCopiesShareItsNumbersAndWritesNothing) {
  const support::BackwardCase<float> c("borrowed", {.batch = 1, .queries = 5, .keys = 5, .heads = 1, .kv_heads = 1});
  std::vector<float> table(8, 0.5f), other(8, 0.25f);
  const std::vector<float> before = table, other_before = other;
  const BorrowedTable score{table};
  BorrowedTable to{other};
  mha::AttentionTape<float> tape;
  const auto out = mha::attention(c.q, c.k, c.v, Slope<>{0.1f}, score, mha::record(tape));
  mha::Tensor<float, 4> dv(1, 5, 1, c.v.extent(3));
  std::fill(dv.begin(), dv.end(), 42.f);
  const char* const expected =
      "attention_backward: a copy of the score shares the memory of its 8 numbers(), expected a copy with numbers of "
      "its own";
  EXPECT_EQ(support::message_of([&] {
              static_cast<void>(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, Slope<>{0.1f}, score));
            }),
            expected);
  mha::Chain<Slope<>, BorrowedTable> into{Slope<>{7}, to};
  EXPECT_EQ(support::message_of([&] {
              mha::attention_backward_into({{}, {}, dv}, c.d_out, c.q, c.k, c.v, out, tape, Slope<>{0.1f}, score,
                                           mha::ScoreGradient(into));
            }),
            expected);
  EXPECT_EQ(table, before);
  EXPECT_EQ(other, other_before);
  EXPECT_EQ(into.first.slope, 7);
  for (const float d : dv) ASSERT_EQ(d, 42);
  // Where its numbers have no gradients, it is a score like any other.
  mha::attention_backward_into({{}, {}, dv}, c.d_out, c.q, c.k, c.v, out, tape, Slope<>{0.1f}, score);
  EXPECT_NE(*dv.begin(), 42);
  EXPECT_EQ(table, before);
}

template <int Step> struct Table8 {
  std::array<float, 8> table{};
  std::span<float> numbers() { return table; }
  std::span<const float> numbers() const { return table; }
  static std::size_t at(Index q, Index k) { return static_cast<std::size_t>((q + Step * k) & 7); }
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const { return s + table[at(q, k)]; }
  template <class G, class S> void accumulate(G gradient, S dt, S, Index, Index, Index q, Index k) const {
    gradient[at(q, k)] += static_cast<double>(dt);
  }
};
template <class T = float> struct Eight {
  T a[8];
  template <class S> auto operator()(S s, Index, Index, Index q, Index k) const {
    return a[(3 * q + k) & 7] * mha::tanh(s) + s;
  }
};
// More numbers than one pass of dual numbers has, beside several tables.
TEST(Accumulate, TablesStandBesideManyNumbers) {
  const support::BackwardCase<double> c("many", {.batch = 1, .queries = 40, .keys = 40, .heads = 1, .kv_heads = 1});
  const auto score =
      mha::Chain{mha::Chain{Eight<>{{.1f, .2f, .3f}}, Table8<1>{}}, mha::Chain{Table8<3>{}, Table8<5>{}}};
  const auto found = c.gradients<mha::CpuWith<mha::Serial>>(score), expected = c.gradients<mha::Reference>(score);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(found.score.first.first.a[i], expected.score.first.first.a[i], 1e-5f);
    EXPECT_NEAR(found.score.first.second.table[i], expected.score.first.second.table[i], 1e-5f);
    EXPECT_NEAR(found.score.second.first.table[i], expected.score.second.first.table[i], 1e-5f);
    EXPECT_NEAR(found.score.second.second.table[i], expected.score.second.second.table[i], 1e-5f);
  }
}

TEST(BiasGradient, RefusesTheBiasItself) {
  support::BackwardCase<float> c("bias itself", {.batch = 1, .queries = 5, .keys = 7, .heads = 2, .kv_heads = 1});
  mha::Tensor<float, 3> bias(2, 5, 7);
  support::Random("bias itself").fill(bias);
  const mha::Tensor<float, 3> before = bias;
  mha::AttentionTape<float> tape;
  const auto out = mha::attention(c.q, c.k, c.v, mha::AdditiveBias(bias), mha::record(tape));
  EXPECT_THROW(static_cast<void>(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::AdditiveBias(bias),
                                                         mha::BiasGradient(bias))),
               mha::ShapeError);
  EXPECT_EQ(support::differing(bias, before), 0u);
}

TEST(BiasGradient, RefusesATableThatOverlapsItself) {
  support::BackwardCase<float> c("bias overlaps itself", {.batch = 1, .queries = 5, .keys = 7, .heads = 2});
  mha::Tensor<float, 3> bias(2, 5, 7);
  mha::Tensor<float, 1> memory(100);
  std::fill(memory.begin(), memory.end(), 42.f);
  mha::AttentionTape<float> tape;
  const auto out = mha::attention(c.q, c.k, c.v, mha::AdditiveBias(bias), mha::record(tape));
  const auto said = [&](Index head, Index query, Index key) {
    const mha::TensorView<float, 3> to{memory.data(), {2, 5, 7}, {head, query, key}};
    return support::message_of([&] {
      static_cast<void>(
          mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::AdditiveBias(bias), mha::BiasGradient(to)));
    });
  };
  const std::string begin = "attention_backward: the BiasGradient overlaps itself: its axis ",
                    end = ", expected memory of its own for each element";
  EXPECT_EQ(said(35, 0, 1), begin + "queries has 5 elements and stride 0" + end);
  EXPECT_EQ(said(0, 7, 1), begin + "heads has 2 elements and stride 0" + end);
  EXPECT_EQ(said(30, 7, 1), begin + "heads has 2 elements and stride 30" + end);
  for (const float x : memory) EXPECT_EQ(x, 42.f);
  EXPECT_EQ(said(1, 14, 2), "") << "heads interleaved";
}

/// Reference with a workspace that gives memory so many times.
struct Scarce : Reference {
  static inline int left = 0;
  struct Workspace : mha::Workspace {
    struct Frame : mha::Workspace::Frame {
      using Base = mha::Workspace::Frame;
      using Base::Base;
      template <class T> T* take(std::size_t n) { return left-- > 0 ? Base::take<T>(n) : throw std::bad_alloc(); }
    };
    Frame frame() { return Frame(*this); }
  };
};

TEST(BiasGradient, IsAsItWasWhereMemoryGivesOut) {
  support::BackwardCase<float> c("memory", {.batch = 1, .queries = 5, .keys = 7, .heads = 2, .kv_heads = 1});
  mha::Tensor<float, 3> bias(2, 5, 7), d_bias(2, 5, 7);
  // Rows that are no runs of numbers, for which calls take memory.
  const auto columns = [](mha::Tensor<float, 4>& x) {
    return mha::TensorView<const float, 4>{x.data(), {1, 7, 1, x.extent(3)}, {0, 1, 0, 7}};
  };
  const auto k = columns(c.k), v = columns(c.v);
  mha::AttentionTape<float, Scarce> tape;
  Scarce::left = 99;
  const mha::AlibiSlopes slopes({0.5f, 0.25f});
  const auto out = mha::attention<Scarce>(c.q, k, v, slopes, mha::AdditiveBias(bias), mha::record(tape));
  mha::AlibiSlopes d_slopes = slopes;
  int failed = 0;
  for (bool done = false; !done; ++failed) {
    for (float& x : d_bias) x = 42;
    Scarce::left = failed;
    try {
      mha::attention_backward_into({}, c.d_out, c.q, k, v, out, tape, slopes, mha::AdditiveBias(bias),
                                   mha::BiasGradient(d_bias), mha::ScoreGradient(d_slopes));
      done = true;
    } catch (const std::bad_alloc&) {
      for (const float x : d_bias) ASSERT_EQ(x, 42) << failed;
    }
  }
  EXPECT_GE(failed, 4) << "sums of slopes, keys and values";
  for (const float x : d_bias) EXPECT_NE(x, 42);
}

TEST(SharedNumbers, OfAPolicyThatWasMovedAreNone) {
  mha::AlibiSlopes slopes({1.f, 2.f});
  const mha::AlibiSlopes moved = std::move(slopes);
  EXPECT_EQ(slopes.numbers().size(), 0u);
  EXPECT_EQ(std::as_const(slopes).numbers().size(), 0u);
  EXPECT_EQ(moved.numbers().size(), 2u);
}

}  // namespace
