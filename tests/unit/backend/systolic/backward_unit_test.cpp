// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/backend/systolic/backward_kernels.hpp>
#include <mha/backend/systolic/backward_unit.hpp>

namespace {

namespace systolic = mha::detail::systolic;

/// Products wait for weights only where these come with a unit's steps.
TEST(BackwardUnit, InterleavesOnAmxAlone) {
  for (const mha::MatrixUnit unit : systolic::all_units) {
    if (!mha::missing(unit).empty()) continue;
    const auto product = systolic::product_unit(unit, mha::best_isa());
    const systolic::BackwardKernels kernels = systolic::backward_kernels({product, product, product}, mha::best_isa());
    EXPECT_EQ(kernels.interleaves, unit == mha::MatrixUnit::amx && systolic::rounds_to_bfloat16(mha::best_isa()))
        << mha::to_string(unit);
    const auto baseline = systolic::backward_kernels({product, product, product}, mha::IsaLevel::baseline);
    EXPECT_FALSE(baseline.interleaves);
  }
}

}  // namespace
