// SPDX-License-Identifier: Apache-2.0
// What the kernels of the CUDA backend are tried on: the arrays are whole, and every kernel that is shipped gets a
// case.
#include "gpu_cases.hpp"

namespace {

TEST(GpuCases, HaveEveryPairOfLevels) {
  for (const gpu_cases::Array* array : {&gpu_cases::small(), &gpu_cases::all()})
    EXPECT_EQ(support::missing_pairs(array->counts(), array->rows), 0u) << "of " << array->rows.size() << " cases";
}

}  // namespace
