// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/pairs.hpp>
#include <mha/call.hpp>
#include <mha/policy/score/alibi.hpp>

namespace {

using mha::Index;
using mha::detail::eigen::Array;
constexpr double infinity = std::numeric_limits<double>::infinity();

struct Halved {
  template <class T> T operator()(T s, Index, Index h, Index, Index) const { return s / T(2 + h); }
};

/// Rows [3, 3 + count) of head 1 of sequence 1, whose first query is at 20.
template <class M, class S> auto call_of(const M& mask, const S& score) {
  mha::AttendCall<double, mha::ContiguousKv<double>, M, S> call{};
  call.mask = mask;
  call.score = score;
  static constexpr Index origins[] = {0, 20};
  call.shape = {2, 3, 9, 40, mha::Origins(origins)};
  return call;
}

TEST(EigenPairs, AreScoredAndMaskedInColumns) {
  const auto call = call_of(mha::Causal{}, Halved{});
  const mha::detail::eigen::HeadRows<std::remove_const_t<decltype(call)>> rows{call, 1, 1, 3, 2};
  EXPECT_EQ(rows.position(1), 24);
  EXPECT_EQ(rows.seen(0, 24), mha::TileVisibility::full);
  EXPECT_EQ(rows.seen(25, 40), mha::TileVisibility::none);
  for (const Index asked : {1, 2, 8}) {
    std::vector<double> s(20, 6.);  // two columns of keys [20, 28), ten apart
    rows.score_and_mask(s.data(), 10, 20, 28, asked);
    for (Index i = 0; i < 2; ++i)
      for (Index k = 20; k < 30; ++k) {
        const double expected = k >= 28 ? 6. : k <= 23 + i ? 2. : -infinity;
        EXPECT_EQ(s[static_cast<std::size_t>(10 * i + k - 20)], expected) << i << " " << k;
      }
  }
}

/// Keys [27, 31) of queries from 24 on, and no word of tiles.
struct Few {
  bool operator()(Index, Index, Index q, Index k) const { return q >= 24 && k >= 27 && k < 31; }
};
TEST(EigenPairs, AreAskedForWhereAMaskDoesNotSpeakOfTiles) {
  const auto call = call_of(Few{}, mha::NoScore{});
  const mha::detail::eigen::HeadRows<std::remove_const_t<decltype(call)>> both{call, 1, 1, 3, 2},
      late{call, 1, 1, 4, 5};
  EXPECT_EQ(both.seen(24, 27), mha::TileVisibility::none);
  EXPECT_EQ(both.seen(31, 40), mha::TileVisibility::none);
  EXPECT_EQ(both.seen(27, 31), mha::TileVisibility::partial);
  EXPECT_EQ(late.seen(27, 31), mha::TileVisibility::full);
  EXPECT_EQ(late.seen(26, 31), mha::TileVisibility::partial);
  EXPECT_EQ(late.seen(27, 32), mha::TileVisibility::partial);
  EXPECT_EQ(late.seen(0, 27), mha::TileVisibility::none);
}

TEST(EigenPairs, DropWhatTheCallsDrawsSay) {
  auto call = call_of(mha::Full{}, mha::NoScore{});
  call.dropout = {5, 1, 1u << 30, 4. / 3};
  const mha::detail::eigen::HeadRows<decltype(call)> rows{call, 1, 1, 3, 2};
  for (const Index begin : {0, 1, 6, 7}) {
    std::vector<double> factors(12, -1.);
    rows.dropout_factors(1, begin, 11, factors.data());
    for (Index k = 0; k < 11; ++k)
      EXPECT_EQ(factors[static_cast<std::size_t>(k)], call.dropout_factor(1, 1, 4, begin + k)) << begin << " " << k;
    EXPECT_EQ(factors[11], -1.);
  }
}

template <class A> void expect_weights() {
  const A nan = std::numeric_limits<A>::quiet_NaN(), hidden = -std::numeric_limits<A>::infinity();
  std::vector<A> s{hidden, -3, 0.5, nan, -200, 0.25, -1, -2, -0.125};
  const std::vector<A> logits = s;
  mha::detail::eigen::weigh<A>(Array<A>(s.data(), 9), A(0.5));
  for (std::size_t i = 0; i < 9; ++i)
    if (std::isnan(logits[i]))
      EXPECT_TRUE(std::isnan(s[i]));
    else
      EXPECT_NEAR(double(s[i]), std::exp(double(logits[i]) - 0.5), 4 * double(std::numeric_limits<A>::epsilon())) << i;
  EXPECT_EQ(s[0], A(0));
  s = {hidden, nan, hidden};
  mha::detail::eigen::weigh<A>(Array<A>(s.data(), 3), hidden);
  EXPECT_EQ(s[0], A(0));
  EXPECT_TRUE(std::isnan(s[1]));
}
TEST(EigenPairs, WeighByTheExponential) {
  expect_weights<float>();
  expect_weights<double>();
}

}  // namespace
