// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/backward_memory.hpp>

namespace {

namespace simd = mha::detail::simd;

/// Every array can be filled without another changing.
template <class X> void expect_apart(const std::vector<std::pair<X*, int>>& arrays) {
  for (std::size_t i = 0; i < arrays.size(); ++i) std::fill_n(arrays[i].first, arrays[i].second, X(i + 1));
  for (std::size_t i = 0; i < arrays.size(); ++i)
    EXPECT_EQ(std::count(arrays[i].first, arrays[i].first + arrays[i].second, X(i + 1)), arrays[i].second) << i;
}

TEST(BackwardMemory, HasWhatACallNeedsAndNoMore) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const simd::RowMemory<float> plain(frame, 3, 16, false, 0);
  EXPECT_EQ(plain.own_log2_sum, nullptr);
  EXPECT_EQ(plain.own_delta, nullptr);
  EXPECT_EQ(plain.slots, nullptr);
  const simd::RowMemory<float> rows(frame, 3, 16, true, 8);
  expect_apart<float>({{plain.level, 48},
                       {plain.log2_sum, 48},
                       {plain.delta, 48},
                       {rows.level, 48},
                       {rows.log2_sum, 48},
                       {rows.delta, 48},
                       {rows.own_log2_sum, 48},
                       {rows.own_delta, 48}});
  expect_apart<double>({{plain.sink, 3}, {rows.sink, 3}, {rows.slots, 24}});

  const simd::PairScratch<double> few(frame, 5, 16, false, false, 0);
  EXPECT_EQ(few.own_p, nullptr);
  EXPECT_EQ(few.own_ds, nullptr);
  EXPECT_EQ(few.dots, nullptr);
  EXPECT_EQ(few.tables, nullptr);
  const simd::PairScratch<double> all(frame, 5, 16, true, true, 2);
  expect_apart<double>({{few.derivative, 80},
                        {all.derivative, 80},
                        {all.own_p, 80},
                        {all.own_ds, 80},
                        {all.dots, 80},
                        {all.tables[0], 80},
                        {all.tables[1], 80}});
}

}  // namespace
