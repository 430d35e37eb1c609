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

/// The kernels of one mask and one score: tensor cores, and one of the bodies on multiply-adds and for few queries.
template <int Number, class M, class S> void add(std::vector<std::pair<std::string, const void*>>& kernels) {
  using Half = std::conditional_t<Number % 2 == 0, bfloat16, mha::half>;
  using Real = std::conditional_t<Number % 2 == 0, float, double>;
  const std::string name = "policies " + std::to_string(Number) + ", ";
  const auto add_one = [&](const char* body, auto kernel) {
    kernels.emplace_back(name + body, reinterpret_cast<const void*>(kernel));
  };
  using Forward = cuda::ForwardKernel<cuda::ForwardShape<64, 64, 128, 64, 4, cuda::RowLayout::aligned>>;
  add_one("tensor cores", cuda::attention_kernel<Forward, cuda::ForwardParams<Call<Half, M, S>>>);
  if constexpr (Number % 4 < 2) {
    using Fma = cuda::FmaKernel<typename First<cuda::FmaShapes<Real>>::type>;
    add_one("multiply-adds", cuda::attention_kernel<Fma, cuda::FmaParams<Call<Real, M, S>>>);
  } else {
    using T = std::conditional_t<Number % 8 < 4, Half, Real>;
    using Few = cuda::FewQueriesKernel<typename First<cuda::FewShapes<T>>::type>;
    add_one("few queries", cuda::attention_kernel<Few, cuda::FewParams<Call<T, M, S>>>);
  }
}

const std::vector<std::pair<std::string, const void*>>& kernels() {
  static const auto all = [] {
    std::vector<std::pair<std::string, const void*>> k;
    add<0, Full, NoScore>(k);
    add<1, Causal, NoScore>(k);
    add<2, CausalTopLeft, SoftCap>(k);
    add<3, SlidingWindow, Alibi>(k);
    add<4, Padding, AdditiveBias<float>>(k);
    add<5, Prefix, cuda::DeviceRelativeBias>(k);
    add<6, Document, Chain<SoftCap, AdditiveBias<float>>>(k);
    add<7, BlockSparse, Distance>(k);
    add<8, Dense, Chain<Alibi, SoftCap>>(k);
    add<9, EveryThird, NoScore>(k);
    add<10, And<Causal, Padding>, Distance>(k);
    add<11, Or<SlidingWindow, CausalTopLeft>, AdditiveBias<float>>(k);
    add<12, Not<SlidingWindow>, SoftCap>(k);
    add<13, Or<And<Causal, Padding>, Not<EveryThird>>, Alibi>(k);
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

TEST(CudaKernels, AreThereForEveryPolicy) { EXPECT_EQ(kernels().size(), 28u); }

}  // namespace
