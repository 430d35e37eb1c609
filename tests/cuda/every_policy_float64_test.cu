// SPDX-License-Identifier: Apache-2.0
#include "every_policy.cuh"

TEST(CudaConformance, AgreesWithTheDoubleReferenceInDouble) {
  MHA_NEEDS_GPU();
  on_gpu::expect_agreement<double>();
}

namespace laws {
INSTANTIATE_TYPED_TEST_SUITE_P(CudaInDouble, GpuLaw, testing::Types<on_gpu::OnGpu<double>>);
}  // namespace laws
