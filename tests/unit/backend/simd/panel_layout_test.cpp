// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <gtest/gtest.h>

#include <mha/backend/simd/panel_layout.hpp>

namespace {

using mha::Index;
using mha::scaled_int4;
using mha::scaled_int8;
using namespace mha::detail::simd;

static_assert(panel_columns<float> == 48 && panel_columns<double> == 24 && depth_block == 256);
static_assert(panel_group<float> == 256 && panel_group<mha::half> == 256);
static_assert(panel_group<scaled_int8> == 256 && panel_group<scaled_int4> == 32);
static_assert(panel_lead<float> == 0 && panel_lead<mha::half> == 0);
static_assert(panel_lead<scaled_int8> == 4 * 48 && panel_lead<scaled_int4> == 2 * 48);
static_assert(panel_pairs<scaled_int4> && !panel_pairs<scaled_int8> && !panel_pairs<mha::bfloat16>);

TEST(PanelLayout, HasAScaleForEachColumnBeforeEachBlock) {
  using S = scaled_int8;
  EXPECT_EQ(panel_row_at<S>(0), 192);
  EXPECT_EQ(panel_row_at<S>(255), 192 + 255 * 48);
  EXPECT_EQ(panel_row_at<S>(256), 2 * 192 + 256 * 48);
  EXPECT_EQ(panel_row_at<S>(600), 3 * 192 + 600 * 48);
  EXPECT_EQ(panel_elements<S>(0), 0);
  EXPECT_EQ(panel_elements<S>(1), 192 + 48);
  EXPECT_EQ(panel_elements<S>(256), 192 + 256 * 48);
  EXPECT_EQ(panel_elements<S>(257), 2 * 192 + 257 * 48);
  EXPECT_EQ(panel_row_at<mha::half>(300), 300 * 48);
  EXPECT_EQ(panel_elements<double>(300), 300 * 24);
  EXPECT_EQ(panel_row_bytes<float>, 192);
  EXPECT_EQ(panel_row_bytes<double>, 192);
  EXPECT_EQ(panel_row_bytes<mha::half>, 96);
  EXPECT_EQ(panel_row_bytes<S>, (192 + 256 * 48) / 256);
}

TEST(PanelLayout, OfFourBitsHasTwoRowsInAByteAndGroupsOfThirtyTwo) {
  using S = scaled_int4;
  EXPECT_EQ(panel_rows_elements<S>(0), 0);
  EXPECT_EQ(panel_rows_elements<S>(1), 48);
  EXPECT_EQ(panel_rows_elements<S>(2), 48);
  EXPECT_EQ(panel_rows_elements<S>(31), 16 * 48);
  EXPECT_EQ(panel_row_at<S>(0), 96);
  EXPECT_EQ(panel_row_at<S>(32), 2 * 96 + 16 * 48);
  EXPECT_EQ(panel_row_at<S>(64), 3 * 96 + 32 * 48);
  EXPECT_EQ(panel_row_at<S>(256), 9 * 96 + 128 * 48);
  EXPECT_EQ(panel_elements<S>(0), 0);
  EXPECT_EQ(panel_elements<S>(1), 96 + 48);
  EXPECT_EQ(panel_elements<S>(31), 96 + 16 * 48);
  EXPECT_EQ(panel_elements<S>(32), 96 + 16 * 48);
  EXPECT_EQ(panel_elements<S>(33), 2 * 96 + 17 * 48);
  EXPECT_EQ(panel_elements<S>(256), 8 * (96 + 16 * 48));
  EXPECT_EQ(panel_elements<S>(257), 9 * 96 + 129 * 48);
  EXPECT_EQ(panel_row_bytes<S>, 27);  // 24 of numbers and 3 of scales
}

// A panel ends where the lead of a next group would begin.
TEST(PanelLayout, GroupsFollowOneAnother) {
  const auto expect = []<class S>(S) {
    for (Index groups = 1; groups < 20; ++groups)
      EXPECT_EQ(panel_row_at<S>(groups * panel_group<S>), panel_elements<S>(groups * panel_group<S>) + panel_lead<S>);
  };
  expect(scaled_int4{});
  expect(scaled_int8{});
  expect(mha::half{});
}

}  // namespace
