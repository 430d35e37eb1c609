// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/mask/bands.hpp>
#include <mha/policy/mask/document.hpp>

#include "random.hpp"

namespace {

using mha::detail::Band;
using mha::detail::Banded;
using mha::detail::BandsOf;

template <class M> std::int64_t counted(const M& mask, int b, int q_begin, int q_end, int k_begin, int k_end) {
  std::int64_t pairs = 0;
  for (int q = q_begin; q < q_end; ++q)
    for (int k = k_begin; k < k_end; ++k) pairs += mask(b, 0, q, k) ? 1 : 0;
  return pairs;
}

TEST(Bands, CountWhatTheMaskShowsOfAnyRectangle) {
  support::Random random("bands");
  for (int round = 0; round < 200; ++round) {
    const std::vector<int> lengths{random.below(12), random.below(12)};
    const mha::CausalTopLeft top_left{mha::Origins(random.below(20) - 10)};
    const mha::SlidingWindow window{.left = random.below(6), .right = random.below(6)};
    const mha::Padding padding{lengths};
    const mha::LeftPadding in_front{lengths, 12 + random.below(15)};
    const mha::Prefix prefix{lengths};
    const mha::Causal causal;
    const int q_begin = random.below(30) - 15, q_end = q_begin + random.below(15);
    const int k_begin = random.below(12), k_end = k_begin + random.below(15), b = random.below(2);
    const auto check = [&](const char* name, const auto& mask) {
      const auto bands = BandsOf<std::remove_cvref_t<decltype(mask)>>::of(mask, b);
      EXPECT_EQ(bands.pairs(q_begin, q_end, k_begin, k_end), counted(mask, b, q_begin, q_end, k_begin, k_end))
          << name << " of queries " << q_begin << " to " << q_end << ", keys " << k_begin << " to " << k_end;
    };
    check("full", mha::Full{});
    check("causal", causal);
    check("top left", top_left);
    check("window", window);
    check("padding", padding);
    check("left padding", in_front);
    check("prefix", prefix);
    check("first keys", mha::FirstKeys{.count = lengths.front()});
    check("both", causal && window);
    check("either", window || padding);
    check("window and first", window || mha::FirstKeys{.count = lengths.back()});
    check("not", !window);
    check("all of it", !(prefix && window) || (top_left && !padding && in_front) || !!causal);
  }
}

TEST(Bands, OfTheLongestCallFitInto64Bits) {
  constexpr std::int64_t n = std::numeric_limits<int>::max();
  EXPECT_EQ(Band{}.pairs(0, n, 0, n), n * n);
  EXPECT_EQ(Band{.last = 0}.pairs(0, n, 0, n), n * (n + 1) / 2);
  EXPECT_EQ(Band{.last = n}.pairs(0, n, 0, n), n * n);
  EXPECT_EQ(Band{.last = n}.pairs(-n, 0, 0, n), n * (n + 1) / 2);
  const auto either = mha::Causal{} || mha::SlidingWindow{.left = 0, .right = std::numeric_limits<int>::max()};
  EXPECT_EQ(BandsOf<std::remove_const_t<decltype(either)>>::of(either, 0).pairs(0, n, 0, n), n * n);
}

TEST(Bands, AreKnownOfPositionalMasksOnly) {
  struct Functor {
    bool operator()(int, int, int, int) const { return true; }
  };
  static_assert(Banded<mha::And<mha::Not<mha::Prefix>, mha::Or<mha::Full, mha::CausalTopLeft>>>);
  static_assert(!Banded<mha::Document> && !Banded<mha::FunctionMask<Functor>> &&
                !Banded<mha::And<mha::Causal, Functor>>);
}

}  // namespace
