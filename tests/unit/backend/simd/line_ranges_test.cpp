// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/line_ranges.hpp>

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

template <class T> class LineRanges : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(LineRanges, Scalars);

/// Where the first line begins.
template <class T> const T* first_line(const std::vector<T>& memory) {
  const T* at = memory.data();
  while (simd::LineRange::in_line(at) != 0) ++at;
  return at;
}

// Rows beside each other are one range, others a range each, rounded up to whole lines; of nothing there is none.
TYPED_TEST(LineRanges, AreForTheLinesOfRows) {
  using T = TypeParam;
  constexpr Index line = simd::LineRange::line / static_cast<Index>(sizeof(T)), dim = line + 1;
  std::vector<T> memory(std::size_t{21} * line);
  const T* const rows = first_line(memory);
  std::array<simd::LineRange, 5> to{};
  const std::array<simd::StoredRows<T>, 3> runs{
      {{rows, dim, 3}, {rows + 5 * line, dim, 0}, {rows + 6 * line, 3 * line, 2}}};
  const simd::LineRanges ranges = simd::line_ranges<T>({runs.data(), 3}, dim, to.data());
  ASSERT_EQ(ranges.count, 3);
  const auto expect = [&](Index i, Index first, Index lines) {
    const simd::LineRange& range = ranges.data[i];
    EXPECT_EQ(range.begin, reinterpret_cast<const char*>(rows + first)) << "range " << i;
    EXPECT_EQ(range.end - range.begin, lines * simd::LineRange::line) << "range " << i;
  };
  expect(0, 0, 4);
  expect(1, 6 * line, 2);
  expect(2, 9 * line, 2);
  EXPECT_EQ(simd::line_ranges<T>({runs.data(), 3}, 0, to.data()).count, 0);
  EXPECT_EQ(simd::line_ranges<T>({}, dim, to.data()).count, 0);
}

// Wherever in a line a row begins, its range has the lines that the row touches: those from `begin` on, and that of the
// last byte before `end`.
TYPED_TEST(LineRanges, AreForTheLastLineOfRowsThatBeginInsideOne) {
  using T = TypeParam;
  constexpr Index line = simd::LineRange::line / static_cast<Index>(sizeof(T));
  std::vector<T> memory(std::size_t{8} * line);
  const T* const rows = first_line(memory);
  const auto line_of = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) / simd::LineRange::line; };
  for (const Index dim : {Index{1}, line - 1, line, line + 1, 3 * line})
    for (Index i = 0; i < line; ++i) {
      const simd::StoredRows<T> row{rows + i, 2 * dim, 1};
      simd::LineRange range{};
      ASSERT_EQ(simd::line_ranges<T>({&row, 1}, dim, &range).count, 1);
      SCOPED_TRACE("dim " + std::to_string(dim) + " from element " + std::to_string(i));
      EXPECT_EQ(line_of(range.begin), line_of(rows + i));
      EXPECT_EQ(line_of(range.end - 1), line_of(reinterpret_cast<const char*>(rows + i + dim) - 1));
    }
}

// With the scales that lead the rows.
TEST(LineRangesOfEightBits, HaveTheScalesToo) {
  using T = mha::scaled_int8;
  constexpr Index line = simd::LineRange::line, dim = 2 * line - 4;
  std::vector<T> memory(std::size_t{20} * line);
  const T* const first = first_line(memory) + line;
  std::array<simd::LineRange, 8> to{};
  const std::array<simd::StoredRows<T>, 3> runs{
      {{first + 4, dim + 4, 3}, {first + 7 * line, dim + 4, 1}, {first + 10 * line + 4, dim + 5, 2}}};
  const simd::LineRanges ranges = simd::line_ranges<T>({runs.data(), 3}, dim, to.data());
  ASSERT_EQ(ranges.count, 4) << "rows and scales without a gap are one range";
  const auto expect = [&](Index i, Index begin, Index lines) {
    EXPECT_EQ(ranges.data[i].begin - reinterpret_cast<const char*>(first), begin) << "range " << i;
    EXPECT_EQ(ranges.data[i].end - ranges.data[i].begin, lines * line) << "range " << i;
  };
  expect(0, 0, 6);
  expect(1, 7 * line - 4, 2);  // and a line more, in which it ends
  expect(2, 10 * line, 2);
  expect(3, 12 * line + 1, 2);
  EXPECT_EQ(simd::line_ranges<T>({runs.data(), 3}, 0, to.data()).count, 0);
}

}  // namespace
