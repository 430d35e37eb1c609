// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/copy.hpp>
#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/workspace.hpp>

namespace {

using mha::TensorView;
using mha::detail::copy_items;
using mha::detail::run_serially;

TEST(Copy, ReadsAndWritesAnyStrides) {
  mha::Tensor<int, 4> from(2, 3, 4, 5), to(5, 4, 3, 2);
  std::iota(from.begin(), from.end(), 1);
  const TensorView<const int, 4> source = from.view();
  const TensorView<int, 4> turned{to.data(), {2, 3, 4, 5}, {1, 2, 6, 24}};
  const auto items = copy_items(source, turned);
  EXPECT_EQ(items.rows * items.columns, 120);
  run_serially(items);
  for (int a = 0; a < 2; ++a)
    for (int b = 0; b < 3; ++b)
      for (int c = 0; c < 4; ++c)
        for (int d = 0; d < 5; ++d) EXPECT_EQ(to(d, c, b, a), from(a, b, c, d));
}

TEST(Copy, OfFewerAxesAndOfNothing) {
  int numbers[6] = {1, 2, 3, 4, 5, 6}, copy[6] = {};
  const TensorView<const int, 2> columns{numbers, {3, 2}, {1, 3}};
  run_serially(copy_items(columns, mha::view(copy, 3, 2)));
  EXPECT_EQ(copy[0], 1);
  EXPECT_EQ(copy[1], 4);
  EXPECT_EQ(copy[5], 6);
  const TensorView<const int, 3> repeated{numbers, {2, 1, 3}, {0, 0, 1}};
  run_serially(copy_items(repeated, mha::view(copy, 2, 1, 3)));
  EXPECT_EQ(copy[3], 1);
  EXPECT_EQ(copy[5], 3);
  for (const auto& none : {mha::view(copy, 0, 3), mha::view(copy, 3, 0)})
    run_serially(copy_items(TensorView<const int, 2>(none), none));
}

TEST(Copy, TakesRowMajorMemoryOfTheSameExtents) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const int numbers[6] = {1, 2, 3, 4, 5, 6};
  const TensorView<const int, 2> columns = mha::transposed(mha::view(numbers, 2, 3));
  const TensorView<double, 2> to = mha::detail::take_like<double>(frame, columns);
  EXPECT_EQ(to.extent[0], 3);
  EXPECT_EQ(to.extent[1], 2);
  EXPECT_TRUE(mha::is_contiguous(to));
  const auto owner = mha::detail::owner_like<mha::Tensor<float, 2>>(columns);
  EXPECT_EQ(owner.extent(0), 3);
}

// (2^31 − 1)^4 elements, or 2^64, which would be 0: a copy of what one element shows.
TEST(Copy, OfMoreElementsThanMemoryHoldsIsRefused) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const float one = 1;
  for (const mha::Index e : {2147483647, 1 << 16}) {
    const TensorView<const float, 4> v{&one, {e, e, e, e}, {}};
    EXPECT_THROW(mha::detail::take_like<float>(frame, v), mha::ShapeError);
  }
  EXPECT_EQ(workspace.allocations(), 0);
}

/// Matrices larger than a block and not a multiple of one, in any order of the axes, from any row to any other.
TEST(Copy, InBlocksIsTheCopyOfEachElement) {
  for (const auto& extent : {std::array{1, 1, 130, 70},
                             {1, 130, 1, 70},
                             {2, 65, 1, 67},
                             {130, 1, 1, 33},
                             {2, 3, 70, 65},
                             {1, 1, 1, 100},
                             {1, 1, 100, 1},
                             {3, 1, 64, 64}}) {
    const auto [A, B, C, D] = extent;
    const std::size_t n = static_cast<std::size_t>(A) * static_cast<std::size_t>(B) * static_cast<std::size_t>(C) *
                          static_cast<std::size_t>(D);
    // The last axis outermost, the last axis innermost, and backwards.
    const std::array<std::ptrdiff_t, 4> strides[] = {{std::ptrdiff_t{B} * C, C, 1, std::ptrdiff_t{A} * B * C},
                                                     {std::ptrdiff_t{B} * C * D, std::ptrdiff_t{C} * D, D, 1},
                                                     {1, A, std::ptrdiff_t{A} * B, std::ptrdiff_t{A} * B * C}};
    for (const auto& s : strides)
      for (const auto& t : strides) {
        std::vector<int> from(n), to(n, -1);
        std::iota(from.begin(), from.end(), 1);
        TensorView<const int, 4> x{from.data(), {A, B, C, D}, {s[0], s[1], s[2], s[3]}};
        const TensorView<int, 4> y{to.data(), {A, B, C, D}, {t[0], t[1], t[2], t[3]}};
        if (s[3] != 1) {  // its columns in the opposite order
          x.data += s[3] * (D - 1);
          x.stride[3] = -s[3];
        }
        const auto items = copy_items(x, y);
        mha::detail::run_rows(items, 0, items.rows / 3);
        mha::detail::run_rows(items, items.rows / 3, items.rows);
        std::size_t wrong = 0;
        for (int a = 0; a < A; ++a)
          for (int b = 0; b < B; ++b)
            for (int c = 0; c < C; ++c)
              for (int d = 0; d < D; ++d) wrong += y(a, b, c, d) != x(a, b, c, d) ? 1u : 0u;
        EXPECT_EQ(wrong, 0u) << A << ' ' << B << ' ' << C << ' ' << D << " strides " << s[0] << ' ' << t[0];
        std::fill(to.begin(), to.end(), -1);
        for (std::ptrdiff_t row = 0; row < items.rows; ++row)
          for (mha::Index column = 0; column < items.columns; ++column) items(row, column);
        for (int d = 0; d < D; ++d) EXPECT_EQ(y(A - 1, B - 1, C - 1, d), x(A - 1, B - 1, C - 1, d));
      }
  }
}

// Of rows and of columns that lie together, in a wider scalar and in a narrower one.
TEST(ConvertItems, WriteOrAddTheNumbersOfAnotherScalar) {
  for (const bool turned : {false, true}) {
    constexpr int M = 37, N = 21;
    std::vector<mha::half> from(std::size_t{M} * N), sum(from.size());
    std::vector<float> to(from.size(), -1.f);
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = mha::half(static_cast<float>(i) / 4);
      sum[i] = mha::half(static_cast<float>(i % 7));
    }
    const auto matrix = [&](auto& v) {
      return turned ? mha::transposed(mha::view(v.data(), N, M)) : mha::view(v.data(), M, N);
    };
    const auto wide = mha::detail::convert_items<false>(TensorView<const mha::half, 2>(matrix(from)), matrix(to));
    mha::detail::run_rows(wide, 0, 5);
    mha::detail::run_rows(wide, 5, wide.rows);
    for (std::size_t i = 0; i < from.size(); ++i) ASSERT_EQ(to[i], static_cast<float>(from[i]));
    const std::vector<mha::half> before = sum;
    mha::detail::run_serially(mha::detail::convert_items<true>(TensorView<const float, 2>(matrix(to)), matrix(sum)));
    for (std::size_t i = 0; i < from.size(); ++i)
      ASSERT_EQ(static_cast<float>(sum[i]),
                static_cast<float>(mha::half(static_cast<float>(before[i]) + static_cast<float>(from[i]))));
  }
}

TEST(ZeroItems, MakeAllZero) {
  std::vector<float> x(7, 3.f);
  mha::detail::run_serially(mha::detail::zero_items(x.data(), 6));
  EXPECT_EQ(x, (std::vector<float>{0, 0, 0, 0, 0, 0, 3}));
}

}  // namespace
