// SPDX-License-Identifier: Apache-2.0
#include "every_policy.hpp"

TEST(FarCuda, AgreesWithTheDoubleReferenceInFloat) { far::expect_agreement<float>(); }

namespace laws {
INSTANTIATE_TYPED_TEST_SUITE_P(FarCudaInFloat, GpuLaw, testing::Types<far::Setup<float>>);
}  // namespace laws
