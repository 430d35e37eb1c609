// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/row_kernel.hpp>
#include <mha/core/scalar.hpp>

#include "compare.hpp"
#include "levels.hpp"
#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

template <class T> class RowKernel : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(RowKernel, Scalars);

// The contract: the bits of a panel, whatever the columns, and nothing read or written beyond them.
TYPED_TEST(RowKernel, GivesTheBitsOfPanels) {
  using T = TypeParam;
  using A = mha::Accumulator<T>;
  constexpr Index panel = simd::panel_columns<A>;
  support::Random random("row kernel");
  const auto size = [](Index a, Index b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
  unit::for_each_level([&](auto isa) {
    const Index width = simd::Vector<A, decltype(isa)>::width;
    for (const Index depth : {1, 7, 8, 77, 256, 259, 520})
      for (const Index columns : {Index{1}, width - 1, width, panel - 1, panel})
        for (const bool with_bias : {false, true}) {
          if (columns == 0) continue;
          SCOPED_TRACE(std::to_string(depth) + " x " + std::to_string(columns) + ", " + mha::to_string(isa.level));
          const Index stride = columns + 3;
          std::vector<T> matrix(size(depth, stride)), packed(size(depth, panel), T(A(0)));
          for (Index k = 0; k < depth; ++k)
            for (Index j = 0; j < stride; ++j) {
              T& x = matrix[static_cast<std::size_t>(k * stride + j)];
              x = j < columns ? random.rounded<T>(random.normal()) : support::poison<T>();
              if (j < columns) packed[static_cast<std::size_t>(k * panel + j)] = x;
            }
          std::vector<A> row(size(1, depth) + 1), bias(size(1, panel)), block(bias), out(bias), expected(bias);
          random.fill(row);
          random.fill(bias);
          support::poison_all(block);
          support::poison_all(out);
          const A* const before = with_bias ? bias.data() : nullptr;
          simd::row_kernel<A, T>(isa.level)(
              {row.data(), matrix.data(), stride, depth, columns, before, block.data(), out.data()});
          for (Index k = 0; k < depth; k += simd::depth_block)
            simd::panel_kernel<A, T>(isa.level)({row.data() + k, 0, packed.data() + k * panel, packed.data(),
                                                 k == 0 ? before : expected.data(), 0, expected.data(), panel, 1,
                                                 std::min(simd::depth_block, depth - k), columns});
          for (Index j = 0; j < columns; ++j)
            ASSERT_EQ(support::bits(out[static_cast<std::size_t>(j)]),
                      support::bits(expected[static_cast<std::size_t>(j)]))
                << "column " << j;
          for (Index j = (columns + width - 1) / width * width; j < panel; ++j)
            ASSERT_EQ(support::bits(out[static_cast<std::size_t>(j)]), support::bits(support::poison<A>()));
        }
  });
}

}  // namespace
