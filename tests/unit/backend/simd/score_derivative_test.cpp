// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/score_derivative.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/relative_bias.hpp>
#include <mha/policy/score/softcap.hpp>

#include "levels.hpp"

namespace {

using mha::Index;
namespace simd = mha::detail::simd;

/// Its derivative tells the pair.
struct Pair {
  std::shared_ptr<int> no_trivial_copies;
  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const {
    return s * static_cast<float>(1000 * b + 100 * h + 10 * q + k) + mha::tanh(s);
  }
};

TEST(ScoreDerivative, IsEvaluatedForEveryPair) {
  unit::for_each_level([](auto isa) {
    const Pair score{};
    const simd::AnyScoreDerivative<float> derivative(score, decltype(isa)::level);
    ASSERT_TRUE(derivative.exists());
    constexpr Index lanes = 2 * simd::Vector<float, decltype(isa)>::width, count = lanes - 1, keys = 3;
    std::vector<float> dots(std::size_t{lanes * keys}), to(dots.size(), -1.f);
    for (std::size_t i = 0; i < dots.size(); ++i) dots[i] = 0.01f * static_cast<float>(i);
    derivative.apply({2, 3, 4, count}, dots.data(), lanes, lanes, 0.5f, 7, keys, to.data());
    for (Index k = 0; k < keys; ++k)
      for (Index lane = 0; lane < count; ++lane) {
        const auto at = static_cast<std::size_t>(k * lanes + lane);
        const double t = std::tanh(0.5 * double(dots[at]));
        EXPECT_NEAR(to[at], 2300 + 10 * (4 + lane) + 7 + k + 1 - t * t, 2e-3);
      }
  });
}

TEST(ScoreDerivative, IsOneOfScoresThatOnlyAdd) {
  const auto exists = [](const auto& score) {
    return simd::AnyScoreDerivative<double>(score, mha::current_isa()).exists();
  };
  const mha::Tensor<float, 2> bias(1, 1);
  EXPECT_FALSE(exists(mha::NoScore{}));
  EXPECT_FALSE(exists(mha::Alibi{2}));
  EXPECT_FALSE(exists(mha::AdditiveBias{bias}));
  EXPECT_FALSE(exists(mha::RelativeBias(std::vector<float>(32)).prepared({1, 1, 1, 1})));
  EXPECT_FALSE(exists(mha::Chain{mha::Alibi{2}, mha::AdditiveBias{bias}}));
  EXPECT_TRUE(exists(mha::Chain{mha::Alibi{2}, mha::SoftCap{2.f}}));
}

}  // namespace
