// SPDX-License-Identifier: Apache-2.0
// The models on the other backends of the host.
#include <gtest/gtest.h>

#include <mha/eigen.hpp>
#include <mha/systolic.hpp>

#include "checks.hpp"

namespace {

using models::testing::cases;
using models::testing::data;

TEST(Models, EqualHuggingFacesOnEigen) {
  for (const auto& c : cases<mha::EigenCpu>) EXPECT_LT(c.check(c.name, data(c.name)), models::tolerance) << c.name;
}

// Products of operands that are rounded to 8 bits.
TEST(Models, AreCloseToHuggingFacesOnMatrixUnits) {
  for (const auto& c : cases<mha::Systolic<>>) EXPECT_LT(c.check(c.name, data(c.name)), 3e-2f) << c.name;
}

}  // namespace
