// SPDX-License-Identifier: Apache-2.0
// The backward pass on the GPU against the reference in double.
#include <mha/cuda.cuh>

#include "gpu.hpp"
#include "gradient_checks.hpp"

namespace {

using gradient_checks::expect_right;
using gradient_checks::expect_scores_right;

TEST(CudaBackward, OfBfloat16) {
  MHA_NEEDS_GPU();
  for (const int dim : {8, 40, 64, 72, 128, 300})
    for (const int queries : {1, 64, 65, 333})
      expect_right<mha::Cuda, mha::bfloat16>("cuda backward bfloat16", {2, queries, 200, 4, 2, dim, dim},
                                             mha::Causal{});
}

/// A user's two numbers.
template <class X = float> struct BentOnDevice {
  X slope, bend;
  template <class S> MHA_HOST_DEVICE auto operator()(S s, mha::Index, mha::Index h, mha::Index q, mha::Index k) const {
    return s * 0.5f + bend * mha::tanh(s) - slope * (static_cast<float>((1 + h) * mha::abs(q - k)) * 0.03125f);
  }
};

TEST(CudaBackward, OfABiasAndOfAScoresNumbers) {
  MHA_NEEDS_GPU();
  const mha::Chain learnt{mha::AlibiSlopes({0.5f, 0.25f, 0.125f, 0.f}), BentOnDevice<>{0.5f, 0.75f}};
  for (int axes = 0; axes < 16; ++axes)
    expect_scores_right<mha::Cuda, float>("cuda scores", {2, 130, 200, 4, 1, 40, 72}, axes, learnt, mha::Causal{});
}

}  // namespace
