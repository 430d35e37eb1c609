// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
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
  support::Random random("few rows");
  unit::for_each_level([&](auto isa) {
    const Index width = simd::Vector<A, decltype(isa)>::width;
    for (const Index rows : {1, 2, 3, 4, 7, 8})
      for (const Index head_dim : {16, 48})
        for (const Index value_dim : {16, 64, 112, 272}) {
          const auto few = simd::few_rows_kernels<A, T>(isa.level, rows, head_dim, value_dim);
          if (few.rows == 0) continue;
          ASSERT_GE(few.rows, rows);
          const Index n = 2 * width, stride = value_dim + head_dim + 1;
          const auto size = [](Index a, Index b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
          std::vector<T> stored(size(n, stride));  // a key, then its value
          random.fill(stored);
          std::vector<A> wide(stored.begin(), stored.end()), q(size(head_dim, width)), s(size(n, width)),
              expected_s(size(n, width)), fade(size(1, width)), out(size(few.rows, value_dim)),
              columns(size(value_dim, width));
          random.fill(q);
          random.fill(fade);
          random.fill(out);
          for (Index r = 0; r < few.rows; ++r)
            for (Index d = 0; d < value_dim; ++d)
              columns[static_cast<std::size_t>(d * width + r)] = out[static_cast<std::size_t>(r * value_dim + d)];
          const auto tile = simd::tile_kernels<A>(isa.level, rows);
          ASSERT_EQ(tile.lanes, width);
          support::poison_all(s);
          few.scores(stored.data(), stride, n, q.data(), head_dim, s.data(),
                     {stored.data() + head_dim, stride, value_dim, n});
          tile.scores({wide.data(), stride, q.data(), width, expected_s.data(), width, n, head_dim});
          for (Index k = 0; k < n; ++k)
            for (Index r = 0; r < rows; ++r)
              ASSERT_EQ(support::bits(s[static_cast<std::size_t>(k * width + r)]),
                        support::bits(expected_s[static_cast<std::size_t>(k * width + r)]))
                  << "score of key " << k << ", row " << r << " of " << rows;
          few.values(stored.data() + head_dim, stride, n - 1, expected_s.data(), fade.data(), value_dim, out.data(),
                     {stored.data(), stride, head_dim, n});
          tile.values(wide.data() + head_dim, stride, n - 1, expected_s.data(), nullptr, fade.data(), value_dim,
                      columns.data(), {});
          for (Index r = 0; r < rows; ++r)
            for (Index d = 0; d < value_dim; ++d)
              ASSERT_EQ(support::bits(out[static_cast<std::size_t>(r * value_dim + d)]),
                        support::bits(columns[static_cast<std::size_t>(d * width + r)]))
                  << "output " << d << " of row " << r << " of " << rows;
        }
  });
}

TYPED_TEST(FewRows, AreOnlyForSizesThatFillRegisters) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  unit::for_each_level([&](auto isa) {
    const Index width = simd::Vector<A, decltype(isa)>::width;
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 1, width + 1, width).rows), 0);
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 1, width, width - 1).rows), 0);
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 9, width, width).rows), 0);
    EXPECT_EQ((simd::few_rows_kernels<A, T>(isa.level, 3, width, width).rows), width >= 4 ? 4 : 0);
  });
}

}  // namespace
