// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/mask/prefix.hpp>

#include "../tiles.hpp"
#include "scratch.hpp"

namespace {

using mha::Prefix;
using mha_test::Promise;

TEST(Prefix, ShowsThePrefixToAllAndTheRestCausally) {
  const std::vector<int> lengths{0, 2, 4};
  const Prefix mask{lengths};
  for (int b = 0; b < 3; ++b)
    for (int q = -2; q < 4; ++q)
      for (int k = 0; k < 4; ++k)
        EXPECT_EQ(mask(b, 1, q, k), k <= q || k < lengths[static_cast<std::size_t>(b)]) << b << ' ' << q << ' ' << k;
}

TEST(Prefix, ClassifiesEveryTileExactly) {
  mha_test::for_each_small_call([](mha::CallShape s) {
    std::vector<int> lengths;
    for (int n = 0; n <= s.keys; ++n) lengths.push_back(n);
    s.batch = static_cast<int>(lengths.size());
    ASSERT_TRUE(mha_test::tiles_are(Promise::exact, Prefix{lengths}.prepared(s), s));
  });
}

std::string refusal(const mha::Borrowed<int>& lengths, int batch, int keys) {
  return mha_test::message_of<mha::ShapeError>(
      [&] { Prefix{lengths}.prepared({.batch = batch, .heads = 1, .queries = 1, .keys = keys, .origin = 0}); });
}

TEST(Prefix, WantsOneLengthWithinTheKeysForEachSequence) {
  const std::vector<int> good{0, 4}, negative{0, -1}, large{5, 0};
  EXPECT_EQ(refusal(good, 2, 4), "");
  EXPECT_EQ(refusal(good, 3, 4), "Prefix: 2 lengths for a batch of 3");
  EXPECT_EQ(refusal(negative, 2, 4), "Prefix: length -1 of sequence 1 is outside [0, 4], the number of keys");
  EXPECT_EQ(refusal(large, 2, 4), "Prefix: length 5 of sequence 0 is outside [0, 4], the number of keys");
  EXPECT_EQ(refusal({nullptr, 2}, 2, 4), "Prefix: the data of 2 lengths is null");
}

TEST(Prefix, HandsOutItsDataToBeMoved) {
  const std::vector<int> lengths{1, 2}, elsewhere{0, 0};
  const auto moved = mha::with_data(Prefix{lengths}, [&](const mha::Borrowed<int>& data) {
    EXPECT_EQ(data.data, lengths.data());
    return mha::Borrowed<int>(elsewhere);
  });
  EXPECT_TRUE(Prefix{lengths}(1, 0, 0, 1));
  EXPECT_FALSE(moved(1, 0, 0, 1));
}

TEST(Prefix, ComposesWithOthers) {
  const std::vector<int> lengths{3, 1};
  const mha::CallShape s{.batch = 2, .heads = 1, .queries = 5, .keys = 5, .origin = 0};
  const auto mask = mha::prepared(Prefix{lengths} && mha::SlidingWindow{.left = 1, .right = 2}, s);
  EXPECT_TRUE(mask(0, 0, 0, 2));
  EXPECT_FALSE(mask(1, 0, 0, 2));
  EXPECT_FALSE(mask(0, 0, 4, 2));
  EXPECT_TRUE(mha_test::tiles_are(Promise::honest, mask, s));
}

TEST(Prefix, IsABorrowingMaskOfOnePointer) {
  static_assert(mha::Mask<Prefix> && mha::Borrows<Prefix> && std::is_trivially_copyable_v<Prefix>);
}

}  // namespace
