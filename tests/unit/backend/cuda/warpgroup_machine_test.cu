// SPDX-License-Identifier: Apache-2.0
// Products of warpgroups on the device against the words of mha/backend/cuda/machine.hpp.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/cuda/launch.cuh>
#include <mha/backend/cuda/tiles.hpp>
#include <mha/backend/cuda/warpgroup_machine.cuh>
#include <mha/core/copy.hpp>

#include "gpu.hpp"
#include "random.hpp"

namespace {

using mha::bfloat16;
using mha::cuda::HopperMachine;
using mha::cuda::Lanes;
using mha::cuda::Shared;
using mha::cuda::SharedPanels;

static_assert(mha::cuda::WarpgroupMachine<HopperMachine>);

constexpr int warpgroups = 2, product_rows = 64 * warpgroups, product_depth = 128;

template <class T> struct ProductOperands {
  const T* a;
  const T* b;
  float* d;
};

template <class Panels, int Rows, class T>
MHA_KERNEL void copy_panels(const HopperMachine& m, Shared to, const T* from) {
  for (int i = m.thread(); i < Rows * Panels::chunks; i += warpgroups * mha::cuda::warpgroup_size)
    m.cp_async16(Panels::address(to, i / Panels::chunks, i % Panels::chunks), from + i * 8, true);
}
template <int N> MHA_KERNEL void store_product(const HopperMachine& m, float* d, const float (&sum)[N / 8][4]) {
  const int lane = m.thread() % 32, first = m.thread() / 32 * 16;
  for (int n = 0; n < N / 8; ++n)
    for (int e = 0; e < 4; ++e)
      m.store_global(d + (first + Lanes::row(lane, e)) * N + n * 8 + Lanes::column(lane, e), sum[n][e]);
}

/// d (128 × N) = a (128 × 128) · b (N × 128)ᵀ, each warpgroup 64 rows of it.
template <class T, int N>
__global__ void __launch_bounds__(256) product_of_rows(const __grid_constant__ ProductOperands<T> p) {
  HopperMachine m;
  using A = SharedPanels<product_depth, product_rows>;
  using B = SharedPanels<product_depth, N>;
  const Shared a = m.shared(), b = a + A::all_bytes, mine = a + m.thread() / 128 * 64 * A::bytes;
  copy_panels<A, product_rows>(m, a, p.a);
  copy_panels<B, N>(m, b, p.b);
  m.commit();
  m.template wait<0>();
  m.fence_proxy();
  m.sync();
  float sum[N / 8][4];
  for (auto& x : sum)
    for (float& y : x) y = NAN;
  m.wgmma_fence();
  MHA_UNROLL
  for (int c = 0; c < A::chunks; c += 2)
    m.template wgmma<T, N>(sum, A::address(mine, 0, c), B::address(b, 0, c), c > 0);
  m.wgmma_commit();
  m.template wgmma_wait<0>();
  m.hold(sum);
  store_product<N>(m, p.d, sum);
}

/// d (128 × N) = 1 + a (128 × 128) · b (128 × N), a from registers.
template <class T, int N>
__global__ void __launch_bounds__(256) product_of_columns(const __grid_constant__ ProductOperands<T> p) {
  HopperMachine m;
  using A = SharedPanels<product_depth, product_rows>;
  using B = SharedPanels<N, product_depth>;
  const int lane = m.thread() % 32;
  const Shared a = m.shared(), b = a + A::all_bytes;
  copy_panels<A, product_rows>(m, a, p.a);
  copy_panels<B, product_depth>(m, b, p.b);
  m.commit();
  m.template wait<0>();
  m.fence_proxy();
  m.sync();
  std::uint32_t left[product_depth / 16][4];
  MHA_UNROLL
  for (int k = 0; k < product_depth / 16; ++k)
    m.ldmatrix_x4(left[k], A::address(a, m.thread() / 32 * 16 + Lanes::a_row(lane), k * 2 + Lanes::a_chunk(lane)));
  float sum[N / 8][4];
  for (auto& x : sum)
    for (float& y : x) y = 1;
  m.wgmma_fence();
  MHA_UNROLL
  for (int k = 0; k < product_depth / 16; ++k)
    m.template wgmma<T, N>(sum, left[k], B::address(b, k * 16, 0), B::panel_bytes);
  m.wgmma_commit();
  m.template wgmma_wait<0>();
  m.hold(sum);
  m.hold(left);
  store_product<N>(m, p.d, sum);
}

TEST(HopperMachine, WhetherThereIsCodeForItIsAskedWithoutAnError) {
  const bool here = mha::cuda::runs_warpgroup_products();
  EXPECT_EQ(mha::cuda::runs_warpgroup_products(), here);
  if (support::no_gpu() != nullptr) {
    EXPECT_FALSE(here);
  } else {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    if (here) {
      EXPECT_EQ(mha::cuda::device_attribute(cudaDevAttrComputeCapabilityMajor), 9);
    }
  }
}

template <class T, int N> void compare_products(support::Random& random) {
  SCOPED_TRACE(N);
  // Small integers, whose sums are exact.
  mha::Tensor<T, 2> a(product_rows, product_depth), by_rows(N, product_depth), by_columns(product_depth, N);
  for (auto* x : {&a, &by_rows, &by_columns})
    for (T& y : *x) y = T(static_cast<float>(random.below(17) - 8));
  const auto device_a = mha::to_device(a), rows = mha::to_device(by_rows), columns = mha::to_device(by_columns);
  mha::Tensor<float, 2> nothing(product_rows, N);
  for (float& x : nothing) x = NAN;
  auto d = mha::to_device(nothing), e = mha::to_device(nothing);
  constexpr std::size_t bytes = (product_rows + N) * product_depth * sizeof(T);
  using Operands = ProductOperands<T>;
  mha::cuda::launch<product_of_rows<T, N>>("rows", dim3(1), 256, bytes,
                                           Operands{device_a.data(), rows.data(), d.data()}, nullptr);
  mha::cuda::launch<product_of_columns<T, N>>("columns", dim3(1), 256, bytes,
                                              Operands{device_a.data(), columns.data(), e.data()}, nullptr);
  const auto of_rows = mha::to_host(d), of_columns = mha::to_host(e);
  for (int i = 0; i < product_rows; ++i)
    for (int j = 0; j < N; ++j) {
      float row_sum = 0, column_sum = 1;
      for (int k = 0; k < product_depth; ++k) {
        row_sum += float(a(i, k)) * float(by_rows(j, k));
        column_sum += float(a(i, k)) * float(by_columns(k, j));
      }
      ASSERT_EQ(of_rows(i, j), row_sum) << i << ", " << j;
      ASSERT_EQ(of_columns(i, j), column_sum) << i << ", " << j;
    }
}

template <class T> class WarpgroupProduct : public testing::Test {};
using WarpgroupScalars = testing::Types<bfloat16, mha::half>;
TYPED_TEST_SUITE(WarpgroupProduct, WarpgroupScalars);

TYPED_TEST(WarpgroupProduct, IsThatOfPlainLoops) {
  MHA_NEEDS_GPU();
  if (!mha::cuda::runs_warpgroup_products()) GTEST_SKIP() << "there is no code for sm_90a, or another device";
  support::Random random("device wgmma");
  compare_products<TypeParam, 64>(random);
  compare_products<TypeParam, 128>(random);
  compare_products<TypeParam, 256>(random);
}

}  // namespace
