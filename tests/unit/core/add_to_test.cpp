// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/core/add_to.hpp>
#include <mha/core/tensor.hpp>

namespace {

TEST(AddTo, ViewsWhatItIsAddedTo) {
  mha::Tensor<float, 2> x(3, 5);
  const auto sum = mha::add_to(x);
  EXPECT_EQ(sum.to.data, x.data());
  EXPECT_EQ(sum.to.extent[0], 3);
  EXPECT_EQ(sum.to.extent[1], 5);
  static_assert(std::is_same_v<decltype(sum), const mha::AddTo<mha::TensorView<float, 2>>>);
  const auto of_a_view = mha::add_to(mha::view(x.data(), 5, 3));
  EXPECT_EQ(of_a_view.to.data, x.data());
  EXPECT_EQ(of_a_view.to.extent[0], 5);
}

}  // namespace
