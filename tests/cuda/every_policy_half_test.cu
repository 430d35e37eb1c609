// SPDX-License-Identifier: Apache-2.0
#include "every_policy.cuh"

TEST(CudaConformance, AgreesWithTheDoubleReferenceInHalf) {
  MHA_NEEDS_GPU();
  on_gpu::expect_agreement<mha::half>();
}

namespace laws {
INSTANTIATE_TYPED_TEST_SUITE_P(CudaInHalf, GpuLaw, testing::Types<on_gpu::OnGpu<mha::half>>);
}  // namespace laws
