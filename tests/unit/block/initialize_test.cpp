// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/initialize.hpp>
#include <mha/layer/parameters.hpp>
#include <mha/layer/policies.hpp>

#include "message_of.hpp"

namespace {

using mha::XavierUniform;
using mha::detail::PoliciesByRole;

template <class Projection>
using Parameters = mha::Parameters<double, PoliciesByRole<Projection, mha::QkNorm, mha::GatedHeads>>;

template <class Projection> Parameters<Projection> drawn(const XavierUniform& draw) {
  Parameters<Projection> p(mha::detail::completed<mha::GroupedQuery<2>>(
      {.d_model = 96, .num_heads = 8, .head_dim = 16, .value_dim = 24, .kv_model = 80, .bias = true}));
  const auto views = p.writable();
  std::fill(views.flat().begin(), views.flat().end(), 7.);  // what was there before must not shine through
  draw(views);
  return p;
}

template <class Matrix> std::vector<double> numbers(const Matrix& m) {
  std::vector<double> all;
  for (int i = 0; i < m.extent[0]; ++i)
    for (int j = 0; j < m.extent[1]; ++j) all.push_back(m(i, j));
  return all;
}

TEST(XavierUniform, StaysInRangeFillsItAndIsCentred) {
  const auto own = drawn<mha::FusedProjection>({.seed = 1});
  const auto p = own.views();
  for (const auto& m : {p.query.matrix(), p.key.matrix(), p.value.matrix(), p.output.matrix()}) {
    const std::vector<double> x = numbers(m);
    const double n = double(x.size()), limit = std::sqrt(6. / (m.extent[0] + m.extent[1]));
    double sum = 0, squares = 0, largest = 0;
    for (const double v : x) {
      sum += v;
      squares += v * v;
      largest = std::max(largest, std::abs(v));
    }
    EXPECT_LE(largest, limit);
    EXPECT_GT(largest, 0.99 * limit);
    // Five standard deviations of the estimates: the seed is fixed, so this holds or never does.
    const double deviation = limit / std::sqrt(3.);
    EXPECT_NEAR(sum / n, 0, 5 * deviation / std::sqrt(n));
    EXPECT_NEAR(squares / n, deviation * deviation, 5 * deviation * deviation / std::sqrt(n));
  }
}

TEST(XavierUniform, BiasesAreZero) {
  const auto own = drawn<mha::FusedProjection>({.seed = 1});
  const auto p = own.views();
  for (const auto& b : {p.query.bias_row(), p.key.bias_row(), p.value.bias_row(), p.output.bias})
    for (int i = 0; i < b.extent[0]; ++i) EXPECT_EQ(b(i), 0.);
}

TEST(XavierUniform, NormsAndGatesAreOne) {
  const auto own = drawn<mha::FusedProjection>({.seed = 1});
  const auto p = own.views();
  EXPECT_EQ(p.query_norm.extent[0] + p.key_norm.extent[0] + p.gate.extent[0], 16 + 16 + 8);
  for (const auto& v : {p.query_norm, p.key_norm, p.gate})
    for (int i = 0; i < v.extent[0]; ++i) EXPECT_EQ(v(i), 1.);
}

TEST(XavierUniform, FusedAndPerHeadGetTheSameWeights) {
  const auto fused = drawn<mha::FusedProjection>({.seed = 5});
  const auto per_head = drawn<mha::PerHeadProjection>({.seed = 5});
  const auto a = fused.views(), b = per_head.views();
  for (int h = 0; h < 8; ++h) EXPECT_EQ(numbers(a.query.head(h)), numbers(b.query.head(h)));
  for (int h = 0; h < 2; ++h) {
    EXPECT_EQ(numbers(a.key.head(h)), numbers(b.key.head(h)));
    EXPECT_EQ(numbers(a.value.head(h)), numbers(b.value.head(h)));
  }
  EXPECT_EQ(numbers(a.output.matrix()), numbers(b.output.matrix()));
}

TEST(XavierUniform, TheSeedDecides) {
  const auto first = drawn<mha::FusedProjection>({.seed = 5}), again = drawn<mha::FusedProjection>({.seed = 5}),
             other = drawn<mha::FusedProjection>({.seed = 6});
  const auto a = first.views().flat(), b = again.views().flat(), c = other.views().flat();
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
  EXPECT_FALSE(std::equal(a.begin(), a.end(), c.begin()));
}

// The generator is specified to the bit, and the conversion is exact: these are everybody's numbers.
TEST(XavierUniform, TheNumbersAreTheSameEverywhere) {
  const auto own = drawn<mha::FusedProjection>({.seed = 5489});
  const double unit = static_cast<double>(14514284786278117030ULL >> 11) * 0x1p-53;  // mt19937_64's first
  EXPECT_EQ(own.views().query.matrix()(0, 0), (2 * unit - 1) * std::sqrt(6. / (96 + 128)));
}

TEST(XavierUniform, GainStretchesTheRange) {
  const auto one = drawn<mha::FusedProjection>({.seed = 3}), four = drawn<mha::FusedProjection>({.seed = 3, .gain = 4});
  const auto a = one.views().output.matrix(), b = four.views().output.matrix();
  EXPECT_NE(a(0, 0), 0);
  for (int i = 0; i < a.extent[0]; ++i)
    for (int j = 0; j < a.extent[1]; ++j) EXPECT_EQ(4 * a(i, j), b(i, j));
}

TEST(XavierUniform, RefusesAGainThatIsNotFinite) {
  auto own = drawn<mha::FusedProjection>({.seed = 3});
  const auto refusal = [&](double gain) {
    return support::message_of<mha::ShapeError>([&] { XavierUniform{.seed = 4, .gain = gain}(own.writable()); });
  };
  const double first = own.views().query.matrix()(0, 0);
  EXPECT_EQ(refusal(std::nan("")), "XavierUniform: gain is nan, not finite");
  EXPECT_EQ(refusal(INFINITY), "XavierUniform: gain is inf, not finite");
  EXPECT_EQ(own.views().query.matrix()(0, 0), first) << "nothing is written";
  std::vector<double> numbers{1, 2};
  const mha::LinearViews<double> linear{mha::view(numbers.data(), 1, 2), {}, {}, {}, numbers};
  EXPECT_THROW((XavierUniform{.gain = INFINITY}(linear)), mha::ShapeError);
  EXPECT_EQ(numbers[0], 1);
}

TEST(XavierUniform, WithoutOutputMatrix) {
  mha::Parameters<float, PoliciesByRole<mha::NoOutput>> p(
      mha::detail::completed<mha::MultiHead>({.d_model = 8, .num_heads = 2}));
  XavierUniform{.seed = 2}(p.writable());
  EXPECT_EQ(p.size(), 3 * 64);
  for (const float x : p.views().flat()) EXPECT_NE(x, 0.f);
}

}  // namespace
