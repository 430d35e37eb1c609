// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cache/ring_rows.hpp>

namespace {

using mha::Index;
using mha::detail::RingRows;

// Against a plain model: position after position is written to the row that is free, or whose position is the oldest
// of those that may go.
TEST(RingRows, KeepTheFirstPositionsAndTheLatest) {
  for (const Index rows : {1, 2, 7})
    for (Index first = 0; first <= rows; ++first) {
      const RingRows ring{rows, first};
      EXPECT_EQ(ring.turns(), first < rows);
      std::vector<Index> kept(static_cast<std::size_t>(rows), -1);  // the position of each row
      const auto row_of = [&](Index p) {
        return static_cast<Index>(std::find(kept.begin(), kept.end(), p) - kept.begin());
      };
      for (Index written = 0; written <= (first < rows ? 4 * rows : rows); ++written) {
        if (written > 0) {
          const auto free = std::find(kept.begin(), kept.end(), -1);
          *(free != kept.end() ? free : std::min_element(kept.begin() + first, kept.end())) = written - 1;
        }
        const Index oldest = ring.oldest(written);
        EXPECT_EQ(oldest == 0, first == rows || written <= rows) << written << " written, " << first << " of " << rows;
        for (Index p = 0; p < written; ++p) {
          Index next = p;
          while (row_of(next) == rows) ++next;
          ASSERT_EQ(ring.held(p, oldest), next) << written << " written, the first " << first << " of " << rows;
          if (next != p) continue;
          EXPECT_EQ(ring.row(p), row_of(p));
          Index end = p, together = 1;
          while (end < written && row_of(end) != rows) ++end;
          EXPECT_EQ(ring.held_end(p, oldest, written), end);
          while (p + together < end && row_of(p + together) == row_of(p) + together) ++together;
          // The last row and the first of the ring meet in positions, the first positions and the ring in rows.
          EXPECT_GE(ring.together(p, end - p), 1);
          EXPECT_LE(ring.together(p, end - p), together);
          EXPECT_EQ(ring.together(p, 1), 1);
          if (p >= first) {
            EXPECT_EQ(ring.together(p, end - p), together);
          }
        }
      }
    }
}

TEST(RingRows, InMultiplesKeepAsMuchAndMore) {
  for (const Index first : {0, 3, 8, 9})
    for (const Index size : {0, 1, 7, 16}) {
      const RingRows ring{first + size, first}, whole = ring.in_multiples(8);
      EXPECT_EQ(whole.first, (first + 7) / 8 * 8);
      EXPECT_EQ(whole.size(), (size + 7) / 8 * 8);
      EXPECT_EQ(whole.turns(), ring.turns());
      for (Index p = 0; p < (size > 0 ? 100 : first); ++p) EXPECT_EQ(whole.row(p) % 8, p % 8);
      EXPECT_EQ(ring.in_multiples(1).rows, ring.rows);
      EXPECT_EQ(ring.in_multiples(1).first, first);
    }
}

}  // namespace
