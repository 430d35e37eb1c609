// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/alibi_slopes.hpp>

#include "../finite_difference.hpp"

namespace {

using mha::AlibiSlopes;

TEST(AlibiSlopes, TakesTheDistanceAwayAtTheRateOfTheHead) {
  const AlibiSlopes score({0.5f, -2.f});
  const auto ready = score.prepared({.batch = 1, .heads = 2, .queries = 4, .keys = 6, .origin = 2});
  for (int q = 0; q < 6; ++q)
    for (int k = 0; k < 6; ++k) {
      EXPECT_EQ(score(1.0, 0, 0, q, k), 1 - 0.5 * std::abs(q - k));
      EXPECT_EQ(score(1.0, 0, 1, q, k), 1 + 2. * std::abs(q - k));
      for (int h = 0; h < 2; ++h) {
        EXPECT_EQ(ready(1.0, 0, h, q, k), score(1.0, 0, h, q, k));
        EXPECT_EQ(mha::at_head(ready, 0, h)(1.f, 0, h, q, k), float(score(1.0, 0, h, q, k)));
      }
    }
}

TEST(AlibiSlopes, MultipliesInTheScalarOfTheLogit) {
  const AlibiSlopes score({0.1f});  // 0.1f · 37 has more digits than a float
  const auto ready = score.prepared({.batch = 1, .heads = 1, .queries = 40, .keys = 40});
  EXPECT_EQ(score(1., 0, 0, 39, 2), 1 - double(0.1f) * 37);
  EXPECT_EQ(ready(1., 0, 0, 39, 2), 1 - double(0.1f) * 37);
  EXPECT_EQ(score(1.L, 0, 0, 39, 2), 1 - static_cast<long double>(0.1f) * 37);
  using D = mha::Dual<double, 1>;
  const D at_slope = score(D::variable(1.), 0, 0, 39, 2);
  EXPECT_EQ(at_slope.value, 1 - double(0.1f) * 37);
  EXPECT_EQ(at_slope.derivative[0], 1);
  const D by_slope = mha::at_head(ready, 0, 0).shifted(std::array{D::variable(0.)})(D(1.), 0, 0, 39, 2);
  EXPECT_EQ(by_slope.value, 1 - double(0.1f) * 37);
  EXPECT_EQ(by_slope.derivative[0], -37);
}

TEST(AlibiSlopes, TakesDistancesThatAFloatRounds) {
  constexpr int far = (1 << 24) + 1;
  const AlibiSlopes score({1.f});
  const auto head = mha::at_head(score.prepared({.batch = 1, .heads = 1, .queries = 1, .keys = far + 1}), 0, 0);
  EXPECT_EQ(score(0., 0, 0, far, 0), -16777217.);
  EXPECT_EQ(score(0.f, 0, 0, far, 0), -16777216.f);
  using D = mha::Dual<double, 1>;
  const D by_slope = head.shifted(std::array{D::variable(0.)})(D(0.), 0, 0, far, 0);
  EXPECT_EQ(by_slope.value, -16777217.);
  EXPECT_EQ(by_slope.derivative[0], -16777217.);
}

TEST(AlibiSlopes, OfThePaperAreAlibi) {
  std::vector<float> slopes;
  for (int h = 0; h < 12; ++h) slopes.push_back(static_cast<float>(mha::Alibi::slope(h, 12)));
  const AlibiSlopes score(slopes);
  for (int h = 0; h < 12; ++h) EXPECT_EQ(score(0.3f, 0, h, 40, 3), mha::Alibi{12}(0.3f, 0, h, 40, 3));
}

TEST(AlibiSlopes, RefusesAnotherNumberOfSlopesAndWhatIsNotFinite) {
  const auto message = [](const AlibiSlopes& score) {
    try {
      static_cast<void>(score.prepared({.batch = 1, .heads = 3, .queries = 4, .keys = 6, .origin = 2}));
    } catch (const mha::ShapeError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(AlibiSlopes({1, 2})), "AlibiSlopes: 2 slopes for 3 heads");
  EXPECT_EQ(message(AlibiSlopes({1, std::numeric_limits<float>::infinity(), 2})),
            "AlibiSlopes: the slope of head 1 is inf, not finite");
  EXPECT_EQ(message(AlibiSlopes({1, 0, 2})), "no error");
}

TEST(AlibiSlopes, IsAScoreWhosePreparedFormIsPlainData) {
  static_assert(mha::Score<AlibiSlopes> && mha::Score<AlibiSlopes::Prepared> && mha::Score<AlibiSlopes::OfHead>);
  static_assert(std::is_trivially_copyable_v<AlibiSlopes::Prepared>);
  mha_test::expect_derivatives(AlibiSlopes(std::vector<float>(16, 0.5f)));
}

}  // namespace
