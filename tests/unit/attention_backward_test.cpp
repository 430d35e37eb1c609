// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <Eigen/Core>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/dual.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "backward_case.hpp"
#include "compare.hpp"
#include "gradient_oracles.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using support::BackwardCase;
using support::BackwardSizes;
using Reference = mha::Reference;
using Tensor4 = mha::Tensor<double, 4>;
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// A user's score that is not linear and depends on the pair.
struct Bent {
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    return mha::tanh(s * 0.5) * (1 + 0.25 * h + 0.125 * b) - 0.1 * mha::abs(q - k) + mha::exp(s * 0.25);
  }
};

/// Gradients against the derivative of the forward pass along random directions, and along single elements.
template <class... Extra> void expect_derivative(const char* stream, const BackwardSizes& n, const Extra&... extra) {
  const BackwardCase<double> c(stream, n);
  const auto g = c.gradients<Reference>(extra...);
  support::Random random(std::string(stream) + " directions");
  for (int turn = 0; turn < 8; ++turn) {
    BackwardCase<double> direction(std::string(stream) + std::to_string(turn), n);
    if (turn >= 4)
      for (Tensor4* x : {&direction.q, &direction.k, &direction.v}) {
        std::fill(x->begin(), x->end(), 0.);
        x->data()[random.below(static_cast<int>(x->size()))] = 1;
      }
    const double expected = support::derivative_along(c, direction, extra...);
    const double terms[] = {support::inner(g.query, direction.q), support::inner(g.key, direction.k),
                            support::inner(g.value, direction.v)};
    const double size = 1 + std::abs(terms[0]) + std::abs(terms[1]) + std::abs(terms[2]);
    EXPECT_NEAR(terms[0] + terms[1] + terms[2], expected, 1e-11 * size) << stream << ", direction " << turn;
  }
}

TEST(AttentionBackward, IsTheDerivativeOfTheForwardPass) {
  const BackwardSizes n;
  expect_derivative("plain", n);
  expect_derivative("scaled", n, mha::Scale{2.5});
  expect_derivative("causal", n, mha::Causal{});
  expect_derivative("window", n, mha::SlidingWindow{.left = 1, .right = 1});
  expect_derivative("more queries than keys", {.queries = 9, .keys = 4}, mha::Causal{});
  expect_derivative("origin", n, mha::Causal{}, mha::Origin{1});
  const std::vector<Index> lengths{4, 6};
  expect_derivative("prefix", n, mha::Prefix{lengths});
  expect_derivative("padding", n, mha::Padding{lengths});
  expect_derivative("mask of a user", n, mha::mask([](auto, auto h, auto q, auto k) { return (q + k + h) % 3 != 0; }));
  expect_derivative("one head", {.batch = 1, .heads = 1, .kv_heads = 1});
  expect_derivative("one key head", {.heads = 3, .kv_heads = 1});
  expect_derivative("no group", {.heads = 3, .kv_heads = 3, .head_dim = 1, .value_dim = 1});
}

TEST(AttentionBackward, DifferentiatesScoresAndSinks) {
  const BackwardSizes n;
  expect_derivative("soft cap", n, mha::SoftCap{0.7f});
  expect_derivative("alibi", n, mha::Alibi{}, mha::Causal{});
  expect_derivative("functor", n, Bent{});
  mha::Tensor<double, 3> bias(4, 5, 7);
  support::Random("bias").fill(bias);
  bias(1, 2, 3) = -infinity;
  expect_derivative("bias", n, mha::AdditiveBias{bias});
  expect_derivative("chain", n, Bent{}, mha::SoftCap{3.f}, mha::AdditiveBias{bias}, mha::Causal{});
  expect_derivative("sink", n, mha::Sink({0.5f, -1.f, 2.f, -std::numeric_limits<float>::infinity()}), mha::Causal{});
}

/// A mask that can be copied and not assigned.
struct Near {
  const Index reach;
  bool operator()(Index, Index, Index q, Index k) const { return q - k < reach; }
};
struct NearAssigned {
  Index reach;
  bool operator()(Index, Index, Index q, Index k) const { return q - k < reach; }
};

TEST(AttentionBackward, TakesFunctorsThatCannotBeAssigned) {
  const float slope = 0.125f;
  const auto captures = mha::score([slope](auto s, auto, auto, auto q, auto k) { return s - slope * float(q - k); });
  const auto captures_not = mha::score([](auto s, auto, auto, auto q, auto k) { return s - 0.125f * float(q - k); });
  static_assert(!std::is_copy_assignable_v<Near> && !std::is_copy_assignable_v<decltype(captures)>);
  const BackwardSizes n{.queries = 7};
  expect_derivative("captures", n, captures, Near{3});
  expect_derivative("captures in a chain", n, Bent{}, captures, Near{3} && mha::Causal{}, mha::SoftCap{2.f});
  const auto expect_same = [&](auto backend, auto t) {
    const BackwardCase<decltype(t)> c("captures", n);
    const auto g = c.template gradients<decltype(backend)>(captures, Near{3});
    const auto same = c.template gradients<decltype(backend)>(captures_not, NearAssigned{3});
    EXPECT_EQ(support::differing(g.query, same.query), 0u);
    EXPECT_EQ(support::differing(g.key, same.key), 0u);
    EXPECT_EQ(support::differing(g.value, same.value), 0u);
  };
  expect_same(mha::Cpu{}, 0.);
  expect_same(mha::Cpu{}, 0.f);
  expect_same(mha::Systolic{}, 0.f);
}

TEST(AttentionBackward, DifferentiatesWhatDropoutKeeps) {
  const BackwardSizes n;
  const mha::Dropout dropout{.p = 0.4f};
  expect_derivative("dropout", n, dropout, mha::DropoutSeed{support::seed()});
  expect_derivative("dropout, causal, sink", n, dropout, mha::DropoutSeed{support::seed(), 1}, mha::Causal{},
                    mha::Sink({0.5f, -1.f, 2.f, 0.f}));
  expect_derivative("dropout, functor", {.queries = 9, .keys = 11}, dropout, mha::DropoutSeed{support::seed(), 2},
                    Bent{}, mha::SoftCap{2.f}, mha::Origin{3});
}

using Dual = mha::Dual<double>;
BackwardCase<Dual> along(const BackwardCase<double>& at, const BackwardCase<double>& direction) {
  auto line = at.as<Dual>();
  for (std::size_t i = 0; i < at.q.size(); ++i) line.q.data()[i].derivative[0] = direction.q.data()[i];
  for (std::size_t i = 0; i < at.k.size(); ++i) line.k.data()[i].derivative[0] = direction.k.data()[i];
  for (std::size_t i = 0; i < at.v.size(); ++i) line.v.data()[i].derivative[0] = direction.v.data()[i];
  return line;
}

/// Gradients of ⟨d_out, out⟩ + ⟨d_lse, log-sum-exps⟩ against the derivative of the forward pass.
template <class... Extra>
void expect_derivative_of_log_sum_exps(const char* stream, const BackwardSizes& n, const Extra&... extra) {
  const BackwardCase<double> c(stream, n), direction(std::string(stream) + " direction", n);
  mha::Tensor<double, 3> d_lse(n.batch, n.heads, n.queries);
  support::Random("d_lse").fill(d_lse);
  mha::AttentionTape<double, Reference> tape;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, extra..., mha::record(tape));
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, extra..., mha::LogSumExpGradient(d_lse));
  const auto line = along(c, direction);
  mha::Tensor<Dual, 3> lse(n.batch, n.heads, n.queries);
  static_cast<void>(mha::attention<Reference>(line.q, line.k, line.v, extra..., mha::LogSumExp(lse)));
  double of_lse = 0;
  for (std::size_t i = 0; i < lse.size(); ++i) of_lse += d_lse.data()[i] * lse.data()[i].derivative[0];
  EXPECT_NE(of_lse, 0) << stream;
  const double terms[] = {support::inner(g.query, direction.q), support::inner(g.key, direction.k),
                          support::inner(g.value, direction.v)};
  const double size = 1 + std::abs(terms[0]) + std::abs(terms[1]) + std::abs(terms[2]);
  EXPECT_NEAR(terms[0] + terms[1] + terms[2], support::derivative_along(c, direction, extra...) + of_lse, 1e-11 * size)
      << stream;
}

TEST(AttentionBackward, DifferentiatesThroughTheLogSumExp) {
  const BackwardSizes n;
  expect_derivative_of_log_sum_exps("lse", n);
  expect_derivative_of_log_sum_exps("lse, scaled", n, mha::Scale{2.5});
  expect_derivative_of_log_sum_exps("lse, empty rows", {.queries = 9, .keys = 4}, mha::Causal{});
  expect_derivative_of_log_sum_exps("lse, mask of a user", n,
                                    mha::mask([](auto, auto h, auto q, auto k) { return (q + k + h) % 3 != 0; }));
  expect_derivative_of_log_sum_exps("lse, chain", n, Bent{}, mha::SoftCap{3.f}, mha::Alibi{}, mha::Causal{});
  expect_derivative_of_log_sum_exps("lse, sink and dropout", n, mha::Sink({0.5f, -1.f, 2.f, 0.f}), mha::Causal{},
                                    mha::Dropout{.p = 0.4f}, mha::DropoutSeed{support::seed()});
}

/// The logit of the last key is a number of the head's: its key is a sink whose logit dual numbers differentiate.
struct LastKeyIsSink {
  Index last;
  const Dual* logits;
  template <class S> S operator()(S s, Index, Index h, Index, Index k) const {
    if constexpr (std::is_same_v<S, Dual>) return k == last ? logits[h] : s;
    return s;
  }
};

TEST(AttentionBackward, DifferentiatesTheLogitsOfASink) {
  const BackwardSizes n{.queries = 6, .keys = 7};
  const BackwardCase<double> c("sink's logits", n);
  const float logits[] = {0.5f, -1.f, 2.f, 0.f};
  const auto expect = [&](const char* name, const auto&... extra) {
    const mha::Sink sink(std::vector<float>(logits, logits + 4));
    const auto mask = mha::mask([](auto, auto, auto q, auto k) { return k <= q + 1 || k == 7; });
    const auto g = c.gradients<Reference>(sink, mask, mha::Origin{0}, extra...);
    // A key after the others whose value is 0; it moves no other key's number.
    BackwardCase<Dual> line = c.as<Dual>();
    line.k = mha::Tensor<Dual, 4>(n.batch, 8, n.kv_heads, n.head_dim);
    line.v = mha::Tensor<Dual, 4>(n.batch, 8, n.kv_heads, n.value_dim);
    for (Index b = 0; b < n.batch; ++b)
      for (Index k = 0; k < n.keys; ++k)
        for (Index h = 0; h < n.kv_heads; ++h) {
          for (Index d = 0; d < n.head_dim; ++d) line.k(b, k, h, d) = c.k(b, k, h, d);
          for (Index d = 0; d < n.value_dim; ++d) line.v(b, k, h, d) = c.v(b, k, h, d);
        }
    for (Index h = 0; h < n.heads; ++h) {
      Dual moved[4];
      for (int i = 0; i < 4; ++i) moved[i] = static_cast<double>(logits[i]);
      moved[h].derivative[0] = 1;
      const auto out = mha::attention<Reference>(line.q, line.k, line.v, mask, mha::Origin{0}, extra...,
                                                 LastKeyIsSink{.last = 7, .logits = moved});
      double expected = 0;
      for (std::size_t i = 0; i < out.size(); ++i) expected += c.d_out.data()[i] * out.data()[i].derivative[0];
      EXPECT_NEAR(g.sink(h), expected, 1e-11 * (1 + std::abs(expected))) << name << ", head " << h;
    }
  };
  expect("sink");
  expect("sink, scores", Bent{}, mha::SoftCap{3.f}, mha::Scale{2.});
  expect("sink, dropout", mha::Dropout{.p = 0.4f}, mha::DropoutSeed{support::seed()});
}

template <class B> void adds_to_the_gradient_of_a_sink() {
  const BackwardSizes n;
  BackwardCase<float> c("sums of sinks", n);
  const mha::Sink sink({0.5f, -1.f, 2.f, 0.f});
  mha::AttentionTape<float, B> tape;
  const auto out = mha::attention<B>(c.q, c.k, c.v, sink, mha::record(tape));
  const auto gradient = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, sink).sink;
  mha::Tensor<float, 1> sums(n.heads);
  for (Index h = 0; h < n.heads; ++h) sums(h) = static_cast<float>(h - 1);
  mha::attention_backward_into({}, c.d_out, c.q, c.k, c.v, out, tape, sink, mha::SinkGradient(mha::add_to(sums)));
  for (Index h = 0; h < n.heads; ++h)
    EXPECT_NEAR(sums(h), float(h - 1) + gradient(h), 1e-6 * (2 + std::abs(gradient(h))));
}
TEST(AttentionBackward, AddsToTheGradientOfASink) {
  adds_to_the_gradient_of_a_sink<Reference>();
  adds_to_the_gradient_of_a_sink<mha::Cpu>();
}

TEST(AttentionBackward, EqualsDifferenceQuotients) {
  const BackwardSizes n;
  BackwardCase<double> c("quotients", n);
  mha::Tensor<double, 3> d_lse(n.batch, n.heads, n.queries), lse(n.batch, n.heads, n.queries);
  support::Random("d_lse").fill(d_lse);
  std::vector<float> logits{0.5f, -1.f, 2.f, 0.f};
  const mha::Dropout dropout{.p = 0.25f};
  const mha::DropoutSeed seed{support::seed()};
  const auto loss = [&] {
    const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::Causal{}, Bent{}, mha::Sink(logits),
                                               mha::LogSumExp(lse), dropout, seed);
    return support::inner(out, c.d_out) + support::inner(lse, d_lse);
  };
  mha::AttentionTape<double, Reference> tape;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::Causal{}, Bent{}, mha::Sink(logits), mha::record(tape),
                                             dropout, seed);
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::Causal{}, Bent{}, mha::Sink(logits),
                                         mha::LogSumExpGradient(d_lse), dropout, seed);
  const auto expect = [&](auto& x, std::size_t i, double gradient, double h) {
    using E = std::remove_reference_t<decltype(x.data()[i])>;
    const E before = x.data()[i];
    x.data()[i] = static_cast<E>(before + h);
    const double up = loss();
    x.data()[i] = static_cast<E>(before - h);
    const double down = loss();
    x.data()[i] = before;
    EXPECT_NEAR((up - down) / (2 * h), gradient, 1e-6 * (1 + std::abs(gradient)));
  };
  for (std::size_t i = 0; i < c.q.size(); i += 7) expect(c.q, i, g.query.data()[i], 1e-5);
  for (std::size_t i = 0; i < c.k.size(); i += 3) expect(c.k, i, g.key.data()[i], 1e-5);
  for (std::size_t i = 0; i < c.v.size(); i += 5) expect(c.v, i, g.value.data()[i], 1e-5);
  for (std::size_t h = 0; h < logits.size(); ++h) expect(logits, h, g.sink(static_cast<Index>(h)), 0x1p-10);
}

TEST(AttentionBackward, KeepsRowsWhoseLogitsAreFarFromZero) {
  // A log-sum-exp of −10⁹ in float has lost the number of keys.
  BackwardCase<float> c("far", {.batch = 1, .queries = 2, .keys = 6, .heads = 1, .kv_heads = 1});
  for (float& x : c.q) x = 0;
  mha::Tensor<float, 2> bias(2, 6);
  for (float& x : bias) x = -1e9f;
  const auto expect = [&](const auto& g) {
    for (Index k = 0; k < 6; ++k)
      for (Index d = 0; d < 4; ++d)
        EXPECT_NEAR(g.value(0, k, 0, d), (c.d_out(0, 0, 0, d) + c.d_out(0, 1, 0, d)) / 6, 1e-6f);
  };
  expect(c.gradients<Reference>(mha::AdditiveBias{bias}));
  EXPECT_LT(support::FarRows<float>().error<Reference>(), 5e-6);
  EXPECT_LT(support::FarRows<double>().error<Reference>(), 1e-6);
}

TEST(AttentionBackward, EmptyRowsGiveExactlyNothing) {
  BackwardCase<double> c("empty", {.batch = 2, .queries = 6, .keys = 3});  // the first queries see no key
  const auto clean = c.gradients<Reference>(mha::Causal{});
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 3; ++i)
      for (Index h = 0; h < 4; ++h) {
        for (Index d = 0; d < 4; ++d) c.d_out(b, i, h, d) = nan;
        for (Index d = 0; d < 3; ++d) c.q(b, i, h, d) = infinity;
      }
  const auto g = c.gradients<Reference>(mha::Causal{});
  EXPECT_EQ(support::differing(g.query, clean.query), 0u);
  EXPECT_EQ(support::differing(g.key, clean.key), 0u);
  EXPECT_EQ(support::differing(g.value, clean.value), 0u);
  for (Index d = 0; d < 3; ++d) EXPECT_EQ(support::bits(g.query(1, 2, 3, d)), support::bits(0.));
}

TEST(AttentionBackward, HiddenNaNIsInertAndAVisibleOnePropagates) {
  BackwardCase<double> c("nan", {.batch = 1, .queries = 5, .keys = 5});
  const auto clean = c.gradients<Reference>(mha::Causal{});
  c.k(0, 4, 1, 0) = nan;
  c.v(0, 4, 1, 2) = nan;
  const auto g = c.gradients<Reference>(mha::Causal{});
  for (Index i = 0; i < 4; ++i)
    for (Index h = 0; h < 4; ++h)
      for (Index d = 0; d < 3; ++d) EXPECT_EQ(g.query(0, i, h, d), clean.query(0, i, h, d));
  EXPECT_TRUE(std::isnan(g.query(0, 4, 2, 0)));
  EXPECT_TRUE(std::isnan(g.key(0, 0, 1, 0)));  // the last query sees both
  EXPECT_EQ(g.key(0, 0, 0, 0), clean.key(0, 0, 0, 0));
}

TEST(AttentionBackward, WritesWhatIsWantedAndAdds) {
  const BackwardCase<float> c("destinations", {});
  mha::AttentionTape<float, Reference> tape;
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, mha::record(tape));
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape);

  mha::Tensor<float, 4> dk(2, 7, 2, 3);
  for (float& x : dk) x = 2;
  mha::Tensor<float, 4> dv(2, 7, 2, 4);
  support::poison_all(dv);
  mha::attention_backward_into({{}, mha::add_to(dk), dv}, c.d_out, c.q, c.k, c.v, out, tape);
  for (std::size_t i = 0; i < dk.size(); ++i) EXPECT_EQ(dk.data()[i], 2 + g.key.data()[i]);
  EXPECT_EQ(support::differing(dv, g.value), 0u);

  // 16-bit tensors, gradients in either precision, with a layout of its own.
  const BackwardCase<mha::bfloat16> narrow = c.as<mha::bfloat16>();
  mha::AttentionTape<mha::bfloat16, Reference> narrow_tape;
  const auto narrow_out = mha::attention<Reference>(narrow.q, narrow.k, narrow.v, mha::record(narrow_tape));
  mha::Tensor<float, 4> wide(2, 4, 5, 3);
  mha::Tensor<mha::bfloat16, 4> rounded(2, 5, 4, 3);
  const auto by_heads = mha::view_bhld(wide.data(), 2, 4, 5, 3);
  mha::attention_backward_into({by_heads, {}, {}}, narrow.d_out, narrow.q, narrow.k, narrow.v, narrow_out, narrow_tape);
  mha::attention_backward_into({rounded, {}, {}}, narrow.d_out, narrow.q, narrow.k, narrow.v, narrow_out, narrow_tape);
  for (Index i = 0; i < 5; ++i)
    for (Index d = 0; d < 3; ++d)
      EXPECT_EQ(support::bits(rounded(1, i, 2, d)), support::bits(mha::bfloat16(by_heads(1, i, 2, d))));
}

TEST(AttentionBackward, TakesHeadsSequencesAndEigenMatrices) {
  using Matrix = Eigen::MatrixXd;  // column-major
  const BackwardCase<double> c("matrices", {.batch = 1, .heads = 1, .kv_heads = 1});
  const auto expected = c.gradients<Reference>(mha::Causal{});
  const auto matrix = [](const Tensor4& t) {
    Matrix m(t.extent(1), t.extent(3));
    for (Index i = 0; i < t.extent(1); ++i)
      for (Index d = 0; d < t.extent(3); ++d) m(i, d) = t(0, i, 0, d);
    return m;
  };
  const Matrix q = matrix(c.q), k = matrix(c.k), v = matrix(c.v), d_out = matrix(c.d_out);
  mha::AttentionTape<double, Reference> tape;
  const auto out = mha::attention<Reference>(q, k, v, mha::Causal{}, mha::record(tape));
  const auto g = mha::attention_backward(d_out, q, k, v, out, tape, mha::Causal{});
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(g.query)>, std::remove_cvref_t<decltype(out)>>);
  EXPECT_EQ((Matrix(g.query) - matrix(expected.query)).norm(), 0);
  EXPECT_EQ((Matrix(g.key) - matrix(expected.key)).norm(), 0);
  EXPECT_EQ((Matrix(g.value) - matrix(expected.value)).norm(), 0);
}

TEST(AttentionBackward, RaggedSequencesAreSequencesApart) {
  const std::vector<Index> queries{0, 3, 3, 8}, keys{0, 2, 6, 11};
  const BackwardSizes n{.batch = 1, .queries = 8, .keys = 11};
  const BackwardCase<double> c("ragged", n);
  mha::Tensor<double, 3> d_lse(1, 4, 8);
  support::Random("d_lse").fill(d_lse);
  mha::AttentionTape<double, Reference> tape;
  const auto out =
      mha::attention<Reference>(c.q, c.k, c.v, mha::Causal{}, mha::Ragged{queries, keys}, mha::record(tape));
  const auto g = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, mha::Causal{}, mha::Ragged{queries, keys},
                                         mha::LogSumExpGradient(d_lse));
  for (int b = 0; b < 3; ++b) {
    const auto rows = [](const Tensor4& t, Index begin, Index end) {
      Tensor4 part(1, end - begin, t.extent(2), t.extent(3));
      if (part.size() > 0) std::copy_n(&t(0, begin, 0, 0), part.size(), part.data());
      return part;
    };
    const auto q0 = queries[static_cast<std::size_t>(b)], q1 = queries[static_cast<std::size_t>(b) + 1];
    const auto k0 = keys[static_cast<std::size_t>(b)], k1 = keys[static_cast<std::size_t>(b) + 1];
    const Tensor4 q = rows(c.q, q0, q1), k = rows(c.k, k0, k1), v = rows(c.v, k0, k1), d_out = rows(c.d_out, q0, q1);
    mha::Tensor<double, 3> part(1, 4, q1 - q0);
    for (Index h = 0; h < 4; ++h)
      for (Index i = q0; i < q1; ++i) part(0, h, i - q0) = d_lse(0, h, i);
    mha::AttentionTape<double, Reference> own;
    const auto o = mha::attention<Reference>(q, k, v, mha::Causal{}, mha::record(own));
    const auto alone = mha::attention_backward(d_out, q, k, v, o, own, mha::Causal{}, mha::LogSumExpGradient(part));
    EXPECT_EQ(support::differing(rows(g.query, q0, q1), alone.query), 0u);
    EXPECT_EQ(support::differing(rows(g.key, k0, k1), alone.key), 0u);
    EXPECT_EQ(support::differing(rows(g.value, k0, k1), alone.value), 0u);
  }
}

/// A view whose axis of rows, which has one element, has the largest stride there is.
template <class E> mha::TensorView<E, 3> of_one_row(mha::TensorView<E, 3> v) {
  v.stride[0] = std::numeric_limits<std::ptrdiff_t>::max();
  return v;
}
template <class B> void expect_one_row_of_any_stride() {
  SCOPED_TRACE(B::name);
  using Tensor = mha::Tensor<float, 3>;
  for (const Index dim : {3, 64, 70}) {
    Tensor q(1, 2, dim), k = q, v = q, d_out = q, out = q, dq = q, dk = q, dv = q;
    support::Random random("one row");
    for (Tensor* t : {&q, &k, &v, &d_out}) random.fill(*t);
    for (Tensor* t : {&dq, &dk, &dv}) support::poison_all(*t);
    mha::AttentionTape<float, B> tape;
    mha::attention_into<B>(out, q, k, v, mha::record(tape));
    const auto expected = mha::attention_backward(d_out, q, k, v, out, tape);
    mha::attention_backward_into({of_one_row(dq.view()), of_one_row(dk.view()), of_one_row(dv.view())},
                                 of_one_row(std::as_const(d_out).view()), of_one_row(std::as_const(q).view()),
                                 of_one_row(std::as_const(k).view()), of_one_row(std::as_const(v).view()),
                                 of_one_row(std::as_const(out).view()), tape);
    EXPECT_EQ(support::differing(dq, expected.query), 0u) << dim;
    EXPECT_EQ(support::differing(dk, expected.key), 0u) << dim;
    EXPECT_EQ(support::differing(dv, expected.value), 0u) << dim;
  }
}
TEST(AttentionBackward, WalksNoAxisOfOneElement) {
  expect_one_row_of_any_stride<Reference>();
  expect_one_row_of_any_stride<mha::Cpu>();
  expect_one_row_of_any_stride<mha::Systolic<>>();
}

/// Gradients whatever the stride of out's elements: their bits are the same.
template <class B, class T> void expect_the_bits_of_any_out() {
  SCOPED_TRACE(B::name);
  for (const Index dim : {5, 8, 31, 64}) {
    const auto c = BackwardCase<double>("strides of out", {1, 20, 30, 2, 1, dim, dim}).template as<T>();
    mha::AttentionTape<T, B> tape;
    const auto out = mha::attention<B>(c.q, c.k, c.v, mha::record(tape));
    mha::Tensor<T, 4> wide(out.extent(0), out.extent(1), out.extent(2), 2 * dim);
    auto apart = std::as_const(wide).view();
    apart.extent[3] = dim;
    apart.stride[3] = 2;
    for (Index i = 0; i < out.extent(1); ++i)
      for (Index h = 0; h < out.extent(2); ++h)
        for (Index d = 0; d < dim; ++d) wide(0, i, h, 2 * d) = out(0, i, h, d);
    const auto one = mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape);
    const auto other = mha::attention_backward(c.d_out, c.q, c.k, c.v, apart, tape);
    EXPECT_EQ(support::differing(one.query, other.query), 0u) << dim;
    EXPECT_EQ(support::differing(one.key, other.key), 0u) << dim;
  }
}
TEST(AttentionBackward, HasTheBitsOfAnyStrideOfOut) {
  expect_the_bits_of_any_out<mha::Cpu, float>();
  expect_the_bits_of_any_out<mha::Cpu, double>();
  expect_the_bits_of_any_out<mha::Cpu, mha::bfloat16>();
  expect_the_bits_of_any_out<mha::Systolic<>, mha::bfloat16>();
}

TEST(AttentionBackward, SaysWhatDoesNotFitAndWritesNothing) {
  const BackwardCase<double> c("errors", {});
  mha::AttentionTape<double, Reference> tape;
  Tensor4 out(2, 5, 4, 4), dq(2, 5, 4, 3), shorter(2, 5, 4, 2);
  dq(0, 0, 0, 0) = 42;
  const auto message = [&](auto&&... arguments) {
    try {
      mha::attention_backward_into({dq, {}, {}}, arguments...);
    } catch (const mha::ShapeError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, out, tape),
            "attention_backward: nothing was recorded on the tape: give mha::record(tape) to attention()");
  mha::attention_into<Reference>(out, c.q, c.k, c.v, mha::record(tape));
  EXPECT_TRUE(tape.recorded());
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, out, tape, mha::Scale{2.}),
            "attention_backward: the tape is of a call with scale 0.577350269 but this one has 2");
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, shorter, tape),
            "attention_backward: v has head size 4 but out has head size 2");
  EXPECT_EQ(message(shorter, c.q, c.k, c.v, out, tape),
            "attention_backward: v has head size 4 but d_out has head size 2");
  EXPECT_EQ(message(Tensor4(2, 6, 4, 4), c.q, c.k, c.v, out, tape),
            "attention_backward: q has length 5 but d_out has length 6");
  EXPECT_EQ(message(Tensor4(1, 5, 4, 4), c.q, c.k, c.v, out, tape),
            "attention_backward: q has batch 2 but d_out has batch 1");
  EXPECT_EQ(message(Tensor4(2, 5, 2, 4), c.q, c.k, c.v, out, tape),
            "attention_backward: q has 4 heads but d_out has 2");
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, out, tape, mha::Scale{nan}),
            "attention_backward: the scale is " + std::to_string(nan) + ", not finite");
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, out, tape, mha::Scale{infinity}),
            "attention_backward: the scale is inf, not finite");
  const Tensor4 k(2, 6, 2, 3), v(2, 6, 2, 4);
  EXPECT_EQ(message(c.d_out, c.q, k, v, out, tape),
            "attention_backward: the tape is of a call with key length 7 but this one has 6");
  mha::Tensor<double, 3> lse(2, 4, 6);
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, out, tape, mha::LogSumExpGradient(lse)),
            "attention_backward: q has length 5 but LogSumExpGradient has length 6");
  const mha::Tensor<double, 3> empty, no_rows(2, 4, 0);
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, out, tape, mha::LogSumExpGradient(empty)),
            "attention_backward: q has batch 2 but LogSumExpGradient has batch 0");
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, out, tape, mha::LogSumExpGradient(no_rows)),
            "attention_backward: q has length 5 but LogSumExpGradient has length 0");
  EXPECT_EQ(dq(0, 0, 0, 0), 42);
  try {
    mha::attention_backward_into({shorter, {}, {}}, c.d_out, c.q, c.k, c.v, out, tape);
    ADD_FAILURE() << "accepted";
  } catch (const mha::ShapeError& e) {
    EXPECT_STREQ(e.what(), "attention_backward: q has head size 3 but the gradient of q has head size 2");
  }
  Tensor4 none;
  const auto without_elements = [&](const mha::AttentionGradientsTo<double>& to) {
    return support::message_of([&] { mha::attention_backward_into(to, c.d_out, c.q, c.k, c.v, out, tape); });
  };
  EXPECT_EQ(without_elements({none, {}, {}}), "attention_backward: q has batch 2 but the gradient of q has batch 0");
  EXPECT_EQ(without_elements({dq, mha::add_to(none), {}}),
            "attention_backward: k has batch 2 but the gradient of k has batch 0");
  EXPECT_EQ(without_elements({dq, {}, none}), "attention_backward: v has batch 2 but the gradient of v has batch 0");
  EXPECT_EQ(dq(0, 0, 0, 0), 42);
  const Tensor4 narrow(2, 7, 2, 2);
  EXPECT_EQ(message(shorter, c.q, c.k, narrow, shorter, tape),
            "attention_backward: the tape is of a call with value head size 4 but this one has 2");
  EXPECT_EQ(dq(0, 0, 0, 0), 42);
  EXPECT_EQ(message(c.d_out, c.q, c.k, c.v, out, tape), "no error");
}

/// All arrays of a call in one memory, each from an offset of its own on.
struct InOneMemory {
  enum Array { d_query, d_key, d_value, d_bias, d_sink, query, key, value, out, d_out, d_lse, bias, arrays };
  static constexpr const char* name[arrays] = {"the gradient of q",
                                               "the gradient of k",
                                               "the gradient of v",
                                               "BiasGradient",
                                               "SinkGradient",
                                               "q",
                                               "k",
                                               "v",
                                               "out",
                                               "d_out",
                                               "LogSumExpGradient",
                                               "AdditiveBias"};
  static constexpr Index extents[arrays][4] = {{2, 5, 4, 3}, {2, 7, 2, 3}, {2, 7, 2, 4}, {2, 4, 5, 7},
                                               {1, 1, 1, 4}, {2, 5, 4, 3}, {2, 7, 2, 3}, {2, 7, 2, 4},
                                               {2, 5, 4, 4}, {2, 5, 4, 4}, {1, 2, 4, 5}, {2, 4, 5, 7}};

  std::vector<double> memory = std::vector<double>(std::size_t{arrays} * 300);
  std::ptrdiff_t at[arrays];

  InOneMemory() {
    for (int i = 0; i < arrays; ++i) at[i] = 300 * i;
    support::Random("one memory").fill(memory);
  }
  mha::TensorView<double, 4> of(Array i) {
    const auto& e = extents[i];
    return mha::view(memory.data() + at[i], e[0], e[1], e[2], e[3]);
  }
  mha::TensorView<double, 3> rows(Array i) { return mha::view(memory.data() + at[i], 2, 4, 5); }

  template <class... Extra> void forward(mha::AttentionTape<double, Reference>& tape, const Extra&... extra) {
    mha::attention_into<Reference>(of(out), of(query), of(key), of(value), extra..., mha::AdditiveBias(of(bias)), sink,
                                   mha::record(tape));
  }
  void backward(const mha::AttentionTape<double, Reference>& tape) {
    mha::attention_backward_into({of(d_query), mha::add_to(of(d_key)), of(d_value)}, of(d_out), of(query), of(key),
                                 of(value), of(out), tape, mha::AdditiveBias(of(bias)), sink,
                                 mha::LogSumExpGradient(rows(d_lse)), mha::BiasGradient(of(d_bias)),
                                 mha::SinkGradient(mha::view(memory.data() + at[d_sink], 4)));
  }

  mha::Sink sink{{0.5f, -1.f, 2.f, 0.f}};
};

TEST(AttentionBackward, RefusesDestinationsThatOverlapAndWritesNothing) {
  InOneMemory c;
  mha::AttentionTape<double, Reference> tape;
  c.forward(tape);
  for (int written = 0; written <= InOneMemory::d_sink; ++written)
    for (int other = 0; other < InOneMemory::arrays; ++other) {
      if (other == written) continue;
      InOneMemory overlapping = c;
      overlapping.at[written] = overlapping.at[other] + 3;
      const bool first = other > written;
      EXPECT_EQ(support::message_of([&] { overlapping.backward(tape); }),
                std::string("attention_backward: ") + InOneMemory::name[first ? written : other] + " overlaps " +
                    InOneMemory::name[first ? other : written] + ", expected separate memory");
      EXPECT_EQ(overlapping.memory, c.memory);
    }
  InOneMemory tape_over = c;
  for (const double* const of_tape : {tape.level(), tape.sum()}) {
    tape_over.at[InOneMemory::d_query] = of_tape + 39 - tape_over.memory.data();
    EXPECT_EQ(support::message_of([&] { tape_over.backward(tape); }),
              "attention_backward: the gradient of q overlaps the tape, expected separate memory");
  }
  c.backward(tape);
}

TEST(AttentionBackward, RefusesDestinationsThatOverlapThemselves) {
  const BackwardCase<float> c("overlap themselves", {});
  mha::AttentionTape<float> tape;
  const mha::Sink sink({0.5f, -1.f, 2.f, 0.f});
  const auto out = mha::attention(c.q, c.k, c.v, sink, mha::record(tape));
  mha::Tensor<float, 4> memory(2, 7, 4, 4);
  std::fill(memory.begin(), memory.end(), 42.f);
  using To = mha::AttentionGradientsTo<float>;
  const auto message = [&](const To& to, auto&&... extra) {
    return support::message_of(
        [&] { mha::attention_backward_into(to, c.d_out, c.q, c.k, c.v, out, tape, sink, extra...); });
  };
  const char* const axes[] = {"batch", "length", "heads", "head size"};
  const std::string begin = "attention_backward: the gradient of ";
  for (int a = 0; a < 4; ++a) {
    const auto like = [&](const mha::Tensor<float, 4>& x) {
      return support::repeated(mha::view(memory.data(), x.extent(0), x.extent(1), x.extent(2), x.extent(3)), a);
    };
    EXPECT_EQ(message({like(c.q), {}, {}}), support::overlaps_itself(begin + "q", axes[a], c.q.extent(a)));
    EXPECT_EQ(message({{}, like(c.k), {}}), support::overlaps_itself(begin + "k", axes[a], c.k.extent(a)));
    EXPECT_EQ(message({{}, mha::add_to(like(c.k)), {}}), support::overlaps_itself(begin + "k", axes[a], c.k.extent(a)));
    EXPECT_EQ(message({{}, {}, like(c.v)}), support::overlaps_itself(begin + "v", axes[a], c.v.extent(a)));
  }
  EXPECT_EQ(message({}, mha::SinkGradient(support::repeated(mha::view(memory.data(), 4), 0))),
            support::overlaps_itself("attention_backward: SinkGradient", "heads", 4));
  for (const float x : memory) EXPECT_EQ(x, 42.f);
}

TEST(AttentionBackward, RefusesMoreHeadsThanItCountsAndWritesNothing) {
  constexpr Index batch = 1 << 10, heads = 1 << 11;  // which share tiles: the forward pass is short
  const float one = 1;
  const mha::TensorView<const float, 4> q{&one, {batch, 1, heads, 1}, {0, 1, 0, 1}},
      kv{&one, {batch, 1, 1, 1}, {0, 1, 1, 1}};
  mha::Tensor<float, 4> out(batch, 1, heads, 1), bias(batch, 1, 1, 1), d_bias(batch, 1, 1, 1);
  for (float& x : d_bias) x = 42;
  mha::AttentionTape<float> tape;
  mha::attention_into(out, q, kv, kv, mha::AdditiveBias(bias), mha::record(tape));
  EXPECT_EQ(support::message_of([&] {
              mha::attention_backward_into({}, q, q, kv, kv, out, tape, mha::AdditiveBias(bias),
                                           mha::BiasGradient(d_bias));
            }),
            "attention_backward: 2097152 heads in the batch, the limit is 2097151");
  EXPECT_EQ(std::count(d_bias.begin(), d_bias.end(), 42.f), batch);
}

TEST(AttentionBackward, RefusesAForwardPassOverWhatTheTapesBackwardPassReads) {
  InOneMemory c;
  mha::AttentionTape<double, Reference> tape;
  constexpr auto lse = InOneMemory::d_lse, out = InOneMemory::out;
  for (const auto written : {out, lse})
    for (const auto other : {InOneMemory::query, InOneMemory::key, InOneMemory::value, out, InOneMemory::bias}) {
      if (other == written) continue;
      InOneMemory overlapping = c;
      overlapping.at[written] = overlapping.at[other] + 3;
      const auto message = support::message_of([&] {
        if (written == out)
          overlapping.forward(tape);
        else
          overlapping.forward(tape, mha::SoftCap{5.f}, mha::LogSumExp(overlapping.rows(lse)));
      });
      const std::string begin = std::string("attention: ") + (written == out ? "out" : "log-sum-exp") + " overlaps ";
      EXPECT_EQ(message, other == out ? "attention: out overlaps log-sum-exp, expected separate memory"
                         : other == InOneMemory::bias
                             ? begin + "the AdditiveBias, which the backward pass of the tape reads"
                             : begin + InOneMemory::name[other] + ", expected separate memory");
      EXPECT_EQ(overlapping.memory, c.memory);
      EXPECT_FALSE(tape.recorded());
    }
  c.forward(tape, mha::SoftCap{5.f}, mha::LogSumExp(c.rows(lse)));
  EXPECT_TRUE(tape.recorded());
}

TEST(AttentionBackward, RefusesAForwardPassOverTheSink) {
  mha::Tensor<float, 4> q(1, 1, 4, 3), k(1, 5, 4, 3), v(1, 5, 4, 3);
  support::Random random("over the sink");
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  mha::Sink sink({0.5f, -1.f, 2.f, 0.f});
  float* const logits = sink.numbers().data();
  mha::AttentionTape<float, Reference> tape;
  const auto record = [&] {
    const mha::LogSumExp over(mha::view(logits, 1, 4, 1));
    static_cast<void>(mha::attention<Reference>(q, k, v, sink, mha::record(tape), over));
  };
  EXPECT_EQ(support::message_of(record), "attention: log-sum-exp overlaps the Sink, expected separate memory");
  EXPECT_EQ(logits[2], 2.f);
  EXPECT_FALSE(tape.recorded());
}

TEST(AttentionBackward, RefusesAWideDestinationAndPoliciesThatOverlap) {
  const BackwardCase<mha::bfloat16> c("wide", {});
  mha::AttentionTape<mha::bfloat16, Reference> tape;
  mha::Sink sink({0.5f, -1.f, 2.f, 0.f});
  const auto out = mha::attention<Reference>(c.q, c.k, c.v, sink, mha::SoftCap{2.f}, mha::record(tape));
  const auto message = [&](const auto& to, auto&&... extra) {
    return support::message_of(
        [&] { mha::attention_backward_into(to, c.d_out, c.q, c.k, c.v, out, tape, sink, extra...); });
  };
  using To = mha::AttentionGradientsTo<mha::bfloat16>;
  // Its last element begins in front of q and ends in it.
  std::vector<float> memory(400);
  auto* const narrow = reinterpret_cast<mha::bfloat16*>(memory.data()) + 239;
  std::copy(c.q.begin(), c.q.end(), narrow);
  const auto q = mha::view(narrow, 2, 5, 4, 3);
  const To before{mha::view(memory.data(), 2, 5, 4, 3), {}, {}};
  EXPECT_EQ(support::message_of([&] {
              mha::attention_backward_into(before, c.d_out, q, c.k, c.v, out, tape, sink, mha::SoftCap{2.f});
            }),
            "attention_backward: the gradient of q overlaps q, expected separate memory");
  const auto logits = sink.numbers();
  EXPECT_EQ(message(To{}, mha::SoftCap{2.f}, mha::SinkGradient(mha::TensorView<float, 1>{logits.data(), {4}, {1}})),
            "attention_backward: SinkGradient overlaps the Sink, expected separate memory");
  mha::SoftCap cap{2.f};
  EXPECT_EQ(message(To{}, cap, mha::ScoreGradient(cap)),
            "attention_backward: ScoreGradient overlaps the score, expected separate memory");
  EXPECT_EQ(cap.cap, 2.f);
  mha::SoftCap of_cap = cap;
  EXPECT_EQ(message(To{}, cap, mha::ScoreGradient(of_cap)), "");
}

TEST(AttentionBackward, WritesTheColumnsOfOneMatrix) {
  // Queries, keys and values of every row side by side, and behind them their gradients.
  const BackwardCase<float> c("columns", {.queries = 7, .value_dim = 5});
  const auto expected = c.gradients<mha::Cpu>(mha::Causal{});
  constexpr std::ptrdiff_t width = 2 * (4 * 3 + 2 * 3 + 2 * 5);
  std::vector<float> memory(std::size_t{2 * 7 * width});
  std::ptrdiff_t column = 0;
  const auto columns = [&](const mha::Tensor<float, 4>& from) {
    const Index heads = from.extent(2), dim = from.extent(3);
    const mha::TensorView<float, 4> to{
        memory.data() + column, {2, 7, heads, dim}, {7 * width, width, std::ptrdiff_t{dim}, 1}};
    column += heads * dim;
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < 7; ++i)
        for (Index h = 0; h < heads; ++h)
          for (Index d = 0; d < dim; ++d) to(b, i, h, d) = from(b, i, h, d);
    return to;
  };
  const auto q = columns(c.q), k = columns(c.k), v = columns(c.v), dq = columns(c.q), dk = columns(c.k),
             dv = columns(c.v);
  mha::AttentionTape<float> tape;
  const auto out = mha::attention(q, k, v, mha::Causal{}, mha::record(tape));
  mha::attention_backward_into({dq, dk, dv}, c.d_out, q, k, v, out, tape, mha::Causal{});
  const auto expect = [](const mha::TensorView<float, 4>& found, const mha::Tensor<float, 4>& same) {
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < 7; ++i)
        for (Index h = 0; h < found.heads(); ++h)
          for (Index d = 0; d < found.dim(); ++d)
            EXPECT_EQ(support::bits(found(b, i, h, d)), support::bits(same(b, i, h, d)));
  };
  expect(dq, expected.query);
  expect(dk, expected.key);
  expect(dv, expected.value);
  // With two columns for one its last heads lie over the gradients of k.
  mha::TensorView<float, 4> wider = dq;
  wider.stride[3] = 2;
  EXPECT_EQ(support::message_of([&] {
              mha::attention_backward_into({wider, dk, dv}, c.d_out, q, k, v, out, tape, mha::Causal{});
            }),
            "attention_backward: the gradient of q overlaps the gradient of k, expected separate memory");
}

TEST(AttentionBackward, NothingOverlapsAnEmptyTensor) {
  double memory[64] = {};
  const auto none = mha::view(memory, 1, 0, 2, 3), queries = mha::view(memory, 1, 4, 2, 3);
  std::vector<double> rows(24);
  const auto out = mha::view(rows.data(), 1, 4, 2, 3);
  mha::AttentionTape<double, Reference> tape;
  mha::attention_into<Reference>(out, queries, none, none, mha::record(tape));
  std::vector<double> dq(24, nan);
  mha::attention_backward_into({mha::view(dq.data(), 1, 4, 2, 3), none, none}, out, queries, none, none, out, tape);
  EXPECT_EQ(dq, std::vector<double>(24));
}

TEST(AttentionBackward, EmptyTensorsAreNoError) {
  for (const BackwardSizes n : {BackwardSizes{.batch = 0}, BackwardSizes{.queries = 0}, BackwardSizes{.keys = 0},
                                BackwardSizes{.value_dim = 0}}) {
    const BackwardCase<double> c("no elements", n);
    const auto g = c.gradients<Reference>();
    for (const double x : g.query) EXPECT_EQ(x, 0);
    for (const double x : g.key) EXPECT_EQ(x, 0);
    for (const double x : g.value) EXPECT_EQ(x, 0);
  }
}

TEST(AttentionBackward, KeysThatNoHeadReadsHaveTheGradientZero) {
  const BackwardCase<double> c("no heads", {.heads = 0, .kv_heads = 2});
  const auto expect = [&]<class B>(const B&) {
    mha::AttentionTape<double, B> tape;
    const auto out = mha::attention<B>(c.q, c.k, c.v, mha::record(tape));
    Tensor4 dk(2, 7, 2, 3), dv(2, 7, 2, 4), sum(2, 7, 2, 3);
    support::poison_all(dk);
    support::poison_all(dv);
    for (double& x : sum) x = -0.;
    mha::attention_backward_into({{}, dk, dv}, c.d_out, c.q, c.k, c.v, out, tape);
    for (const double x : dk) EXPECT_EQ(support::bits(x), support::bits(0.));
    for (const double x : dv) EXPECT_EQ(support::bits(x), support::bits(0.));
    mha::attention_backward_into({{}, mha::add_to(sum), {}}, c.d_out, c.q, c.k, c.v, out, tape);
    for (const double x : sum) EXPECT_EQ(support::bits(x), support::bits(-0.));
  };
  expect(Reference{});
  expect(mha::Cpu{});
}

}  // namespace
