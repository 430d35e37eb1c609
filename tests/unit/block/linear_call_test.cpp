// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include <mha/block/linear_call.hpp>
#include <mha/mha.hpp>

#include "block_backward_checks.hpp"
#include "message_of.hpp"

namespace {

float doubled(float x) { return 2 * x; }

TEST(LinearCall, AnActivationIsNoNullFunction) {
  using Pointer = float (*)(float);
  using Function = std::function<float(float)>;
  using mha::Gated;
  const auto message = [](const auto&... values) {
    return support::message_of([&] { static_cast<void>(mha::detail::given_activation<Pointer>(values...)); }) +
           support::message_of([&] { static_cast<void>(mha::detail::given_activation<Gated<Function>>(values...)); });
  };
  const std::string refused = "activation: the function is null, expected one to call";
  EXPECT_EQ(message(), refused + refused);
  EXPECT_EQ(message(Pointer{}, Gated<Function>{}), refused + refused);
  EXPECT_EQ(message(Pointer{&doubled}, Gated<Function>{&doubled}), "");
}

TEST(LinearCall, RowsAreAsManyAsXHasAndOfTheirWidth) {
  const mha::Tensor<float, 3> x(2, 3, 4), rows(2, 3, 5), longer(2, 4, 5);
  const mha::Cpu backend;
  const auto message = [&](const mha::Tensor<float, 3>& given, mha::Index width) {
    return support::message_of(
        [&] { mha::detail::require_like<float>("linear", backend, "the result", x.view(), given.view(), width); });
  };
  EXPECT_EQ(message(rows, 5), "");
  EXPECT_EQ(message(rows, 6), "linear: the result has width 5, expected 6");
  EXPECT_EQ(message(longer, 5), "linear: x has length 3 but the result has length 4");
}

TEST(LinearCall, RowsOfAllSequencesAreCounted) {
  const mha::Cpu backend;
  const float number = 0;
  const auto message = [&](mha::Index batch, mha::Index length) {
    const mha::TensorView<const float, 3> x{&number, {batch, length, 1}, {0, 0, 1}};
    return support::message_of([&] { mha::detail::check_linear_rows<float>("linear", "inputs", backend, x, 1); });
  };
  EXPECT_EQ(message(1 << 15, (1 << 15) - 1), "");
  EXPECT_EQ(message(1 << 15, 1 << 15), "linear: x has 32768 sequences of 32768 rows, the limit is 1073741823 rows");
}

}  // namespace
