// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/version_book.hpp>

namespace {

using mha::Index;
using mha::detail::Growth;
using mha::detail::VersionBook;

TEST(VersionBook, CountsWhatIsCommitted) {
  VersionBook book(3, 2);
  book.write(0, 7);
  book.write(1, 8);
  EXPECT_EQ(book.of(0, 0), 0u) << "a step that is dropped leaves nothing";
  const Growth growths[] = {{0, 0, 4}, {2, 5, 0}};
  book.commit(growths);
  EXPECT_EQ(book.of(0, 0), 7u);
  EXPECT_EQ(book.of(0, 1), 8u);
  EXPECT_EQ(book.of(1, 0), 0u);
  EXPECT_EQ(book.of(2, 1), 0u) << "it had no row in the step";
  // Rows made elsewhere say nothing of those before them, but a sequence that begins with them is unknown.
  book.write(0, 0);
  const Growth on[] = {{0, 4, 1}}, anew[] = {{0, 0, 1}};
  book.commit(on);
  EXPECT_EQ(book.of(0, 0), 7u);
  book.commit(anew);
  EXPECT_EQ(book.of(0, 0), 0u);
}

TEST(VersionBook, RefusesRowsBehindThoseOfOtherWeights) {
  VersionBook book(2, 2);
  const auto step = [&](std::uint64_t first, std::uint64_t second, const Growth& growth) {
    book.write(0, first);
    book.write(1, second);
    book.commit(std::span(&growth, 1));
  };
  step(7, 8, {0, 0, 3});
  EXPECT_EQ(book.written()[0], 7u);
  EXPECT_EQ(book.written()[1], 8u);
  const Growth both[] = {{1, 0, 1}, {0, 3, 1}}, anew[] = {{0, 0, 1}};
  EXPECT_NO_THROW(book.check(both, 0, 7));
  EXPECT_NO_THROW(book.check(both, 1, 8));
  EXPECT_NO_THROW(book.check(anew, 1, 9)) << "it has no rows";
  try {
    book.check(both, 1, 9);
    ADD_FAILURE();
  } catch (const mha::ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("sequence 1 has keys and values of layer 1"), std::string::npos) << e.what();
  }
  step(0, 0, {1, 0, 2});  // made elsewhere: nothing is known
  const Growth on[] = {{1, 2, 1}};
  EXPECT_NO_THROW(book.check(on, 0, 9));
}

TEST(VersionBook, FollowsItsSequences) {
  VersionBook book(3, 2);
  for (Index slot = 0; slot < 3; ++slot) {
    for (Index layer = 0; layer < 2; ++layer) book.write(layer, static_cast<std::uint64_t>(10 * slot + layer + 1));
    const Growth growths[] = {{slot, 0, 1}};
    book.commit(growths);
  }
  book.copy(0, 1);
  EXPECT_EQ(book.of(1, 1), 2u);
  const std::vector<Index> slots{2, 0}, from{1, 0};
  book.reorder(slots, from);
  EXPECT_EQ(book.of(2, 0), 1u);
  EXPECT_EQ(book.of(0, 0), 21u);
  book.clear(0);
  EXPECT_EQ(book.of(0, 0), 0u);
  EXPECT_EQ(book.of(0, 1), 0u);
}

}  // namespace
