// SPDX-License-Identifier: Apache-2.0
// The backward pass on the GPU against the reference in double.
#include <vector>

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

/// Those of other scalars and of a score compile for every architecture; policies_test.cu runs float.
template <class Kernel, class T, class S> const void* kernel_of() {
  using Call = mha::AttendCall<T, mha::ContiguousKv<T>, mha::Causal, S>;
  return reinterpret_cast<const void*>(mha::cuda::body_kernel<Kernel, mha::cuda::GradientParams<Call>>);
}
template <class Kernel, class T, class S> const void* score_kernel_of() {
  using Call = mha::AttendCall<T, mha::ContiguousKv<T>, mha::Causal, S>;
  return reinterpret_cast<const void*>(mha::cuda::body_kernel<Kernel, mha::cuda::ScoreGradientParams<Call>>);
}
template <class T> void add_scores(std::vector<const void*>& to) {
  using Both = mha::detail::WantedScoreGradients<true, true>;
  to.push_back(score_kernel_of<mha::cuda::BiasGradientKernel, T, mha::AdditiveBias<T>>());
  to.push_back(score_kernel_of<mha::cuda::SlotGradientKernel<Both, 0, 2>, T, BentOnDevice<>>());
  to.push_back(score_kernel_of<mha::cuda::DistanceGradientKernel<Both, 0>, T, mha::cuda::DistanceTable>());
}
template <class T, class Shape> void add_fma(std::vector<const void*>& to) {
  using mha::cuda::FmaGradientKernel;
  using mha::cuda::GradientOf;
  to.push_back(kernel_of<FmaGradientKernel<Shape, GradientOf::query>, T, mha::NoScore>());
  to.push_back(kernel_of<FmaGradientKernel<Shape, GradientOf::key>, T, mha::NoScore>());
  to.push_back(kernel_of<FmaGradientKernel<Shape, GradientOf::value>, T, mha::NoScore>());
}

TEST(CudaBackward, KeepsEverythingInRegisters) {
  MHA_NEEDS_GPU();
  using mha::cuda::FmaShape;
  using Scored = mha::cuda::MmaGradientKernel<mha::cuda::MmaGradientShape<128, 32>, false>;
  using Wide = mha::cuda::FmaGradientKernel<FmaShape<float, 128>, mha::cuda::GradientOf::key>;
  std::vector<const void*> kernels{kernel_of<Scored, mha::half, mha::Alibi>(), kernel_of<Wide, float, mha::NoScore>()};
  add_fma<double, FmaShape<double, 64>>(kernels);
  add_fma<float, FmaShape<float, 64>>(kernels);
  add_scores<float>(kernels);
  add_scores<double>(kernels);
  add_scores<mha::half>(kernels);
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes{};
    ASSERT_EQ(cudaFuncGetAttributes(&attributes, kernel), cudaSuccess);
    EXPECT_EQ(attributes.localSizeBytes, 0u);
  }
}

}  // namespace
