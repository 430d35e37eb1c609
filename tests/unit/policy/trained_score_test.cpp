// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>
#include <mha/policy/trained_score.hpp>

namespace {

template <class T = float> struct Scaled {
  T by, and_by;
  template <class S> auto operator()(S s, int, int, int, int) const { return s * by * and_by; }
};
template <class T = float> struct Declines {
  static constexpr bool trainable = false;
  T by;
  template <class S> auto operator()(S s, int, int, int, int) const { return s * by; }
};

using mha::Chain;
using mha::detail::Trained;
using mha::detail::trains_unasked;
using Mixed = Chain<Chain<mha::SoftCap, mha::Alibi>, Chain<Scaled<double>, mha::AlibiSlopes>>;
static_assert(std::is_same_v<Trained<Chain<Declines<>, Scaled<>>>, Scaled<>>);
static_assert(std::is_same_v<Trained<Chain<Scaled<>, mha::Alibi>>, Scaled<>>);
static_assert(std::is_same_v<Trained<Chain<mha::Alibi, Declines<>>>, mha::NoScore>);
static_assert(std::is_same_v<Trained<Mixed>, Chain<mha::SoftCap, Chain<Scaled<double>, mha::AlibiSlopes>>>);
static_assert(trains_unasked<Scaled<>>() && !trains_unasked<mha::SoftCap>() && trains_unasked<Mixed>());

TEST(TrainedScore, NumbersOfAChainInTheOrderWritten) {
  Mixed score{{mha::SoftCap{3.f}, mha::Alibi{}}, {Scaled<double>{4, 5}, mha::AlibiSlopes({6.f, 7.f, 8.f})}};
  const Trained<Mixed> gradients{mha::SoftCap{1.f}, {Scaled<double>{1, 2}, mha::AlibiSlopes({1.f, 2.f, 3.f})}};
  std::vector<double> seen;
  mha::detail::for_each_numbers(score, gradients, [&](const auto& numbers, const auto& d) {
    ASSERT_EQ(numbers.size(), d.size());
    for (std::size_t i = 0; i < d.size(); ++i) {
      seen.push_back(numbers[i]);
      numbers[i] -= d[i];
    }
  });
  EXPECT_EQ(seen, (std::vector<double>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(score.first.first.cap, 2.f);
  EXPECT_EQ(score.second.first.by, 3);
  EXPECT_EQ(score.second.first.and_by, 3);
  EXPECT_EQ(score.second.second.per_head(), (std::vector<float>{5, 5, 5}));
  EXPECT_EQ(gradients.second.second.per_head(), (std::vector<float>{1, 2, 3}));

  const auto zero = mha::detail::without_numbers(gradients);
  EXPECT_EQ(zero.second.second.per_head(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(zero.second.first.and_by, 0);
  EXPECT_EQ(zero.first.cap, 0.f);
  EXPECT_EQ(gradients.second.second.per_head(), (std::vector<float>{1, 2, 3}));
}

}  // namespace
