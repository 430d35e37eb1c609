// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <type_traits>
#include <variant>

#include <gtest/gtest.h>

#include <mha/policy/any_scaling.hpp>
#include <mha/policy/position.hpp>

#include "rotary_checks.hpp"

namespace {

using mha::AnyScaling;
using mha::Halves;
using mha::LinearScaling;
using mha::Llama3Scaling;
using mha::LongRopeScaling;
using mha::NtkScaling;
using mha::Rotary;
using mha::Unscaled;
using mha::YarnScaling;
using support::random_rows;
using support::refusal;

TEST(AnyScaling, IsTheOneThatItHolds) {
  const auto expect_same = [](const auto& scaling) {
    const auto x = random_rows("any", 1, 5, 2, 16);
    auto own = x, any = x;
    using Scaling = std::remove_cvref_t<decltype(scaling)>;
    Rotary<Halves, Scaling>{.base = 500, .scaling = scaling}.apply(own.view(), 7);
    const Rotary<Halves, AnyScaling> held{.base = 500, .scaling = scaling};
    held.apply(any.view(), 7);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(any.data()[i], own.data()[i]);
    EXPECT_EQ(held.scaling, AnyScaling(scaling));
    EXPECT_TRUE(std::holds_alternative<Scaling>(held.scaling.one));
    held.check(16);
  };
  expect_same(Unscaled{});
  expect_same(LinearScaling{.factor = 4.0});
  expect_same(NtkScaling{.factor = 4.0});
  expect_same(Llama3Scaling{.factor = 4, .original_length = 64});
  expect_same(YarnScaling{.factor = 4.0, .original_length = 64.0});
  expect_same(LongRopeScaling{.factors = {1, 1, 2, 3, 4, 4, 8, 9}, .attention_factor = 1.25});
  EXPECT_EQ(AnyScaling(), AnyScaling(Unscaled{}));
  EXPECT_NE(AnyScaling(LinearScaling{.factor = 4.0}), AnyScaling(NtkScaling{.factor = 4.0}));
  EXPECT_EQ(refusal(Rotary<Halves, AnyScaling>{.scaling = LinearScaling{.factor = -1.0}}, 8),
            "LinearScaling: factor is -1, it must be a positive finite number");
}

}  // namespace
