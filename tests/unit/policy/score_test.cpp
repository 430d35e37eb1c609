// SPDX-License-Identifier: Apache-2.0
#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/policy/score.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>

#include "finite_difference.hpp"
#include "message_of.hpp"

namespace {

using mha::Alibi;
using mha::Chain;
using mha::SoftCap;

/// A user's score, as score.hpp shows one.
struct Distance {
  float slope;
  template <class T> T operator()(T s, int, int, int q, int k) const { return s - slope * float(mha::abs(q - k)); }
};
/// Two functions that do not commute.
struct Doubled {
  template <class T> T operator()(T s, int, int, int, int) const { return 2 * s; }
};
struct PlusOne {
  template <class T> T operator()(T s, int, int, int, int) const { return s + 1; }
};
/// Says where it is asked.
struct Place {
  template <class T> T operator()(T s, int b, int h, int q, int k) const { return s + 1000 * b + 100 * h + 10 * q + k; }
};

TEST(Score, IsAnyFunctorOfALogitAndFourIndices) {
  static_assert(mha::Score<Distance> && mha::Score<mha::NoScore> && mha::Score<Chain<Distance, Place>>);
  static_assert(mha::Score<decltype([](auto s, auto, auto, auto, auto) { return s; })>);
  static_assert(!mha::Score<decltype([](auto, auto, auto, auto) { return true; })> && !mha::Score<int>);
}

TEST(NoScore, LeavesTheLogit) {
  EXPECT_EQ(mha::NoScore{}(-2.5f, 0, 1, 2, 3), -2.5f);
  EXPECT_EQ(mha::NoScore{}(1e300, 0, 1, 2, 3), 1e300);
}

TEST(Chain, AppliesItsPartsInTheOrderWritten) {
  EXPECT_EQ((Chain{Doubled{}, PlusOne{}}(3.0, 0, 0, 0, 0)), 7);
  EXPECT_EQ((Chain{PlusOne{}, Doubled{}}(3.0, 0, 0, 0, 0)), 8);
  EXPECT_EQ((Chain{Chain{PlusOne{}, Doubled{}}, PlusOne{}}(3.0, 0, 0, 0, 0)), 9);
  EXPECT_EQ((Chain{Chain<PlusOne, Doubled>{}, Chain{Doubled{}, PlusOne{}}}(3.0, 0, 0, 0, 0)), 17);
}

TEST(Chain, TellsBothPartsWhereTheyAre) {
  EXPECT_EQ((Chain{Place{}, Doubled{}}(0.0, 1, 2, 3, 4)), 2468);
  EXPECT_EQ((Chain{Doubled{}, Place{}}(0.0, 1, 2, 3, 4)), 1234);
}

TEST(Chain, PreparesBothParts) {
  const mha::CallShape s{.batch = 1, .heads = 8, .queries = 2, .keys = 9, .origin = 7};
  const auto first = mha::prepared(Chain{Alibi{}, Doubled{}}, s);
  const auto second = mha::prepared(Chain{Doubled{}, Alibi{}}, s);
  EXPECT_EQ(first(1.0, 0, 0, 8, 6), 2 * (1 - 2 * 0.5));
  EXPECT_EQ(second(1.0, 0, 0, 8, 6), 2 - 2 * 0.5);
  EXPECT_THROW(mha::prepared(Chain{Doubled{}, SoftCap{-1.f}}, s), mha::ShapeError);
}

TEST(Chain, BorrowsIfAPartDoes) {
  static_assert(!mha::Borrows<Chain<Distance, Alibi>>);
  static_assert(mha::Borrows<Chain<Distance, mha::AdditiveBias<float>>>);
  static_assert(mha::Borrows<Chain<mha::AdditiveBias<float>, Distance>>);
}

TEST(AtHead, IsTheScoreItselfUnlessItHasOnePerHead) {
  static_assert(std::same_as<decltype(mha::at_head(Distance{1}, 0, 0)), Distance>);
  static_assert(std::same_as<decltype(mha::at_head(Alibi{}, 0, 0)), Alibi::OfHead>);
  static_assert(std::same_as<decltype(mha::at_head(Chain<Distance, Alibi>{}, 0, 0)), Chain<Distance, Alibi::OfHead>>);
}

/// A user's score with a table of its own.
struct Table {
  std::vector<float> bias;
  int* copies;
  Table(std::vector<float> values, int& count) : bias(std::move(values)), copies(&count) {}
  Table(const Table& other) : bias(other.bias), copies(other.copies) { ++*copies; }
  template <class T> T operator()(T s, int, int h, int, int) const { return s + bias[static_cast<std::size_t>(h)]; }
};

// A kernel asks for it at every block of keys: a copy would allocate there.
TEST(AtHead, DoesNotCopyAScoreThatOwnsMemory) {
  int copies = 0;
  const Table table({1.f, 2.f}, copies);
  const Chain<Table, Chain<Doubled, Table>> chain{table, {{}, table}};
  copies = 0;
  EXPECT_EQ(mha::at_head(table, 0, 1)(3.f, 0, 1, 0, 0), 5.f);
  EXPECT_EQ(mha::at_head(chain, 0, 1)(3.f, 0, 1, 0, 0), 12.f);
  EXPECT_EQ(copies, 0);
}

TEST(AtHead, EqualsTheCallForEveryShippedScoreAndTheirChains) {
  const mha::CallShape s{.batch = 2, .heads = 6, .queries = 3, .keys = 4, .origin = 1};
  mha::Tensor<float, 4> table(2, 6, 3, 4);
  float n = 0;
  for (float& x : table) x = n += 0.125f;
  const auto check = [&](const auto& score) {
    const auto ready = mha::prepared(score, s);
    for (int b = 0; b < 2; ++b)
      for (int h = 0; h < 6; ++h) {
        const auto head = mha::at_head(ready, b, h);
        for (int q = 1; q < 4; ++q)
          for (int k = 0; k < 4; ++k) EXPECT_EQ(head(0.75f, b, h, q, k), ready(0.75f, b, h, q, k));
      }
  };
  check(mha::NoScore{});
  check(SoftCap{2.f});
  check(Alibi{});
  check(mha::AdditiveBias{table});
  check(Chain{SoftCap{2.f}, Chain{mha::AdditiveBias{table}, Alibi{}}});
  check(Chain{Alibi{}, Distance{0.5f}});
}

TEST(Score, FromALambdaKeepsItsValues) {
  float slope = 0.25f;
  const auto distance = mha::score([slope](auto s, int, int, int q, int k) { return s - slope * float(q - k); });
  static_assert(mha::Score<decltype(distance)>);
  EXPECT_EQ(distance(1.f, 0, 0, 5, 3), 0.5f);
  EXPECT_EQ((Chain{distance, Doubled{}}(1.0, 0, 0, 5, 3)), 1);
}

float plus_distance(float s, int, int, int q, int k) { return s + float(q - k); }

TEST(Score, MayBeAPointerToAFunctionButNotANullOne) {
  using Pointer = float (*)(float, int, int, int, int);
  const auto distance = mha::score(&plus_distance);
  static_assert(mha::Score<decltype(distance)>);
  EXPECT_EQ(distance(1, 0, 0, 5, 3), 3);
  const auto message = [](const auto& score) {
    return support::message_of([&] { static_cast<void>(mha::prepared(score, mha::CallShape{})); });
  };
  const std::string refused = "score: the function is null, expected one to call";
  EXPECT_EQ(message(distance), "");
  EXPECT_EQ(message(Pointer{}), refused);
  EXPECT_EQ(message(Chain{PlusOne{}, Pointer{}}), refused);
  EXPECT_EQ(message(mha::score(std::function<float(float, int, int, int, int)>())), refused);
}

TEST(Chain, ChecksBoth) {
  const auto message = [](const auto& score) {
    return support::message_of([&] { mha::detail::check_policy(score, 2); });
  };
  const std::string refused = "SoftCap: cap is -2, it must be a positive finite number";
  EXPECT_EQ(message(Chain{SoftCap{-2.f}, Alibi{}}), refused);
  EXPECT_EQ(message(Chain{Doubled{}, SoftCap{-2.f}}), refused);
  EXPECT_EQ(message(Chain{Doubled{}, SoftCap{2.f}}), "");
  EXPECT_EQ(message(mha::score(std::function<float(float, int, int, int, int)>())),
            "score: the function is null, expected one to call");
}

TEST(Differentiate, AgreesWithFiniteDifferences) {
  mha_test::expect_derivatives(mha::NoScore{});
  mha_test::expect_derivatives(Distance{0.3f});
  mha_test::expect_derivatives(
      mha::score([](auto s, auto, auto, auto, auto) { return s * s * 0.01 - mha::exp(-s * 0.1); }));
  mha_test::expect_derivatives(Chain{SoftCap{30.f}, Chain{Alibi{8}, Doubled{}}});
  mha_test::expect_derivatives(Chain{Doubled{}, SoftCap{5.f}});
}

TEST(Differentiate, KeepsTheScalarOfTheLogit) {
  static_assert(std::same_as<decltype(mha::differentiate(Doubled{}, 1.f, 0, 0, 0, 0)), mha::Dual<float>>);
  EXPECT_EQ(mha::differentiate(Doubled{}, 3.f, 0, 0, 0, 0).derivative[0], 2.f);
}

}  // namespace
