// SPDX-License-Identifier: Apache-2.0
// Products of a backend whose tensors are DeviceTensors.
#pragma once

#include <cmath>
#include <span>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/backend.hpp>
#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/gemm_sum.hpp>

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

/// c += a · b of any strides, c in the accumulator, against sums in double; what lies between its elements stays.
template <class B, class T>
void expect_sum(support::Random& random, Index m, Index n, Index k, bool turned, bool scattered) {
  using A = mha::Accumulator<T>;
  Tensor<T, 2> a(m, k + 1);
  random.fill(a);
  const auto far_a = mha::to_device(a);
  const auto lay = [&](auto* data, Index rows, Index columns, Index row) {
    return TensorView<std::remove_pointer_t<decltype(data)>, 2>{data, {rows, columns}, {row, 1}};
  };
  // The first columns of a matrix, or these turned.
  const auto left = [&](auto* data) {
    using V = TensorView<std::remove_pointer_t<decltype(data)>, 2>;
    return turned ? V{data, {k, m}, {1, k + 1}} : lay(data, m, k, k + 1);
  };
  const Index rows = turned ? k : m, depth = turned ? m : k;
  Tensor<T, 2> other(depth, n + 3);
  random.fill(other);
  const auto far_other = mha::to_device(other);
  Tensor<A, 2> sum(rows, 2 * n + 1);
  random.fill(sum);
  auto far_sum = mha::to_device(sum);
  const auto lay_sum = [&](auto* data) {
    using V = TensorView<std::remove_pointer_t<decltype(data)>, 2>;
    return scattered ? V{data, {rows, n}, {2 * n + 1, 2}} : V{data, {rows, n}, {2 * n + 1, 1}};
  };
  typename B::Workspace workspace;
  B{}.gemm(mha::GemmSumCall<T>{left(far_a.data()), lay(far_other.data(), depth, n, n + 3), lay_sum(far_sum.data())},
           workspace);
  const auto back = mha::to_host(far_sum);
  const auto x = left(a.data());
  const auto z = lay_sum(back.data());
  const auto before = lay_sum(sum.data());
  double worst = 0;
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < n; ++j) {
      double exact = double(before(i, j)), size = std::fabs(exact);
      for (Index e = 0; e < depth; ++e) {
        const double term = support::to_double(x(i, e)) * support::to_double(other(e, j));
        exact += term;
        size += std::fabs(term);
      }
      worst = support::maximum(worst, std::fabs(double(z(i, j)) - exact) / (size + 1e-30));
    }
  EXPECT_LE(worst, (depth + 4) * (sizeof(A) == 8 ? 0x1p-53 : 0x1p-24))
      << rows << " x " << n << " x " << depth << (turned ? ", turned" : "") << (scattered ? ", scattered" : "");
  for (Index i = 0; i < rows; ++i)
    EXPECT_EQ(support::bits(back(i, 2 * n)), support::bits(sum(i, 2 * n))) << "beside the sums";
}

template <class B, class T> void expect_sums(const char* name) {
  support::Random random(name);
  for (const bool turned : {false, true})
    for (const bool scattered : {false, true}) {
      expect_sum<B, T>(random, 1, 8, 64, turned, scattered);
      expect_sum<B, T>(random, 37, 24, 5, turned, scattered);
      expect_sum<B, T>(random, 130, 1, 33, turned, scattered);
      expect_sum<B, T>(random, 64, 72, 96, turned, scattered);
    }
}

/// c = a · w + bias + residual by packed weights in one call, where the backend says that it can, and nothing where
/// not.
template <class B, class T> void expect_residuals(const char* name) {
  support::Random random(name);
  const Index m = 37, k = 40;
  for (const Index n : {24, 64}) {
    Tensor<T, 2> a(m, k), w(k, n), r(m, n + 8), first(m, n);
    Tensor<T, 1> bias(n);
    random.fill(a), random.fill(w), random.fill(r), random.fill(bias), random.fill(first);
    const auto far_a = mha::to_device(a), far_r = mha::to_device(r);
    typename B::Workspace workspace;
    const auto run = [&](const mha::DenseWeights<T>& weights, const TensorView<const T, 2>& residual,
                         const TensorView<T, 2>& to) {
      const auto packed = B{}.pack(std::span(&weights, 1));
      using Packed = std::remove_cvref_t<decltype(packed)>;
      return B{}.gemm(mha::PackedGemmCall<T, Packed>{far_a.view(), packed, 0, {&to, 1}},
                      mha::Epilogue<T, mha::Identity>{{}, residual}, workspace);
    };
    const mha::DenseWeights<T> biased{w.view(), std::as_const(bias).view()}, plain{w.view(), {}};
    const auto expect = [&](const mha::DenseWeights<T>& weights, const TensorView<const T, 2>& here,
                            const Tensor<T, 2>& c) {
      double worst = 0;
      for (Index i = 0; i < m; ++i)
        for (Index j = 0; j < n; ++j) {
          double sum = support::to_double(here(i, j)), size = std::fabs(sum);
          if (weights.bias.data != nullptr) sum += support::to_double(bias(j));
          for (Index e = 0; e < k; ++e) {
            const double term = support::to_double(a(i, e)) * support::to_double(w(e, j));
            sum += term;
            size += std::fabs(term);
          }
          worst = support::maximum(worst, std::fabs(support::to_double(c(i, j)) - sum) / (size + 1));
        }
      EXPECT_LE(worst, 2 * support::unit_roundoff<T>() + (k + 4) * (sizeof(T) == 8 ? 0x1p-53 : 0x1p-24));
    };
    const auto rows = [&](auto* data) { return TensorView<const T, 2>{data, {m, n}, {n + 8, 1}}; };
    Tensor<T, 2> poisoned(m, n);
    support::poison_all(poisoned);
    auto apart = mha::to_device(poisoned), over = mha::to_device(first);
    EXPECT_TRUE(run(plain, rows(far_r.data()), apart.view()));
    expect(plain, rows(r.data()), mha::to_host(apart));
    EXPECT_TRUE(run(plain, std::as_const(over).view(), over.view())) << "the residual may be the result";
    expect(plain, std::as_const(first).view(), mha::to_host(over));
    apart = mha::to_device(poisoned);
    // cuBLASLt adds no bias to a product of doubles.
    const bool fused = run(biased, rows(far_r.data()), apart.view());
    EXPECT_TRUE((fused || std::is_same_v<T, double>));
    if (fused)
      expect(biased, rows(r.data()), mha::to_host(apart));
    else
      EXPECT_EQ(support::differing(mha::to_host(apart), poisoned), 0u);

    apart = mha::to_device(poisoned);
    const TensorView<const T, 2> every_second{far_r.data(), {m, n / 2}, {n + 8, 2}};
    const mha::DenseWeights<T> half_of_it{{w.data(), {k, n / 2}, {n, 1}}, {}};
    EXPECT_FALSE(run(half_of_it, every_second, {apart.data(), {m, n / 2}, {n, 1}}));
    EXPECT_FALSE(run(plain, rows(far_r.data()), {apart.data(), {m, n}, {1, m}}));
    EXPECT_FALSE(run(plain, {}, apart.view()));
    EXPECT_EQ(support::differing(mha::to_host(apart), poisoned), 0u) << "nothing is computed";
  }
}

}  // namespace gemm_checks
