// SPDX-License-Identifier: Apache-2.0
// Products of a backend whose tensors are DeviceTensors.
#pragma once

#include <cmath>

#include <gtest/gtest.h>

#include <mha/backend/backend.hpp>
#include <mha/backend/cuda/device_tensor.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace gemm_checks {

using mha::Index;
using mha::Tensor;
using mha::TensorView;

/// c = a · b + bias of any strides against sums in double.
template <class B, class T>
void expect_product(support::Random& random, Index m, Index n, Index k, int layout, bool has_bias) {
  Tensor<T, 2> a(m, 2 * k), b(k, 2 * n), bias(1, n + 1), c(m, 2 * n);
  random.fill(a), random.fill(b), random.fill(bias);
  support::poison_all(c);
  const auto far_a = mha::to_device(a), far_b = mha::to_device(b), far_bias = mha::to_device(bias);
  auto far_c = mha::to_device(c);
  // Rows, every second element, columns, all a part of something wider, or b alone.
  const auto lay = [&](auto v, Index rows, Index columns, bool is_b = false) {
    using V = decltype(v);
    return layout == 0   ? V{v.data, {rows, columns}, {columns, 1}}
           : layout == 1 ? V{v.data, {rows, columns}, {2 * columns, 2}}
           : layout == 2 ? V{v.data, {rows, columns}, {1, rows}}
                         : V{v.data + (layout == 3 || is_b ? 1 : 0), {rows, columns}, {2 * columns, 1}};
  };
  typename B::Workspace workspace;
  const Index skipped = layout == 3 ? 1 : 0;
  const TensorView<const T, 1> row{has_bias ? far_bias.data() + skipped : nullptr, {n}, {1}};
  B{}.gemm(mha::GemmCall<T>{lay(far_a.view(), m, k), lay(far_b.view(), k, n, true), row, lay(far_c.view(), m, n)},
           workspace);
  const auto back = mha::to_host(far_c);
  const auto x = lay(a.view(), m, k), y = lay(b.view(), k, n, true);
  const auto z = lay(back.view(), m, n);
  double worst = 0;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) {
      double sum = has_bias ? support::to_double(bias(0, skipped + j)) : 0, size = std::fabs(sum);
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

template <class B, class T> void expect_products(const char* name) {
  support::Random random(name);
  for (const int layout : {0, 1, 2, 3, 4})
    for (const bool has_bias : {false, true}) {
      expect_product<B, T>(random, 1, 64, 64, layout, has_bias);
      expect_product<B, T>(random, 37, 24, 5, layout, has_bias);
      expect_product<B, T>(random, 128, 1, 33, layout, has_bias);
      expect_product<B, T>(random, 130, 200, 256, layout, has_bias);
      expect_product<B, T>(random, 37, 24, 0, layout, has_bias);  // the bias or zeros
    }
}

}  // namespace gemm_checks
