// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/lengths.hpp>

#include "scratch.hpp"

namespace {

std::string refusal(const mha::Borrowed<int>& lengths, int batch, int keys) {
  return mha_test::message_of<mha::ShapeError>([&] {
    mha::detail::require_lengths("Some", lengths,
                                 {.batch = batch, .heads = 3, .queries = 2, .keys = keys, .origin = 0});
  });
}

TEST(Lengths, AreOneForEachSequence) {
  const std::vector<int> three{1, 2, 3};
  EXPECT_EQ(refusal(three, 3, 4), "");
  EXPECT_EQ(refusal(three, 2, 4), "Some: 3 lengths for a batch of 2");
  EXPECT_EQ(refusal({}, 1, 4), "Some: 0 lengths for a batch of 1");
  EXPECT_EQ(refusal({}, 0, 4), "");
}

TEST(Lengths, LieBetweenNothingAndAllKeys) {
  const std::vector<int> ends{0, 4}, below{2, -1}, above{5, -1};
  EXPECT_EQ(refusal(ends, 2, 4), "");
  EXPECT_EQ(refusal(below, 2, 4), "Some: length -1 of sequence 1 is outside [0, 4], the number of keys");
  EXPECT_EQ(refusal(above, 2, 4), "Some: length 5 of sequence 0 is outside [0, 4], the number of keys");
}

TEST(Lengths, AreNoMoreThanTheKeysOfTheirSequence) {
  const std::vector<int> offsets{0, 2, 5}, origins{0, 4};
  mha::CallShape s{.batch = 2, .keys = 7, .origin = mha::Origins(origins.data()), .query_offsets = offsets.data()};
  const auto refused = [&](const std::vector<int>& lengths) {
    return mha_test::message_of<mha::ShapeError>([&] { mha::detail::require_lengths("Some", lengths, s); });
  };
  EXPECT_EQ(refused({7, 7}), "") << "the origin says nothing of the keys";
  s.last_meets_last = true;
  EXPECT_EQ(refused({2, 7}), "");
  EXPECT_EQ(refused({3, 7}), "Some: length 3 of sequence 0 is outside [0, 2], the number of keys");
}

TEST(Lengths, HaveMemory) { EXPECT_EQ(refusal({nullptr, 2}, 2, 4), "Some: the data of 2 lengths is null"); }

TEST(Lengths, OfADeviceAreCountedButNotRead) {
  const int unread[2] = {-1, 9};  // host memory would be refused for these
  EXPECT_EQ(refusal({unread, 2, mha::Memory::device}, 2, 4), "");
  EXPECT_EQ(refusal({unread, 2, mha::Memory::device}, 3, 4), "Some: 2 lengths for a batch of 3");
  EXPECT_EQ(refusal({nullptr, 2, mha::Memory::device}, 2, 4), "Some: the data of 2 lengths is null");
}

}  // namespace
