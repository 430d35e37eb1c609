// SPDX-License-Identifier: Apache-2.0
// Every policy in the kernels: that it compiles for the device is shown by building this, what it needs by the device.
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/cuda.cuh>

#include "gpu.hpp"

namespace {

using namespace mha;

/// A user's policies, without tile().
struct EveryThird {
  MHA_HOST_DEVICE bool operator()(Index, Index h, Index q, Index k) const { return (q + 2 * k + h) % 3 != 0; }
};
struct Distance {
  float slope;
  template <class S> MHA_HOST_DEVICE S operator()(S s, Index, Index, Index q, Index k) const {
    return s - slope * static_cast<float>(mha::abs(q - k));
  }
};

template <class P> using Prepared = std::remove_cvref_t<decltype(mha::prepared(std::declval<P>(), CallShape{}))>;
template <class T, class M, class S> using Call = AttendCall<T, ContiguousKv<T>, Prepared<M>, Prepared<S>>;

template <class List> struct First;
template <class Shape, class... Rest> struct First<cuda::ShapeList<Shape, Rest...>> { using type = Shape; };

using Kernels = std::vector<std::pair<std::string, const void*>>;

/// Every body with one mask and one score.
template <class Half, class Real, class Few, class M, class S> void add(const char* policies, Kernels& kernels) {
  const auto add_one = [&](const char* body, auto kernel) {
    kernels.emplace_back(std::string(body) + ", " + policies, reinterpret_cast<const void*>(kernel));
  };
  using ForwardBody = cuda::ForwardKernel<cuda::ForwardShape<64, 64, 128, 64, 4, cuda::RowLayout::aligned>>;
  using WarpgroupBody = cuda::ForwardKernel<cuda::WarpgroupShape<64, 64, 1, 64, 3>>;
  using FmaBody = cuda::FmaKernel<typename First<cuda::FmaShapes<Real>>::type>;
  using FewBody = cuda::FewQueriesKernel<typename First<cuda::FewShapes<Few>>::type>;
  add_one("tensor cores", cuda::body_kernel<ForwardBody, cuda::ForwardParams<Call<Half, M, S>>>);
  add_one("warpgroups", cuda::body_kernel<WarpgroupBody, cuda::ForwardParams<Call<Half, M, S>>>);
  add_one("multiply-adds", cuda::body_kernel<FmaBody, cuda::FmaParams<Call<Real, M, S>>>);
  add_one("few queries", cuda::body_kernel<FewBody, cuda::FewParams<Call<Few, M, S>>>);
}

const Kernels& kernels() {
  static const Kernels all = [] {
    using H = mha::half;
    using Window = SlidingWindow;
    Kernels k;
    add<bfloat16, float, bfloat16, Full, NoScore>("none", k);
    add<H, double, float, Causal, NoScore>("causal", k);
    add<bfloat16, float, double, And<Causal, And<Padding, Document>>, Chain<SoftCap, AdditiveBias<float>>>("data", k);
    add<H, double, H, Or<And<CausalTopLeft, Prefix>, Not<Window>>, Alibi>("composed", k);
    add<bfloat16, float, bfloat16, And<BlockSparse, Dense>, cuda::DeviceRelativeBias>("tables", k);
    add<H, double, float, And<LeftPadding, EveryThird>, Distance>("functors", k);
    return k;
  }();
  return all;
}

TEST(CudaKernels, KeepEverythingInRegisters) {
  MHA_NEEDS_GPU();
  for (const auto& [name, kernel] : kernels()) {
    cudaFuncAttributes attributes{};
    ASSERT_EQ(cudaFuncGetAttributes(&attributes, kernel), cudaSuccess) << name;
    EXPECT_EQ(attributes.localSizeBytes, 0u) << name;
  }
}

TEST(CudaKernels, AreThereForEveryBodyAndPolicy) { EXPECT_EQ(kernels().size(), 24u); }

}  // namespace
