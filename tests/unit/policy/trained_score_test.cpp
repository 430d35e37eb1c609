// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <memory>
#include <span>
#include <string>
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

struct Adding {
  template <class S> S operator()(S s, int, int, int, int) const { return s; }
  template <class G, class S> void accumulate(G gradient, S dt, S, int, int, int, int) const { gradient[0] += dt; }
};
struct Borrowing : Adding {
  std::span<float> table;
  explicit Borrowing(std::span<float> numbers) : table(numbers) {}
  std::span<float> numbers() const { return table; }
};
/// Its copies share the numbers until one of them is about to be written.
struct CopiesOnWrite : Adding {
  std::shared_ptr<std::vector<float>> table = std::make_shared<std::vector<float>>(3, 1.f);
  std::span<float> numbers() { return *(table = std::make_shared<std::vector<float>>(*table)); }
  std::span<const float> numbers() const { return *table; }
};

TEST(TrainedScore, HasCopiesWithNumbersOfTheirOwn) {
  using mha::detail::require_own_numbers;
  using All = mha::detail::WantedScoreGradients<false, true>;
  using OfFirst = mha::detail::WantedOfChain<false, true, false>;
  using OfSecond = mha::detail::WantedOfChain<false, false, true>;
  std::vector<float> numbers(3, 1.f);
  const Borrowing borrowing{numbers};
  const CopiesOnWrite owning;
  const auto refusal = [](auto wanted, const auto& score) {
    try {
      require_own_numbers<decltype(wanted)>("call", score);
    } catch (const mha::ShapeError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string shares =
      "call: a copy of the score shares the memory of its 3 numbers(), expected a copy with numbers of its own";
  EXPECT_EQ(refusal(All{}, borrowing), shares);
  EXPECT_EQ(refusal(All{}, Borrowing(std::span<float>())), "");
  EXPECT_EQ(refusal(All{}, owning), "");
  EXPECT_EQ(refusal(All{}, mha::Chain{mha::AlibiSlopes({1.f, 2.f}), owning}), "");
  EXPECT_EQ(refusal(OfFirst{}, mha::Chain{owning, borrowing}), "");
  EXPECT_EQ(refusal(OfSecond{}, mha::Chain{owning, borrowing}), shares);
  EXPECT_EQ(numbers, std::vector<float>(3, 1.f));
}

}  // namespace
