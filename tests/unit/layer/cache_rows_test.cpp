// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/items.hpp>
#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/cache_rows.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;

/// By items one after another, as a device runs them, or by rows at once, as the host does.
template <class I> void run(const I& items, bool at_once) {
  if (at_once) return mha::detail::run_serially(items);
  for (std::ptrdiff_t row = 0; row < items.rows; ++row)
    for (Index column = 0; column < items.columns; ++column) items(row, column);
}

/// Numbers that differ, and that 16 bits hold.
template <class T, int Rank> void number(Tensor<T, Rank>& t, int from) {
  for (T& e : t) e = T(float(from++ % 251));
}

/// Rows of two sequences to rows that are named, in the middle of wider rows as they come from one product of all.
template <class T, class F>
void expect_written(Index dim, Index value_dim, Index before, Index expected_piece, Index after = 0) {
  constexpr Index heads = 3, n = 2;
  for (const bool at_once : {false, true}) {
    const Index width = before + heads * (dim + value_dim) + after;
    Tensor<T, 3> rows(2, n, width);
    number(rows, 1);
    const auto part = [&](Index at, Index size) {
      return mha::TensorView<const T, 4>{
          &rows(0, 0, at), {2, n, heads, size}, {n * std::ptrdiff_t{width}, width, size, 1}};
    };
    Tensor<F, 3> to_key(9, heads, dim), to_value(9, heads, value_dim);
    for (auto* t : {&to_key, &to_value})
      for (F& e : *t) e = F(-1.0f);
    const Index to_row[] = {4, 5, 8, 0};
    const auto items = mha::detail::move_rows<T, F>(4, part(before, dim), part(before + heads * dim, value_dim),
                                                    to_key.view(), to_value.view(), nullptr, to_row);
    EXPECT_EQ(items.cost, expected_piece);
    run(items, at_once);
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < n; ++i)
        for (Index g = 0; g < heads; ++g) {
          for (Index d = 0; d < dim; ++d)
            ASSERT_EQ(float(to_key(to_row[n * b + i], g, d)), float(rows(b, i, before + g * dim + d)));
          for (Index d = 0; d < value_dim; ++d)
            ASSERT_EQ(float(to_value(to_row[n * b + i], g, d)),
                      float(rows(b, i, before + (heads * dim) + g * value_dim + d)));
        }
    for (const Index row : {1, 2, 3, 6, 7}) {
      for (Index d = 0; d < dim; ++d) ASSERT_EQ(float(to_key(row, 1, d)), -1.0f);
      for (Index d = 0; d < value_dim; ++d) ASSERT_EQ(float(to_value(row, 1, d)), -1.0f);
    }
  }
}

TEST(MoveRows, WritesEveryRowToItsPlaceBySixteenBytesWhereItCan) {
  expect_written<float, float>(8, 4, 4, 4);
  expect_written<float, float>(8, 4, 3, 1);     // rows begin between
  expect_written<float, float>(8, 6, 4, 1);     // values end between
  expect_written<float, float>(8, 4, 4, 1, 2);  // every other row begins between
  expect_written<mha::bfloat16, mha::bfloat16>(16, 24, 8, 8);
  expect_written<mha::bfloat16, mha::bfloat16>(12, 24, 8, 1);
  expect_written<float, mha::bfloat16>(8, 4, 4, 4);
  expect_written<mha::bfloat16, float>(8, 4, 4, 4);
  expect_written<float, mha::bfloat16>(3, 2, 0, 1);
  expect_written<double, double>(4, 2, 2, 2);
}

TEST(MoveRows, ReadsTheRowsThatAreNamed) {
  constexpr Index heads = 2, dim = 3, value_dim = 1;
  for (const bool at_once : {false, true}) {
    Tensor<double, 4> key(1, 6, heads, dim), value(1, 6, heads, value_dim);
    number(key, 1);
    number(value, 100);
    Tensor<double, 3> to_key(3, heads, dim), to_value(3, heads, value_dim);
    const Index from_row[] = {5, 0, 3};
    run(mha::detail::move_rows<double, double>(3, key.view(), value.view(), to_key.view(), to_value.view(), from_row,
                                               nullptr),
        at_once);
    for (Index i = 0; i < 3; ++i)
      for (Index g = 0; g < heads; ++g) {
        for (Index d = 0; d < dim; ++d) EXPECT_EQ(to_key(i, g, d), key(0, from_row[i], g, d));
        EXPECT_EQ(to_value(i, g, 0), value(0, from_row[i], g, 0));
      }
  }
}

/// Rows of T at any stride to rows of 8 bits, which are then moved as they are.
template <class T> void expect_rounded(Index dim, Index value_dim, Index step) {
  using mha::scaled_int8;
  constexpr Index heads = 3, n = 4;
  support::Random random("rows to 8 bits");
  const Index width = mha::row_elements<scaled_int8>(dim), value_width = mha::row_elements<scaled_int8>(value_dim);
  std::vector<T> rows(static_cast<std::size_t>(n * heads * (dim + value_dim) * step));
  random.fill(rows);
  const auto part = [&](Index at, Index size) {
    const std::ptrdiff_t head = std::ptrdiff_t{dim + value_dim} * step;
    return mha::TensorView<const T, 4>{rows.data() + at, {1, n, heads, size}, {0, heads * head, head, step}};
  };
  Tensor<scaled_int8, 3> to_key(9, heads, width), to_value(9, heads, value_width);
  support::poison_all(to_key);
  support::poison_all(to_value);
  const Index to_row[] = {4, 5, 8, 0};
  const auto key = part(0, dim), value = part(dim * step, value_dim);
  mha::detail::run_serially(
      mha::detail::move_rows<T, scaled_int8>(n, key, value, to_key.view(), to_value.view(), nullptr, to_row));
  for (Index i = 0; i < n; ++i)
    for (Index g = 0; g < heads; ++g) {
      std::vector<scaled_int8> expected(static_cast<std::size_t>(std::max(width, value_width)));
      mha::quantize_row(key.pointer(0, i, g, 0), dim, expected.data() + 4, step);
      for (Index e = 0; e < width; ++e)
        ASSERT_EQ(to_key(to_row[i], g, e).integer, expected[static_cast<std::size_t>(e)].integer);
      if (value_dim > 0) mha::quantize_row(value.pointer(0, i, g, 0), value_dim, expected.data() + 4, step);
      for (Index e = 0; e < value_width; ++e)
        ASSERT_EQ(to_value(to_row[i], g, e).integer, expected[static_cast<std::size_t>(e)].integer);
    }
  for (const Index row : {1, 2, 3, 6, 7})
    for (Index e = 0; e < width; ++e) ASSERT_EQ(to_key(row, 1, e).integer, support::poison<scaled_int8>().integer);
  // Saved and restored: as bytes.
  Tensor<scaled_int8, 3> key_again(n, heads, width), value_again(n, heads, value_width);
  const auto four = [](const Tensor<scaled_int8, 3>& t) {
    return mha::TensorView<const scaled_int8, 4>{t.data(),
                                                 {1, t.extent(0), t.extent(1), t.extent(2)},
                                                 {0, std::ptrdiff_t{t.extent(1)} * t.extent(2), t.extent(2), 1}};
  };
  for (const bool at_once : {false, true}) {
    run(mha::detail::move_rows<scaled_int8, scaled_int8>(n, four(to_key), four(to_value), key_again.view(),
                                                         value_again.view(), to_row, nullptr),
        at_once);
    for (Index i = 0; i < n; ++i)
      for (Index g = 0; g < heads; ++g) {
        for (Index e = 0; e < width; ++e) ASSERT_EQ(key_again(i, g, e).integer, to_key(to_row[i], g, e).integer);
        for (Index e = 0; e < value_width; ++e)
          ASSERT_EQ(value_again(i, g, e).integer, to_value(to_row[i], g, e).integer);
      }
  }
}
TEST(MoveRows, RoundsRowsToEightBits) {
  for (const Index step : {1, 2}) {
    expect_rounded<float>(8, 4, step);
    expect_rounded<float>(7, 3, step);
    expect_rounded<float>(12, 0, step);
    expect_rounded<mha::half>(1, 16, step);
    expect_rounded<mha::bfloat16>(5, 2, step);
  }
}

// Values that are not stored do not cut keys into smaller pieces.
TEST(MoveRows, MovesKeysAlone) {
  for (const bool at_once : {false, true}) {
    Tensor<float, 4> key(1, 2, 3, 8);
    number(key, 1);
    const mha::TensorView<const float, 4> none{key.data() + 1, {1, 2, 3, 0}, {7, 5, 3, 1}};
    Tensor<float, 3> to_key(2, 3, 8), to_none(2, 3, 0);
    const auto items =
        mha::detail::move_rows<float, float>(2, key.view(), none, to_key.view(), to_none.view(), nullptr, nullptr);
    EXPECT_EQ(items.cost, 4);
    EXPECT_EQ(items.columns, 2);
    run(items, at_once);
    for (Index i = 0; i < 2; ++i)
      for (Index g = 0; g < 3; ++g)
        for (Index d = 0; d < 8; ++d) EXPECT_EQ(to_key(i, g, d), key(0, i, g, d));
  }
}

// Columns along the last axis at a stride, and numbers that are no bytes.
TEST(MoveRows, ReadsAnyStrides) {
  for (const bool at_once : {false, true}) {
    Tensor<float, 4> key(1, 4, 8, 2);  // (1, D, n, Hkv)
    number(key, 1);
    const mha::TensorView<const float, 4> turned{key.data(), {1, 8, 2, 4}, {64, 2, 1, 16}};
    Tensor<float, 3> to_key(8, 2, 4), to_value(8, 2, 4);
    run(mha::detail::move_rows<float, float>(8, turned, turned, to_key.view(), to_value.view(), nullptr, nullptr),
        at_once);
    for (Index i = 0; i < 8; ++i)
      for (Index g = 0; g < 2; ++g)
        for (Index d = 0; d < 4; ++d) {
          EXPECT_EQ(to_key(i, g, d), key(0, d, i, g));
          EXPECT_EQ(to_value(i, g, d), key(0, d, i, g));
        }
  }
}

template <class F> void expect_copied(Index dim, Index value_dim, Index expected_piece) {
  for (const bool at_once : {false, true}) {
    Tensor<F, 5> key(2, 3, 2, 4, dim), value(2, 3, 2, 4, value_dim);
    number(key, 1);
    number(value, 7);
    const Tensor<F, 5> keys_before = key, values_before = value;
    const auto items = mha::detail::copy_rows<F>(3, key.view(), value.view(), 0, 5);
    EXPECT_EQ(items.cost, expected_piece);
    run(items, at_once);
    for (Index layer = 0; layer < 2; ++layer)
      for (Index g = 0; g < 3; ++g)
        for (Index row = 0; row < 8; ++row) {
          const Index from = row < 5 ? row : row - 5;
          for (Index d = 0; d < dim; ++d)
            ASSERT_EQ(float(key(layer, g, row / 4, row % 4, d)), float(keys_before(layer, g, from / 4, from % 4, d)));
          for (Index d = 0; d < value_dim; ++d)
            ASSERT_EQ(float(value(layer, g, row / 4, row % 4, d)),
                      float(values_before(layer, g, from / 4, from % 4, d)));
        }
  }
}

/// A scalar of three numbers: moved whole, its size is no power of two.
struct Triple {
  float a, b, c;
  Triple() = default;
  explicit Triple(float x) : a(x), b(x), c(x) {}
  explicit operator float() const { return a; }
};

TEST(CopyRows, CopiesRowsOfEveryLayerAndHead) {
  expect_copied<Triple>(8, 4, 1);
  expect_copied<float>(5, 1, 1);
  expect_copied<float>(8, 4, 4);
  expect_copied<mha::half>(16, 8, 8);
  expect_copied<double>(3, 2, 1);
  expect_copied<float>(8, 0, 4);  // keys alone
}

// A part of the rows, as a thread of a pool gets it, that ends within one head and begins within another.
TEST(CopyRows, CopiesAnyPartOfItsRows) {
  Tensor<float, 5> key(1, 4, 1, 8, 2), value(1, 4, 1, 8, 1);
  number(key, 1);
  number(value, 90);
  const Tensor<float, 5> before = key;
  const auto items = mha::detail::copy_rows<float>(3, key.view(), value.view(), 0, 4);
  items.run_rows(2, 8);
  for (Index g = 0; g < 4; ++g)
    for (Index row = 4; row < 7; ++row) {
      const Index item = 3 * g + row - 4;
      EXPECT_EQ(key(0, g, 0, row, 1), before(0, g, 0, item >= 2 && item < 8 ? row - 4 : row, 1));
    }
}

}  // namespace
