// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/cuda/cuda.cuh>

#include "compare.hpp"
#include "gpu.hpp"
#include "random.hpp"

namespace {

using mha::Cuda;
using mha::Index;
using mha::Tensor;
using mha::TensorView;

TEST(CudaBackend, SaysWhyItCannotRun) {
  const mha::Support support = Cuda{}.supported();
  EXPECT_EQ(support.ok, support.reason.empty());
  if (support::no_gpu() == nullptr) return;
  EXPECT_FALSE(support.ok);
  const mha::DenseWeights<float> none[1] = {};
  try {
    Cuda{}.pack(std::span<const mha::DenseWeights<float>>(none));
    ADD_FAILURE() << "weights without a device";
  } catch (const std::runtime_error& e) {
    EXPECT_EQ(std::string(e.what()), "layer: Cuda cannot run here: " + support.reason);
  }
}

TEST(CudaBackend, ExplainsItsPlanWithAndWithoutADevice) {
  const std::string text = Cuda{}.explain<mha::bfloat16>({{2, 8, 512, 512, 0}, 2, 64, 64});
  EXPECT_NE(text.find("tensor cores in bfloat16"), std::string::npos) << text;
  EXPECT_EQ(text.find("no device is here") == std::string::npos, Cuda{}.supported().ok) << text;
}

/// c = a · b + bias of any strides against sums in double.
template <class T> void expect_product(support::Random& random, Index m, Index n, Index k, int layout, bool has_bias) {
  Tensor<T, 2> a(m, 2 * k), b(k, 2 * n), bias(1, n), c(m, 2 * n);
  random.fill(a), random.fill(b), random.fill(bias);
  support::poison_all(c);
  const auto far_a = mha::to_device(a), far_b = mha::to_device(b), far_bias = mha::to_device(bias);
  auto far_c = mha::to_device(c);
  // Rows, every second element, columns, or both operands a part of something wider.
  const auto lay = [&](auto v, Index rows, Index columns) {
    using V = decltype(v);
    return layout == 0   ? V{v.data, {rows, columns}, {columns, 1}}
           : layout == 1 ? V{v.data, {rows, columns}, {2 * columns, 2}}
           : layout == 2 ? V{v.data, {rows, columns}, {1, rows}}
                         : V{v.data + 1, {rows, columns}, {2 * columns, 1}};
  };
  Cuda::Workspace workspace;
  const TensorView<const T, 1> row{has_bias ? far_bias.data() : nullptr, {n}, {1}};
  Cuda{}.gemm(mha::GemmCall<T>{lay(far_a.view(), m, k), lay(far_b.view(), k, n), row, lay(far_c.view(), m, n)},
              workspace);
  const auto back = mha::to_host(far_c);
  const auto x = lay(a.view(), m, k), y = lay(b.view(), k, n);
  const auto z = lay(back.view(), m, n);
  double worst = 0;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      double sum = has_bias ? support::to_double(bias(0, j)) : 0, size = std::fabs(sum);
      for (Index e = 0; e < k; ++e) {
        const double term = support::to_double(x(i, e)) * support::to_double(y(e, j));
        sum += term;
        size += std::fabs(term);
      }
      worst = support::maximum(worst, std::fabs(support::to_double(z(i, j)) - sum) / (size + 1e-30));
    }
  const double sums = sizeof(T) == 8 ? 0x1p-53 : 0x1p-24;
  EXPECT_LE(worst, 2 * support::unit_roundoff<T>() + (k + 4) * sums)
      << m << " x " << n << " x " << k << ", layout " << layout << (has_bias ? ", bias" : "");
}

template <class T> void expect_products(const char* name) {
  support::Random random(name);
  for (const int layout : {0, 1, 2, 3})
    for (const bool has_bias : {false, true}) {
      expect_product<T>(random, 1, 64, 64, layout, has_bias);
      expect_product<T>(random, 37, 24, 5, layout, has_bias);
      expect_product<T>(random, 128, 1, 33, layout, has_bias);
      expect_product<T>(random, 130, 200, 256, layout, has_bias);
      expect_product<T>(random, 37, 24, 0, layout, has_bias);  // the bias or zeros
    }
}

TEST(CudaBackend, ProductsOfFloatAreFloats) {
  MHA_NEEDS_GPU();
  expect_products<float>("cuda products float");
}
TEST(CudaBackend, ProductsOfDouble) {
  MHA_NEEDS_GPU();
  expect_products<double>("cuda products double");
}
TEST(CudaBackend, ProductsOfSixteenBits) {
  MHA_NEEDS_GPU();
  expect_products<mha::bfloat16>("cuda products bfloat16");
  expect_products<mha::half>("cuda products half");
}

}  // namespace
