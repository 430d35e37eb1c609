// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/few_rows.hpp>
#include <mha/backend/simd/tile_kernels.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

template <class T> class FewRows : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(FewRows, Scalars);

// The contract: the same bits as the kernels of a tile with queries in lanes, from keys and values as they are stored.
TYPED_TEST(FewRows, GiveTheBitsOfTheTile) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  constexpr Index s_stride = 48;
  support::Random random("few rows");
  const auto size = [](Index a, Index b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
  unit::for_each_level([&](auto isa) {
    const Index width = simd::Vector<A, decltype(isa)>::width;
    for (const Index rows : {1, 2, 3, 4, 7, 8, 9, 16})
      for (const Index head_dim : {16, 48})
        for (const Index value_dim : {16, 64, 112, 272}) {
          const auto few = simd::few_rows_kernels<A, T>(isa.level, rows, head_dim, value_dim);
          if (few.rows == 0) continue;
          ASSERT_GE(few.rows, rows);
          SCOPED_TRACE(std::to_string(rows) + " rows, dims " + std::to_string(head_dim) + ", " +
                       std::to_string(value_dim) + ", " + mha::to_string(isa.level));
          const Index n = 3 * width, some = n - 1, stride = value_dim + head_dim + 1;
          std::vector<T> stored(size(n, stride));  // a key, then its value
          random.fill(stored);
          const auto tile = simd::tile_kernels<A>(isa.level, rows);
          ASSERT_EQ(tile.lanes, width);
          std::vector<A> wide(stored.begin(), stored.end()), q(size(few.rows, head_dim)),
              q_lanes(size(head_dim, width)), s(size(few.rows, s_stride)), expected_s(size(n, width)),
              max(size(1, width)), sum(max), rescale(max), out(size(few.rows, value_dim)),
              columns(size(value_dim, width));
          random.fill(q);
          for (Index r = 0; r < few.rows; ++r)
            for (Index d = 0; d < head_dim; ++d)
              q_lanes[static_cast<std::size_t>(d * width + r)] = q[static_cast<std::size_t>(r * head_dim + d)];
          for (auto* state : {&max, &sum, &out}) random.fill(*state);
          std::vector<A> expected_max = max, expected_sum = sum, expected_rescale = rescale;
          for (Index r = 0; r < few.rows; ++r)
            for (Index d = 0; d < value_dim; ++d)
              columns[static_cast<std::size_t>(d * width + r)] = out[static_cast<std::size_t>(r * value_dim + d)];
          const auto expect_rows_of_s = [&](Index count, const char* what) {
            for (Index k = 0; k < count; ++k)
              for (Index r = 0; r < rows; ++r)
                ASSERT_EQ(support::bits(s[static_cast<std::size_t>(r * s_stride + k)]),
                          support::bits(expected_s[static_cast<std::size_t>(k * width + r)]))
                    << what << " of key " << k << ", row " << r;
          };

          // The last rows are elsewhere, as in another page; of what is asked for ahead nothing is read.
          const Index split = (1 + random.below(2)) * width;
          const std::vector<T> page(stored.begin() + std::ptrdiff_t{split} * stride, stored.end());
          std::fill(stored.begin() + std::ptrdiff_t{split} * stride, stored.end(), T(std::nanf("")));
          const auto runs = [&](Index begin, Index first, Index rest) {
            return std::array<simd::StoredRows<T>, 2>{
                {{stored.data() + begin, stride, first}, {page.data() + begin, stride, rest}}};
          };
          std::vector<simd::LineRange> lines(size(1, n));
          const auto keys = runs(0, split, n - split), values = runs(head_dim, split, some - split);

          support::poison_all(s);
          few.scores({keys.data(), 2}, q.data(), head_dim, s.data(), s_stride,
                     simd::line_ranges<T>({values.data(), 2}, value_dim, lines.data()));
          tile.scores({wide.data(), stride, q_lanes.data(), width, expected_s.data(), width, n, head_dim});
          expect_rows_of_s(n, "score");

          s[1] = expected_s[static_cast<std::size_t>(width)] = -std::numeric_limits<A>::infinity();
          few.softmax(s.data(), s_stride, few.rows, some, A(0.3), max.data(), rescale.data());
          tile.softmax(expected_s.data(), some, A(0.3), expected_max.data(), expected_sum.data(),
                       expected_rescale.data());
          expect_rows_of_s(some, "weight");

          few.values({values.data(), 2}, s.data(), s_stride, rescale.data(), value_dim, out.data(), sum.data(),
                     simd::line_ranges<T>({keys.data(), 2}, head_dim, lines.data()));
          tile.values(wide.data() + head_dim, stride, some, expected_s.data(), expected_rescale.data(), value_dim,
                      columns.data(), {});
          for (Index r = 0; r < rows; ++r) {
            const auto at = static_cast<std::size_t>(r);
            ASSERT_EQ(support::bits(max[at]), support::bits(expected_max[at])) << "maximum of row " << r;
            ASSERT_EQ(support::bits(rescale[at]), support::bits(expected_rescale[at])) << "rescale of row " << r;
            ASSERT_EQ(support::bits(sum[at]), support::bits(expected_sum[at])) << "sum of row " << r;
            for (Index d = 0; d < value_dim; ++d)
              ASSERT_EQ(support::bits(out[static_cast<std::size_t>(r * value_dim + d)]),
                        support::bits(columns[static_cast<std::size_t>(d * width + r)]))
                  << "output " << d << " of row " << r;
          }
        }
  });
}

TYPED_TEST(FewRows, AreOnlyForSizesThatFillRegisters) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  unit::for_each_level([&](auto isa) {
    const Index width = simd::Vector<A, decltype(isa)>::width;
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 1, 2 * width, 0).rows), 0);
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 1, width + 1, width).rows), 0);
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 1, width, width - 1).rows), 0);
    // Up to 16 rows where a register has as many lanes.
    const bool sixteen = width == 16 && !isa.minimal;
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 9, width, width).rows), sixteen ? 16 : 0);
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 17, width, width).rows), 0);
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 3, 2 * width, width).rows), width >= 4 && !isa.minimal ? 4 : 0);
  });
}

}  // namespace
