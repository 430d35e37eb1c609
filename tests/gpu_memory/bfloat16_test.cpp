// SPDX-License-Identifier: Apache-2.0
#include "every_policy.hpp"

TEST(FarCuda, AgreesWithTheDoubleReferenceInBfloat16) { far::expect_agreement<mha::bfloat16>(); }

namespace laws {
INSTANTIATE_TYPED_TEST_SUITE_P(FarCudaInBfloat16, GpuLaw, testing::Types<far::Setup<mha::bfloat16>>);
}  // namespace laws
