// SPDX-License-Identifier: Apache-2.0
#include "every_policy.cuh"

TEST(CudaConformance, AgreesWithTheDoubleReferenceInHalf) {
  MHA_NEEDS_GPU();
  on_gpu::expect_agreement<mha::half>();
}
