// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <mha/policy/mask/first_keys.hpp>
#include <mha/policy/mask/positional.hpp>

#include "../tiles.hpp"
#include "scratch.hpp"

namespace {

using mha::FirstKeys;

TEST(FirstKeys, ShowsTheFirstToEveryQuery) {
  for (const int count : {0, 1, 3, 9})
    for (int b = 0; b < 2; ++b)
      for (int h = 0; h < 2; ++h)
        for (int q = -3; q < 12; ++q)
          for (int k = 0; k < 7; ++k) EXPECT_EQ(FirstKeys{.count = count}(b, h, q, k), k < count);
}

TEST(FirstKeys, ClassifiesEveryTileExactly) {
  const mha::CallShape s{.batch = 1, .heads = 1, .queries = 3, .keys = 7, .origin = 4};
  for (const int count : {0, 1, 3, 6, 7, 9})
    EXPECT_TRUE(mha_test::tiles_are(mha_test::Promise::exact, FirstKeys{.count = count}.prepared(s), s)) << count;
  const auto kept = mha::SlidingWindow{.left = 1} || FirstKeys{.count = 2};
  EXPECT_TRUE(mha_test::tiles_are(mha_test::Promise::honest, kept, s));
}

TEST(FirstKeys, WantsACount) {
  const auto refusal = [](int count) {
    return mha_test::message_of<mha::ShapeError>([&] { FirstKeys{.count = count}.prepared({}); });
  };
  EXPECT_EQ(refusal(0), "");
  EXPECT_EQ(refusal(-1), "FirstKeys: count is -1, it must be at least 0");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([] { static_cast<void>(FirstKeys{.count = 1LL << 31}); }),
            "FirstKeys: count is 2147483648, the largest is 2147483647");
}

}  // namespace
