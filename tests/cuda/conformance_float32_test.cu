// SPDX-License-Identifier: Apache-2.0
#include "every_policy.cuh"

TEST(CudaConformance, AgreesWithTheDoubleReferenceInFloat) {
  MHA_NEEDS_GPU();
  on_gpu::expect_agreement<float>();
}
