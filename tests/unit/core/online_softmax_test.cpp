// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/online_softmax.hpp>

namespace {

using mha::merge_weights;
using mha::OnlineSoftmax;

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// log Σ exp(s) and the weighted mean of the values, as the formulas are written, in long double.
struct Direct {
  long double log_sum_exp, mean;
};
Direct direct(const std::vector<double>& logits, const std::vector<double>& values) {
  long double max = -inf, sum = 0, mean = 0;
  for (const double s : logits) max = std::max(max, static_cast<long double>(s));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const long double e = std::exp(logits[i] - max);
    sum += e;
    mean += e * values[i];
  }
  return {max + std::log(sum), mean / sum};
}

struct Row {
  OnlineSoftmax<double> state;
  double accumulated = 0;
  void add(double logit, double value) {
    const auto step = state.add(logit);
    accumulated = accumulated * step.rescale + value * step.weight;
  }
};

TEST(OnlineSoftmax, IsTheDirectFormulaForAnyOrderOfLogits) {
  std::mt19937 bits(7);
  std::normal_distribution<double> normal(0, 20);
  for (int n = 1; n < 60; ++n) {
    std::vector<double> logits, values;
    Row row;
    for (int i = 0; i < n; ++i) {
      logits.push_back(normal(bits));
      values.push_back(normal(bits));
      row.add(logits.back(), values.back());
    }
    const Direct expected = direct(logits, values);
    EXPECT_NEAR(row.state.log_sum_exp(), static_cast<double>(expected.log_sum_exp), 1e-12 * 60);
    EXPECT_NEAR(row.accumulated / row.state.sum, static_cast<double>(expected.mean), 1e-11);
    EXPECT_EQ(row.state.max, *std::max_element(logits.begin(), logits.end()));
  }
}

TEST(OnlineSoftmax, IsEmptyUntilAVisibleLogit) {
  OnlineSoftmax<float> state;
  EXPECT_TRUE(state.empty());
  for (int i = 0; i < 3; ++i) {
    const auto step = state.add(mha::minus_infinity<float>());
    EXPECT_EQ(step.weight, 0.f);
    EXPECT_EQ(step.rescale, 1.f);
  }
  EXPECT_TRUE(state.empty());
  EXPECT_EQ(state.log_sum_exp(), mha::minus_infinity<float>());
  const auto step = state.add(2.f);
  EXPECT_FALSE(state.empty());
  EXPECT_EQ(step.weight, 1.f);
  EXPECT_EQ(step.rescale, 0.f) << "what an empty row accumulated is forgotten, whatever it is";
  EXPECT_EQ(state.log_sum_exp(), 2.f);
}

TEST(OnlineSoftmax, AHiddenLogitChangesNothing) {
  Row row;
  row.add(0.25, 3);
  row.add(-0.5, -2);
  const Row before = row;
  row.add(-inf, 1e300);
  EXPECT_EQ(row.state.max, before.state.max);
  EXPECT_EQ(row.state.sum, before.state.sum);
  EXPECT_EQ(row.accumulated, before.accumulated);
}

TEST(OnlineSoftmax, HugeFiniteLogitsAreNumbers) {
  OnlineSoftmax<float> state;
  for (int i = 0; i < 4; ++i) state.add(-1e38f);
  EXPECT_FALSE(state.empty());
  EXPECT_EQ(state.sum, 4.f);
  EXPECT_FLOAT_EQ(state.log_sum_exp(), -1e38f);
  OnlineSoftmax<float> lowest;
  lowest.add(std::numeric_limits<float>::lowest());
  EXPECT_FALSE(lowest.empty());
  EXPECT_EQ(lowest.sum, 1.f);
  const auto step = lowest.add(1e38f);
  EXPECT_EQ(step.rescale, 0.f);
  EXPECT_EQ(lowest.sum, 1.f);
  EXPECT_EQ(lowest.log_sum_exp(), 1e38f);
}

TEST(OnlineSoftmax, ANanStaysWhereverItStands) {
  const double logits[3] = {1, 5, -2};
  for (int at = 0; at < 4; ++at) {
    OnlineSoftmax<double> state;
    for (int i = 0; i < 4; ++i) state.add(i == at ? nan : logits[i > at ? i - 1 : i]);
    EXPECT_TRUE(std::isnan(state.sum)) << at;
    EXPECT_TRUE(std::isnan(state.log_sum_exp())) << at;
    EXPECT_FALSE(state.empty()) << at;
  }
  OnlineSoftmax<double> only;
  only.add(nan);
  only.add(-inf);
  EXPECT_FALSE(only.empty());
  EXPECT_TRUE(std::isnan(only.log_sum_exp()));
}

TEST(OnlineSoftmax, WorksOnDualNumbers) {
  using D = mha::Dual<double>;
  OnlineSoftmax<D> state;
  state.add(D(0.5));
  state.add(D::variable(0.2));
  state.add(D(-1));
  // d log Σ exp / d s_i is the softmax weight of s_i, whatever the maximum was meanwhile.
  const double weight = std::exp(0.2) / (std::exp(0.5) + std::exp(0.2) + std::exp(-1.));
  EXPECT_NEAR(state.log_sum_exp().derivative[0], weight, 1e-15);
}

TEST(MergeWeights, JoinPartsToTheWhole) {
  std::mt19937 bits(3);
  std::normal_distribution<double> normal(0, 30);
  for (int trial = 0; trial < 200; ++trial) {
    const double a = normal(bits), b = normal(bits);
    const auto w = merge_weights(a, b);
    const long double lse = std::log(std::exp(static_cast<long double>(a)) + std::exp(static_cast<long double>(b)));
    EXPECT_NEAR(w.log_sum_exp, static_cast<double>(lse), 1e-12);
    EXPECT_NEAR(w.first, static_cast<double>(std::exp(a - lse)), 1e-13);
    EXPECT_NEAR(w.second, static_cast<double>(std::exp(b - lse)), 1e-13);
    EXPECT_NEAR(w.first + w.second, 1, 1e-15);
  }
}

TEST(MergeWeights, SplitRowsAtEveryKey) {
  const std::vector<double> logits{0.3, -4, 11, 2, -inf, 7.5}, values{1, 2, 3, 4, 5, 6};
  const Direct whole = direct(logits, values);
  for (std::size_t cut = 0; cut <= logits.size(); ++cut) {
    Row part[2];
    for (std::size_t i = 0; i < logits.size(); ++i) part[i < cut ? 0 : 1].add(logits[i], values[i]);
    const auto w = merge_weights(part[0].state.log_sum_exp(), part[1].state.log_sum_exp());
    const auto mean = [](const Row& r) { return r.state.empty() ? 0 : r.accumulated / r.state.sum; };
    EXPECT_NEAR(w.first * mean(part[0]) + w.second * mean(part[1]), static_cast<double>(whole.mean), 1e-14) << cut;
    EXPECT_NEAR(w.log_sum_exp, static_cast<double>(whole.log_sum_exp), 1e-14) << cut;
  }
}

TEST(MergeWeights, AnEmptyPartIsNeutral) {
  const auto left = merge_weights(-inf, 3.25), right = merge_weights(3.25, -inf), both = merge_weights(-inf, -inf);
  EXPECT_EQ(left.first, 0);
  EXPECT_EQ(left.second, 1);
  EXPECT_EQ(left.log_sum_exp, 3.25);
  EXPECT_EQ(right.first, 1);
  EXPECT_EQ(right.second, 0);
  EXPECT_EQ(right.log_sum_exp, 3.25);
  EXPECT_EQ(both.first, 0);
  EXPECT_EQ(both.second, 0);
  EXPECT_EQ(both.log_sum_exp, -inf);
}

TEST(MergeWeights, HugeFinitePartsAreNumbersAndNanStays) {
  const auto low = merge_weights(-1e38f, -1e38f);
  EXPECT_EQ(low.first, 0.5f);
  EXPECT_EQ(low.second, 0.5f);
  EXPECT_FLOAT_EQ(low.log_sum_exp, -1e38f);
  const auto far = merge_weights(-1e38f, 1e38f);
  EXPECT_EQ(far.first, 0.f);
  EXPECT_EQ(far.second, 1.f);
  for (const auto& w : {merge_weights(nan, 1.0), merge_weights(1.0, nan), merge_weights(nan, -inf)}) {
    EXPECT_TRUE(std::isnan(w.log_sum_exp));
    EXPECT_TRUE(std::isnan(w.first));
  }
}

}  // namespace
