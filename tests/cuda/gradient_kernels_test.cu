// SPDX-License-Identifier: Apache-2.0
// Kernels of each large body of the backward pass: compiled for each architecture, and what they need there.
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mha/cuda.cuh>

#include "gpu.hpp"

namespace {

using mha::cuda::FmaShape;
using mha::cuda::GradientOf;
using mha::cuda::MmaGradientShape;

using Kernels = std::vector<std::pair<std::string, const void*>>;

/// A user's two numbers.
template <class X = float> struct BentOnDevice {
  X slope, bend;
  template <class S> MHA_HOST_DEVICE auto operator()(S s, mha::Index, mha::Index h, mha::Index q, mha::Index k) const {
    return s * 0.5f + bend * mha::tanh(s) - slope * (static_cast<float>((1 + h) * mha::abs(q - k)) * 0.03125f);
  }
};

/// A table that tells its gradients.
struct TableOnDevice {
  float table[48];
  std::span<const float> numbers() const { return table; }
  template <class S> MHA_HOST_DEVICE S operator()(S s, mha::Index, mha::Index h, mha::Index q, mha::Index k) const {
    return s * 0.5f + table[static_cast<std::size_t>(q + k + h) % 48];
  }
  template <class G, class S>
  MHA_HOST_DEVICE void accumulate(G gradient, S dt, S, mha::Index, mha::Index h, mha::Index q, mha::Index k) const {
    gradient[static_cast<std::size_t>(q + k + h) % 48] += dt;
  }
};

template <class Kernel, template <class> class Params, class T, class S> void add(const char* of, Kernels& to) {
  using Call = mha::AttendCall<T, mha::ContiguousKv<T>, mha::Causal, S>;
  to.emplace_back(std::string(Kernel::name) + " of " + of,
                  reinterpret_cast<const void*>(mha::cuda::body_kernel<Kernel, Params<Call>>));
}
template <class T, class Shape> void add_fma(const char* of, Kernels& to) {
  using mha::cuda::FmaGradientKernel;
  using mha::cuda::GradientParams;
  add<FmaGradientKernel<Shape, GradientOf::query>, GradientParams, T, mha::NoScore>(of, to);
  add<FmaGradientKernel<Shape, GradientOf::key>, GradientParams, T, mha::NoScore>(of, to);
  add<FmaGradientKernel<Shape, GradientOf::value>, GradientParams, T, mha::NoScore>(of, to);
}
void add_mma(const char* of, Kernels& to) {
  using mha::cuda::GradientParams;
  using mha::cuda::MmaGradientKernel;
  using T = mha::bfloat16;
  add<MmaGradientKernel<MmaGradientShape<64, 64>, true>, GradientParams, T, mha::NoScore>(of, to);
  add<MmaGradientKernel<MmaGradientShape<64, 64>, false>, GradientParams, T, mha::NoScore>(of, to);
  add<MmaGradientKernel<MmaGradientShape<128, 32>, true>, GradientParams, T, mha::NoScore>(of, to);
  add<MmaGradientKernel<MmaGradientShape<128, 32>, false>, GradientParams, T, mha::NoScore>(of, to);
  using Scored = MmaGradientKernel<MmaGradientShape<128, 32>, false>;
  add<Scored, GradientParams, mha::half, mha::Alibi>("half with a score", to);
}
template <class T> void add_scores(const char* of, Kernels& to) {
  using Both = mha::detail::WantedScoreGradients<true, true>;
  using mha::cuda::ScoreGradientParams;
  add<mha::cuda::BiasGradientKernel, ScoreGradientParams, T, mha::AdditiveBias<T>>(of, to);
  add<mha::cuda::SlotGradientKernel<Both, 0, 2>, ScoreGradientParams, T, BentOnDevice<>>(of, to);
  add<mha::cuda::DistanceGradientKernel<Both, 0>, ScoreGradientParams, T, mha::cuda::DistanceTable>(of, to);
  add<mha::cuda::OwnGradientKernel<Both, 0>, ScoreGradientParams, T, TableOnDevice>(of, to);
}

TEST(CudaGradientKernels, KeepEverythingInRegisters) {
  MHA_NEEDS_GPU();
  Kernels kernels;
  add_mma("bfloat16", kernels);
  add_fma<mha::bfloat16, FmaShape<float, 64>>("bfloat16", kernels);
  add_fma<float, FmaShape<float, 64>>("float", kernels);
  add_fma<float, FmaShape<float, 128>>("float", kernels);
  add_fma<double, FmaShape<double, 64>>("double", kernels);
  add_scores<float>("float", kernels);
  add_scores<double>("double", kernels);
  add_scores<mha::half>("half", kernels);
  for (const auto& [name, kernel] : kernels) {
    cudaFuncAttributes attributes{};
    ASSERT_EQ(cudaFuncGetAttributes(&attributes, kernel), cudaSuccess) << name;
    EXPECT_EQ(attributes.localSizeBytes, 0u) << name;
  }
}

}  // namespace
