// SPDX-License-Identifier: Apache-2.0
#include "every_policy.cuh"

TEST(CudaConformance, AgreesWithTheDoubleReferenceInFloat) {
  MHA_NEEDS_GPU();
  on_gpu::expect_agreement<float>();
}

namespace laws {
INSTANTIATE_TYPED_TEST_SUITE_P(CudaInFloat, GpuLaw, testing::Types<on_gpu::OnGpu<float>>);
}  // namespace laws
