// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/step_lists.hpp>

namespace {

using mha::Index;
using mha::SequenceId;
using mha::detail::RowCounts;
using mha::detail::SequenceList;

std::vector<SequenceId> ids(const SequenceList& list) { return {list.all().begin(), list.all().end()}; }
/// What the first n sequences get.
std::vector<Index> rows(const RowCounts& counts, std::size_t n) {
  std::vector<Index> each;
  for (std::size_t i = 0; i < n; ++i) each.push_back(counts[i]);
  return each;
}

TEST(SequenceList, IsAnArrayAListInBracesOrOneSequence) {
  mha::detail::SequenceBook book(3);
  const SequenceId a = book.add("add"), b = book.add("add");
  const std::vector<SequenceId> both{a, b};
  const SequenceId array[] = {a, b};
  std::vector<SequenceId> changing = both;
  EXPECT_EQ(ids(both), both);
  EXPECT_EQ(ids(array), both);
  EXPECT_EQ(ids(changing), both);
  EXPECT_EQ(ids(std::span(changing)), both);
  EXPECT_EQ(ids(std::array{a, b}), both);
  EXPECT_EQ(ids(book.all()), both);
  EXPECT_EQ(ids({a, b}), both);
  EXPECT_EQ(ids({b}), std::vector{b});
  EXPECT_EQ(ids(b), std::vector{b});
  EXPECT_TRUE(ids({}).empty());
  EXPECT_EQ(SequenceList(both).all().data(), both.data()) << "nothing is copied";
}

TEST(RowCounts, AreAListOrOneNumberForEach) {
  const std::vector<Index> list{4, 0};
  const Index array[] = {4, 0};
  EXPECT_EQ(rows(list, 2), list);
  EXPECT_EQ(rows(array, 2), list);
  EXPECT_EQ(rows(std::array{4, 0}, 2), list);
  EXPECT_EQ(rows(std::span(list), 2), list);
  EXPECT_EQ(rows({4, 0}, 2), list);
  EXPECT_EQ(rows({4}, 1), std::vector{4});
  EXPECT_EQ(rows(4, 3), (std::vector<Index>{4, 4, 4}));
  EXPECT_EQ(rows(4L, 1), std::vector{4});
  EXPECT_TRUE(rows(4, 0).empty());
  EXPECT_TRUE(rows({}, 0).empty());
  EXPECT_TRUE(RowCounts({4}).is_list() && RowCounts(list).is_list());
  EXPECT_FALSE(RowCounts(4).is_list()) << "one for all";
}

}  // namespace
