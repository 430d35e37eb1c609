// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/items.hpp>

namespace {

using mha::Index;

struct Visit {
  std::ptrdiff_t rows;
  Index columns, cost;
  int* visits;
  void operator()(std::ptrdiff_t row, Index column) const { ++visits[row * columns + column]; }
};

TEST(Items, AreRecognisedByTheirMembers) { static_assert(mha::Items<Visit> && !mha::Items<int>); }

TEST(Items, RunOnceEach) {
  std::vector<int> visits(5 * 3);
  mha::detail::run_serially(Visit{5, 3, 1, visits.data()});
  EXPECT_EQ(visits, std::vector<int>(15, 1));
  mha::detail::run_rows(Visit{5, 3, 1, visits.data()}, 1, 3);
  for (std::size_t i = 0; i < 15; ++i) EXPECT_EQ(visits[i], i >= 3 && i < 9 ? 2 : 1);
  mha::detail::SerialItems{}(Visit{0, 3, 1, nullptr});
  mha::detail::SerialItems{}(Visit{3, 0, 1, nullptr});
}

}  // namespace
