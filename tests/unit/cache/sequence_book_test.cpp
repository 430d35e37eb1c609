// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>
#include <unordered_map>

#include <gtest/gtest.h>

#include <mha/cache/sequence_book.hpp>

namespace {

using mha::SequenceId;
using mha::detail::SequenceBook;

std::string refusal(const SequenceBook& book, const SequenceId& id) {
  try {
    static_cast<void>(book.slot("length", id));
  } catch (const mha::ShapeError& e) {
    return e.what();
  }
  return "";
}

TEST(SequenceBook, KnowsItsOwnSequencesOnly) {
  SequenceBook book(2), other(2);
  const SequenceId a = book.add("add"), b = book.add("add"), of_other = other.add("add");
  EXPECT_NE(book.slot("length", a), book.slot("length", b));
  EXPECT_EQ(refusal(book, of_other), "length: the sequence was removed, or is of another cache");
  EXPECT_EQ(refusal(book, SequenceId{}), "length: the sequence is an empty SequenceId: add() and fork() return one");
}

TEST(SequenceBook, ASequenceIsAKeyOfAnUnorderedMap) {
  SequenceBook book(2);
  const SequenceId a = book.add("add"), b = book.add("add");
  std::unordered_map<SequenceId, int> requests{{a, 1}, {b, 2}};
  EXPECT_EQ(requests.at(a), 1);
  EXPECT_EQ(requests.at(b), 2);
  EXPECT_FALSE(requests.contains(SequenceId{}));
  const std::hash<SequenceId> hash;
  EXPECT_NE(hash(a), hash(b));
}

TEST(SequenceBook, ASequenceIsAKeyOfAMapInTheOrderOfAdd) {
  SequenceBook book(2), other(1);
  const SequenceId dead = book.add("add"), second = book.add("add"), third = other.add("add");
  book.remove(book.slot("remove", dead));
  const SequenceId last = book.add("add");  // in dead's slot
  const std::map<SequenceId, int> requests{{last, 4}, {second, 2}, {third, 3}, {dead, 1}, {SequenceId{}, 0}};
  int place = 0;
  for (const auto& [id, number] : requests) EXPECT_EQ(number, place++);
  EXPECT_EQ(place, 5);
}

TEST(SequenceBook, ARemovedSequenceIsNeverTakenForAnother) {
  SequenceBook book(1);
  const SequenceId dead = book.add("add");
  book.set_length(book.slot("length", dead), 7);
  book.remove(book.slot("remove", dead));
  const SequenceId next = book.add("add");  // in the same slot
  EXPECT_EQ(book.length(book.slot("length", next)), 0);
  EXPECT_EQ(refusal(book, dead), "length: the sequence was removed, or is of another cache");
  EXPECT_FALSE(dead == next);
}

TEST(SequenceBook, SaysHowManyItHasMemoryFor) {
  SequenceBook book(3);
  for (int i = 0; i < 3; ++i) static_cast<void>(book.add("add"));
  EXPECT_EQ(book.size(), 3);
  try {
    static_cast<void>(book.add("fork"));
    FAIL();
  } catch (const mha::CacheFull& e) {
    EXPECT_STREQ(e.what(),
                 "fork: the cache has 3 sequences, the limit is 3: remove one first, or make the cache with "
                 "CacheSizes{.sequences = more}");
    EXPECT_EQ(e.of, mha::CacheFull::sequences);
    EXPECT_EQ(e.needed, 1);
    EXPECT_EQ(e.free, 0);
    EXPECT_EQ(e.total, 3);
  }
}

}  // namespace
