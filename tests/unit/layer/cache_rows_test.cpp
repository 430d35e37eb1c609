// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/core/items.hpp>
#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/cache_rows.hpp>

namespace {

using mha::Index;
using mha::Tensor;

TEST(MoveRows, WritesEveryRowToItsPlaceConverted) {
  constexpr Index heads = 2, dim = 3, value_dim = 2;
  Tensor<float, 4> key(2, 2, heads, dim), value(2, 2, heads, value_dim);
  float n = 0;
  for (float& e : key) e = n += 1;
  for (float& e : value) e = -(n += 1);
  Tensor<mha::bfloat16, 3> to_key(9, heads, dim), to_value(9, heads, value_dim);
  for (auto& e : to_key) e = mha::bfloat16(99.0f);
  const Index to_row[] = {4, 5, 8, 0};
  mha::detail::run_serially(mha::detail::MoveRows<float, mha::bfloat16>{
      4, heads, dim + value_dim, key.view(), value.view(), to_key.view(), to_value.view(), nullptr, to_row});
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 2; ++i)
      for (Index g = 0; g < heads; ++g) {
        for (Index d = 0; d < dim; ++d)
          EXPECT_EQ(float(to_key(to_row[2 * b + i], g, d)), float(mha::bfloat16(key(b, i, g, d))));
        for (Index d = 0; d < value_dim; ++d)
          EXPECT_EQ(float(to_value(to_row[2 * b + i], g, d)), float(mha::bfloat16(value(b, i, g, d))));
      }
  for (const Index row : {1, 2, 3, 6, 7}) EXPECT_EQ(float(to_key(row, 1, 2)), 99.0f);
}

TEST(MoveRows, ReadsTheRowsThatAreNamed) {
  constexpr Index heads = 2, dim = 3, value_dim = 1;
  Tensor<double, 4> key(1, 6, heads, dim), value(1, 6, heads, value_dim);
  double n = 0;
  for (double& e : key) e = n += 1;
  for (double& e : value) e = -(n += 1);
  Tensor<double, 3> to_key(3, heads, dim), to_value(3, heads, value_dim);
  const Index from_row[] = {5, 0, 3};
  mha::detail::run_serially(mha::detail::MoveRows<double, double>{3, heads, dim + value_dim, key.view(), value.view(),
                                                                  to_key.view(), to_value.view(), from_row, nullptr});
  for (Index i = 0; i < 3; ++i)
    for (Index g = 0; g < heads; ++g) {
      for (Index d = 0; d < dim; ++d) EXPECT_EQ(to_key(i, g, d), key(0, from_row[i], g, d));
      EXPECT_EQ(to_value(i, g, 0), value(0, from_row[i], g, 0));
    }
}

// By items one after another, as a device runs them, and by rows at once, as the host does.
TEST(CopyRows, CopiesRowsOfEveryLayerAndHead) {
  for (const bool at_once : {false, true}) {
    Tensor<float, 5> key(2, 3, 2, 4, 5), value(2, 3, 2, 4, 1);
    float n = 0;
    for (auto* t : {&key, &value})
      for (float& e : *t) e = n += 1;
    const Tensor<float, 5> keys_before = key, values_before = value;
    const mha::detail::CopyRows<float> copy{3, 6, 6, key.view(), value.view(), 0, 5};
    if (at_once)
      mha::detail::run_serially(copy);
    else
      for (std::ptrdiff_t row = 0; row < copy.rows; ++row)
        for (Index column = 0; column < copy.columns; ++column) copy(row, column);
    for (Index layer = 0; layer < 2; ++layer)
      for (Index g = 0; g < 3; ++g)
        for (Index row = 0; row < 8; ++row) {
          const Index from = row < 5 ? row : row - 5;
          for (Index d = 0; d < 5; ++d)
            EXPECT_EQ(key(layer, g, row / 4, row % 4, d), keys_before(layer, g, from / 4, from % 4, d));
          EXPECT_EQ(value(layer, g, row / 4, row % 4, 0), values_before(layer, g, from / 4, from % 4, 0));
        }
  }
}

}  // namespace
