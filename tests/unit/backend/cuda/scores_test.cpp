// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/backend/cuda/scores.hpp>
#include <mha/policy/score/softcap.hpp>

namespace {

using namespace mha;
using cuda::HeadLogits;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// What HeadLogits needs of a machine.
struct Maths {
  template <class T> T exp2(T x) const { return std::exp2(x); }
  template <class T> T log(T x) const { return std::log(x); }
  template <class T> T fma(T a, T b, T c) const { return std::fma(a, b, c); }
};

/// Hides by its indices; adds them up.
struct Odd {
  bool operator()(Index b, Index h, Index q, Index k) const { return (b + h + q + k) % 2 == 1; }
};
struct Places {
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    return s + T(1000 * b + 100 * h + 10 * q + k);
  }
};

template <class T, class M, class S> auto make_call(const M& mask, const S& score, Accumulator<T> scale) {
  AttendCall<T, ContiguousKv<T>, M, S> call{{}, {}, mask, score, {}, {}, {2, 4, 3, 5, 7}};
  call.kv.key.extent[1] = call.shape.keys;  // the source tells the lengths
  call.kv_heads = 2;
  call.scale = scale;
  return call;
}

TEST(HeadLogits, FoldAPositiveScaleIntoTheExponent) {
  Maths m;
  const auto call = make_call<float>(Full{}, NoScore{}, 0.25f);
  const HeadLogits logits(call, 1, 2);
  EXPECT_EQ(logits.logit(8.f, 0, 0), 8.f);
  const float shift = logits.shift(8.f);
  EXPECT_NEAR(logits.exponent(m, 4.f, shift), -std::log2(std::exp(1.0)), 1e-6);
  EXPECT_NEAR(logits.log_sum_exp(m, 8.f, 3.f), 2 + std::log(3.0), 1e-6);
}

TEST(HeadLogits, MultiplyFirstWhereAScaleKeepsNoMaximum) {
  Maths m;
  for (const double scale : {0.0, -2.0}) {
    const auto call = make_call<double>(Full{}, NoScore{}, scale);
    const HeadLogits logits(call, 0, 0);
    const double a = logits.logit(3., 0, 0), b = logits.logit(5., 0, 0), top = std::max(a, b);
    EXPECT_EQ(a, scale * 3);
    const double shift = logits.shift(top);
    EXPECT_EQ(logits.exponent(m, -double(inf), shift), -double(inf));
    EXPECT_NEAR(std::exp2(logits.exponent(m, b, shift) - logits.exponent(m, a, shift)), std::exp(2 * scale), 1e-12);
    EXPECT_NEAR(logits.log_sum_exp(m, top, 1.), top, 1e-12);
  }
}

TEST(HeadLogits, MultiplyFirstWhereTheFoldedScaleWouldBeInfinite) {
  Maths m;
  const auto call = make_call<float>(Full{}, NoScore{}, std::numeric_limits<float>::max());
  const HeadLogits logits(call, 0, 0);
  const float none = logits.logit(0.f, 0, 0), some = logits.logit(1e-38f, 0, 0);  // some is 3.4
  const float shift = logits.shift(some);
  EXPECT_NEAR(logits.exponent(m, some, shift) - logits.exponent(m, none, shift), 3.40282347 * std::log2(std::exp(1.0)),
              1e-5);
  EXPECT_NEAR(logits.log_sum_exp(m, some, 2.f), 3.40282347 + std::log(2.0), 1e-5);
}

TEST(HeadLogits, AskPoliciesByPositionOnlyInsideTheCall) {
  const auto call = make_call<float>(Odd{}, Places{}, 2.f);
  const HeadLogits logits(call, 1, 3);
  EXPECT_EQ(logits.logit(0.5f, 2, 4), 1 + 1000 + 300 + 90 + 4);
  EXPECT_EQ(logits.visible_logit(0.5f, 2, 4), 1 + 1000 + 300 + 90 + 4);  // 1 + 3 + 9 + 4 is odd
  EXPECT_EQ(logits.visible_logit(0.5f, 2, 3), -inf);
  EXPECT_EQ(logits.visible_logit(nan, 2, 3), -inf);
  EXPECT_EQ(logits.visible_logit(0.5f, 3, 3), -inf);  // beyond the rows, though 1 + 3 + 10 + 3 is odd
  EXPECT_EQ(logits.visible_logit(0.5f, 1, 5), -inf);  // beyond the keys
  EXPECT_EQ(logits.visibility(0, 3, 0, 5), TileVisibility::partial);
}

TEST(HeadLogits, SubtractBeforeMultiplyingUnderAScore) {
  Maths m;
  const auto call = make_call<float>(Full{}, SoftCap{.cap = 1e30f}, 1.f);
  const HeadLogits logits(call, 0, 0);
  const float top = -1e9f, shift = logits.shift(top);
  EXPECT_EQ(logits.exponent(m, top, shift), 0.f);
  EXPECT_NEAR(logits.exponent(m, top - 64, shift), -64 * std::log2(std::exp(1.0)), 1e-4);
  EXPECT_EQ(logits.log_sum_exp(m, top, 1.f), top);
}

TEST(HeadLogits, AddTheSinkOfTheHeadToTheDenominatorOnly) {
  Maths m;
  const float sinks[4] = {0.f, -inf, 2.f, 500.f};
  auto folded = make_call<float>(Full{}, NoScore{}, 0.5f);
  auto scored = make_call<float>(Full{}, SoftCap{.cap = 1e30f}, 0.5f);
  EXPECT_EQ(HeadLogits(folded, 0, 2).denominator(m, 2.f, 3.f), 3.f);
  folded.sink = scored.sink = Borrowed<float>(sinks, 4);
  EXPECT_NEAR(HeadLogits(folded, 0, 2).denominator(m, 2.f, 3.f), 3 + std::exp(1.0), 1e-5);  // the top logit is 1
  EXPECT_NEAR(HeadLogits(scored, 0, 2).denominator(m, 1.f, 3.f), 3 + std::exp(1.0), 1e-5);
  EXPECT_EQ(HeadLogits(folded, 0, 1).denominator(m, 2.f, 3.f), 3.f);
  EXPECT_EQ(HeadLogits(folded, 0, 3).denominator(m, 2.f, 3.f), inf);
  EXPECT_NEAR(HeadLogits(folded, 0, 2).log_sum_exp(m, 2.f, 3.f), 1 + std::log(3.0), 1e-6);
}

TEST(HeadLogits, TellAnEmptyRowFromNaN) {
  Maths m;
  const auto call = make_call<float>(Full{}, NoScore{}, 0.5f);
  using Logits = HeadLogits<std::remove_const_t<decltype(call)>>;
  EXPECT_TRUE(Logits::empty(-inf, 0.f));
  EXPECT_FALSE(Logits::empty(-inf, nan));  // all that was seen is NaN
  EXPECT_FALSE(Logits::empty(-700.f, 0.f));
  const Logits logits(call, 0, 0);
  EXPECT_EQ(logits.log_sum_exp(m, -inf, 0.f), -inf);
  EXPECT_TRUE(std::isnan(logits.log_sum_exp(m, -inf, nan)));
  EXPECT_EQ(logits.shift(-inf), 0.f);
  EXPECT_EQ(logits.exponent(m, -inf, 0.f), -inf);
}

}  // namespace
