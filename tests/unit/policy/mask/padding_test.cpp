// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/positional.hpp>

#include "../tiles.hpp"
#include "scratch.hpp"

namespace {

using mha::LeftPadding, mha::Padding;

TEST(Padding, HidesKeysFromTheLengthOn) {
  const std::vector<int> lengths{0, 2, 5};
  const Padding mask{lengths};
  for (int b = 0; b < 3; ++b)
    for (int h = 0; h < 2; ++h)
      for (int q = -2; q < 6; ++q)
        for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(b, h, q, k), k < lengths[static_cast<std::size_t>(b)]);
}

TEST(Padding, ClassifiesEveryTileExactly) {
  const std::vector<int> lengths{0, 1, 2, 3, 4, 5};
  const mha::CallShape s{.batch = 6, .heads = 2, .queries = 3, .keys = 5, .origin = 2};
  EXPECT_TRUE(mha_test::tiles_are(mha_test::Promise::exact, Padding{lengths}.prepared(s), s));
}

std::string refusal(mha::Borrowed<int> lengths, int batch, int keys) {
  return mha_test::message_of<mha::ShapeError>(
      [&] { Padding{lengths}.prepared({.batch = batch, .heads = 1, .queries = 1, .keys = keys}); });
}

TEST(Padding, WantsOneLengthPerSequence) {
  const std::vector<int> lengths{1, 2, 3};
  EXPECT_EQ(refusal(lengths, 2, 4), "Padding: 3 lengths for a batch of 2");
  EXPECT_EQ(refusal(lengths, 4, 4), "Padding: 3 lengths for a batch of 4");
  EXPECT_EQ(refusal(lengths, 3, 4), "");
}

TEST(Padding, WantsLengthsWithinTheKeys) {
  const std::vector<int> ends{0, 4}, negative{4, -1}, large{5, 0};
  EXPECT_EQ(refusal(ends, 2, 4), "");
  EXPECT_EQ(refusal(negative, 2, 4), "Padding: length -1 of sequence 1 is outside [0, 4], the number of keys");
  EXPECT_EQ(refusal(large, 2, 4), "Padding: length 5 of sequence 0 is outside [0, 4], the number of keys");
}

TEST(Padding, WantsMemory) {
  EXPECT_EQ(refusal({nullptr, 3}, 3, 4), "Padding: the data of 3 lengths is null");
  EXPECT_EQ(refusal({}, 0, 4), "");
}

TEST(Padding, DoesNotReadDeviceMemoryOnTheHost) {
  const int unread[2] = {-1, -1};  // host memory would be refused for these
  EXPECT_EQ(refusal({unread, 2, mha::Memory::device}, 2, 4), "");
  EXPECT_EQ(refusal({unread, 2, mha::Memory::device}, 3, 4), "Padding: 2 lengths for a batch of 3");
}

TEST(Padding, HandsOutItsDataToBeMoved) {
  const std::vector<int> lengths{1, 2}, elsewhere{3, 4};
  int asked = 0;
  const auto moved = mha::with_data(Padding{lengths}, [&](const mha::Borrowed<int>& data) {
    ++asked;
    EXPECT_EQ(data.data, lengths.data());
    return mha::Borrowed<int>{elsewhere.data(), data.size, mha::Memory::device};
  });
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(moved.lengths.data, elsewhere.data());
  EXPECT_EQ(moved.lengths.memory, mha::Memory::device);
}

TEST(Padding, ComposesAndPassesTheDataOn) {
  const std::vector<int> lengths{2, 3}, elsewhere{1, 1};
  const auto mask = (Padding{lengths} && !mha::Causal{}) || (Padding{lengths} && mha::Causal{});
  static_assert(mha::Borrows<decltype(mask)>);
  int asked = 0;
  const auto moved = mha::with_data(mask, [&](const mha::Borrowed<int>&) {
    ++asked;
    return mha::Borrowed<int>(elsewhere);
  });
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(mask(1, 0, 0, 2));
  EXPECT_FALSE(moved(1, 0, 0, 2));
  const mha::CallShape s{.batch = 2, .heads = 1, .queries = 4, .keys = 4};
  EXPECT_TRUE(mha_test::tiles_are(mha_test::Promise::honest, mha::prepared(mask, s), s));
  EXPECT_THROW(mha::prepared(!mask, {.batch = 3}), mha::ShapeError) << "a part's check is the composition's";
}

TEST(LeftPadding, HidesKeysBeforeTheLastOnes) {
  const std::vector<int> lengths{0, 2, 5};
  const LeftPadding mask = LeftPadding{lengths}.prepared({.batch = 3, .heads = 2, .queries = 8, .keys = 5});
  for (int b = 0; b < 3; ++b)
    for (int h = 0; h < 2; ++h)
      for (int q = -2; q < 6; ++q)
        for (int k = 0; k < 5; ++k) EXPECT_EQ(mask(b, h, q, k), 4 - k < lengths[static_cast<std::size_t>(b)]);
}

TEST(LeftPadding, ClassifiesEveryTileExactly) {
  const std::vector<int> lengths{0, 1, 2, 3, 4, 5};
  const mha::CallShape s{.batch = 6, .heads = 2, .queries = 3, .keys = 5, .origin = 2};
  EXPECT_TRUE(mha_test::tiles_are(mha_test::Promise::exact, LeftPadding{lengths}.prepared(s), s));
}

TEST(LeftPadding, RefusesLengthsThatDoNotFitAndRaggedBatches) {
  const std::vector<int> lengths{5, 0}, offsets{0, 2, 4};
  const auto refusal = [&](const mha::CallShape& s) {
    return mha_test::message_of<mha::ShapeError>([&] { LeftPadding{lengths}.prepared(s); });
  };
  EXPECT_EQ(refusal({.batch = 2, .keys = 5}), "");
  EXPECT_EQ(refusal({.batch = 3, .keys = 5}), "LeftPadding: 2 lengths for a batch of 3");
  EXPECT_EQ(refusal({.batch = 2, .keys = 4}),
            "LeftPadding: length 5 of sequence 0 is outside [0, 4], the number of keys");
  EXPECT_EQ(refusal({.batch = 2, .keys = 5, .query_offsets = offsets.data()}),
            "LeftPadding: a ragged batch has no padding: its offsets say where each sequence begins");
}

TEST(LeftPadding, HandsOutItsDataToBeMoved) {
  const std::vector<int> lengths{1, 2}, elsewhere{3, 4};
  const auto ready = LeftPadding{lengths}.prepared({.batch = 2, .heads = 1, .queries = 1, .keys = 4});
  const auto moved = mha::with_data(ready, [&](const mha::Borrowed<int>& data) {
    EXPECT_EQ(data.data, lengths.data());
    return mha::Borrowed<int>(elsewhere);
  });
  EXPECT_FALSE(ready(0, 0, 0, 1));
  EXPECT_TRUE(moved(0, 0, 0, 1));
}

TEST(Padding, IsABorrowingMaskOfOnePointer) {
  static_assert(mha::Mask<Padding> && mha::Borrows<Padding> && std::is_trivially_copyable_v<Padding>);
}

}  // namespace
