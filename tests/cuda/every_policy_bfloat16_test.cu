// SPDX-License-Identifier: Apache-2.0
#include "every_policy.cuh"

TEST(CudaConformance, AgreesWithTheDoubleReferenceInBfloat16) {
  MHA_NEEDS_GPU();
  on_gpu::expect_agreement<mha::bfloat16>();
}

namespace laws {
INSTANTIATE_TYPED_TEST_SUITE_P(CudaInBfloat16, GpuLaw, testing::Types<on_gpu::OnGpu<mha::bfloat16>>);
}  // namespace laws
