// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/policy/mask/document.hpp>
#include <mha/policy/mask/positional.hpp>

#include "../tiles.hpp"
#include "scratch.hpp"

namespace {

using mha::CallShape;
using mha::Document;
using mha::TileVisibility;
using mha_test::Promise;

constexpr CallShape shape(int batch, int keys) {
  return {.batch = batch, .heads = 1, .queries = keys, .keys = keys, .origin = 0};
}

TEST(Document, SeesItsOwnDocumentOnly) {
  const std::vector<int> ids{-3, -3, 0, 7, 7, 7};
  const Document mask = Document{ids}.prepared(shape(1, 6));
  for (int q = 0; q < 6; ++q)
    for (int k = 0; k < 6; ++k)
      EXPECT_EQ(mask(0, 1, q, k), ids[static_cast<std::size_t>(q)] == ids[static_cast<std::size_t>(k)]);
  for (int k = 0; k < 6; ++k) EXPECT_FALSE(mask(0, 0, -1, k)) << "nothing is read before position 0";
}

TEST(Document, OneRowServesAllSequencesOrEachHasItsOwn) {
  const std::vector<int> shared{0, 0, 1}, own{0, 1, 1, 0, 0, 0};
  const Document all = Document{shared}.prepared(shape(2, 3)), each = Document{own}.prepared(shape(2, 3));
  EXPECT_EQ(all.row_stride, 0);
  EXPECT_EQ(each.row_stride, 3);
  for (int q = 0; q < 3; ++q)
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ(all(1, 0, q, k), (q < 2) == (k < 2));
      EXPECT_EQ(each(0, 0, q, k), (q < 1) == (k < 1));
      EXPECT_TRUE(each(1, 0, q, k));
    }
}

/// Every non-decreasing row of five ids.
template <class F> void for_each_row_of_five(F&& f) {
  for (int steps = 0; steps < 16; ++steps) {
    std::vector<int> ids{4};
    for (int i = 0; i < 4; ++i) ids.push_back(ids.back() + 2 * (steps >> i & 1));
    f(ids);
  }
}

TEST(Document, KeepsItsPromisesOfTiles) {
  for_each_row_of_five([](const std::vector<int>& ids) {
    for (int queries = 1; queries <= 5; ++queries)
      for (int origin = -4; origin + queries <= 5; ++origin) {
        const CallShape s{.batch = 1, .heads = 1, .queries = queries, .keys = 5, .origin = origin};
        ASSERT_TRUE(mha_test::tiles_are(Promise::honest, Document{ids}.prepared(s), s)) << "origin " << origin;
      }
  });
  const std::vector<int> each{0, 0, 1, 1, 2, 5, 6, 6, 6, 9, 1, 1, 1, 1, 1};
  EXPECT_TRUE(mha_test::tiles_are(Promise::honest, Document{each}.prepared(shape(3, 5)), shape(3, 5)));
}

TEST(Document, TellsTilesOfOneDocumentExactly) {
  for_each_row_of_five([](const std::vector<int>& ids) {
    const Document mask = Document{ids}.prepared(shape(1, 5));
    const auto one = [&](int begin, int end) {
      return ids[static_cast<std::size_t>(begin)] == ids[static_cast<std::size_t>(end - 1)];
    };
    for (int q0 = 0; q0 < 5; ++q0)
      for (int q1 = q0 + 1; q1 <= 5; ++q1)
        for (int k0 = 0; k0 < 5; ++k0)
          for (int k1 = k0 + 1; k1 <= 5; ++k1)
            if (one(q0, q1) && one(k0, k1)) {
              EXPECT_EQ(mask.tile(0, 0, q0, q1, k0, k1), mha_test::visibility(mask, 0, 0, q0, q1, k0, k1));
            }
    EXPECT_EQ(mask.tile(0, 0, -3, 0, 0, 5), TileVisibility::none);
  });
}

std::string refusal(const mha::Borrowed<int>& ids, const CallShape& s) {
  return mha_test::message_of<mha::ShapeError>([&] { Document{ids}.prepared(s); });
}

TEST(Document, WantsARowOrOneForEachSequence) {
  const std::vector<int> five(5), four(4), eight(8);
  EXPECT_EQ(refusal(five, shape(2, 4)), "Document: 5 ids for 2 sequences of 4 keys: give 4 or 8");
  EXPECT_EQ(refusal(four, shape(2, 4)), "");
  EXPECT_EQ(refusal(eight, shape(2, 4)), "");
  EXPECT_EQ(refusal({nullptr, 4}, shape(2, 4)), "Document: the data of 4 ids is null");
  EXPECT_EQ(refusal({}, shape(2, 0)), "");
}

TEST(Document, WantsIdsForEveryQuery) {
  const std::vector<int> ids(4);
  const auto with = [&](int queries, const mha::Origins& origin, int batch = 1) {
    return refusal(ids, {.batch = batch, .heads = 1, .queries = queries, .keys = 4, .origin = origin});
  };
  EXPECT_EQ(with(2, 2), "");
  EXPECT_EQ(with(6, -2), "");
  EXPECT_EQ(with(2, 4), "Document: the last query is at position 5 but there are ids for 4");
  const int each[2] = {0, 3};
  EXPECT_EQ(with(2, mha::Origins(each), 2), "Document: the last query is at position 4 but there are ids for 4");
}

TEST(Document, WantsIdsThatDoNotDecreaseWithinARow) {
  const std::vector<int> falls{1, 3, 2}, second{0, 1, 2, 4, 5, -1}, restarts{0, 1, 2, 0, 0, 1};
  EXPECT_EQ(refusal(falls, shape(1, 3)), "Document: ids decrease from 3 to 2 at position 2 of sequence 0");
  EXPECT_EQ(refusal(second, shape(2, 3)), "Document: ids decrease from 5 to -1 at position 2 of sequence 1");
  EXPECT_EQ(refusal(restarts, shape(2, 3)), "");
}

TEST(Document, DoesNotReadDeviceMemoryOnTheHost) {
  const int unread[3] = {2, 1, 0};  // host memory would be refused for these
  EXPECT_EQ(refusal({unread, 3, mha::Memory::device}, shape(1, 3)), "");
  EXPECT_EQ(refusal({unread, 3, mha::Memory::device}, shape(1, 4)), "Document: 3 ids for a sequence of 4 keys: give 4");
}

TEST(Document, HandsOutItsDataToBeMoved) {
  const std::vector<int> ids{0, 0, 1, 1, 1, 1}, elsewhere{0, 1, 1, 0, 0, 1};
  int asked = 0;
  const auto moved = mha::with_data(Document{ids}.prepared(shape(2, 3)), [&](const mha::Borrowed<int>& data) {
    ++asked;
    EXPECT_EQ(data.data, ids.data());
    return mha::Borrowed<int>(elsewhere);
  });
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(moved.row_stride, 3);
  EXPECT_FALSE(moved(1, 0, 0, 2));
}

TEST(Document, ComposesWithCausal) {
  const std::vector<int> ids{0, 0, 1, 1, 1};
  const auto mask = mha::prepared(Document{ids} && mha::Causal{}, shape(1, 5));
  EXPECT_TRUE(mask(0, 0, 3, 2));
  EXPECT_FALSE(mask(0, 0, 2, 3));
  EXPECT_FALSE(mask(0, 0, 2, 1));
  EXPECT_TRUE(mha_test::tiles_are(Promise::honest, mask, shape(1, 5)));
}

TEST(Document, IsABorrowingMaskWithoutOwnership) {
  static_assert(mha::Mask<Document> && mha::Borrows<Document> && std::is_trivially_copyable_v<Document>);
}

}  // namespace
