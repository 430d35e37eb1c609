// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <iterator>

#include <gtest/gtest.h>

#include <mha/backend/systolic/precision.hpp>
#include <mha/core/scalar.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

/// The largest part of |x y| that the products of a precision leave out.
template <class Precision> double largest_miss() {
  support::Random random(Precision::name);
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto x = static_cast<float>(random.uniform(1, 2)), y = static_cast<float>(random.uniform(1, 2));
    double part[2][3];
    for (int side = 0; side < 2; ++side) {
      float rest = side == 0 ? x : y;
      for (double& p : part[side]) {
        const mha::bfloat16 rounded(rest);
        p = float(rounded);
        rest -= float(rounded);
      }
    }
    double product = 0;
    for (const mha::PartProduct& p : Precision::products) product += part[0][p.a] * part[1][p.b];
    worst = support::maximum(worst, std::abs(product / (double{x} * y) - 1));
  }
  return worst;
}

TEST(Precision, NamesAndNumbersAreThoseOfTpus) {
  EXPECT_STREQ(mha::DefaultPrecision::name, "default");
  EXPECT_STREQ(mha::HighPrecision::name, "high");
  EXPECT_STREQ(mha::HighestPrecision::name, "highest");
  EXPECT_EQ(std::size(mha::DefaultPrecision::products), 1u);
  EXPECT_EQ(std::size(mha::HighPrecision::products), 3u);
  EXPECT_EQ(std::size(mha::HighestPrecision::products), 6u);
}

TEST(Precision, EachKeepsTheDigitsItSays) {
  // Operands in [1, 2) of which each part rounds off at most half of the last place it keeps, 2⁻⁸, 2⁻¹⁷ and 2⁻²⁶.
  EXPECT_LT(largest_miss<mha::DefaultPrecision>(), 2 * 0x1p-8 + 0x1p-16);
  EXPECT_GT(largest_miss<mha::DefaultPrecision>(), 0x1p-9);
  EXPECT_LT(largest_miss<mha::HighPrecision>(), 2 * 0x1p-17 + 1.01 * 0x1p-16);
  EXPECT_GT(largest_miss<mha::HighPrecision>(), 0x1p-19);
  EXPECT_LT(largest_miss<mha::HighestPrecision>(), 2.1 * 0x1p-24);
}

TEST(Precision, AnOperandMissesByAtMostWhatItsPartsLeave) {
  constexpr double least[] = {0x1p-8, 0x1p-17, 0x1p-25};
  double worst[3] = {};
  for (int i = 0; i < 1 << 16; ++i) {
    const float x = 1 + static_cast<float>(i) * 0x1.0081p-16f;
    float rest = x;
    for (double& w : worst) {
      rest -= float(mha::bfloat16(rest));
      w = std::max(w, std::abs(double{rest} / x));
    }
  }
  for (int parts = 0; parts < 3; ++parts) EXPECT_LE(worst[parts], least[parts]) << parts + 1;
  EXPECT_GT(worst[0], 0.99 * 0x1p-8);
}

template <class Precision> void expect_small_products_first() {
  int before = 100;
  for (const mha::PartProduct& p : Precision::products) {
    EXPECT_LT(p.a, Precision::parts);
    EXPECT_LT(p.b, Precision::parts);
    EXPECT_LE(p.a + p.b, before);
    before = p.a + p.b;
  }
  EXPECT_EQ(before, 0);
}

TEST(Precision, SmallProductsAreAddedFirst) {
  expect_small_products_first<mha::DefaultPrecision>();
  expect_small_products_first<mha::HighPrecision>();
  expect_small_products_first<mha::HighestPrecision>();
}

}  // namespace
