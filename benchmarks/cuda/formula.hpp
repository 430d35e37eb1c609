// SPDX-License-Identifier: Apache-2.0
// Rows of attention and of a layer by the formula, in double, on the host: what the GPU's are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include <mha/core/scalar.hpp>
#include <mha/policy/mask.hpp>

namespace bench::gpu {

using Row = std::vector<double>;

/// How far a row is from what is expected, relative to its size: a result of zeros is wrong by 1.
inline double relative_error(const Row& value, const Row& expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (value[i] - expected[i]) * (value[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  if (size == 0) return difference == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(difference / size);
}

/// The rounding of probabilities, of the stored result, and of sums in float.
template <class T> constexpr double tolerance() {
  if constexpr (std::is_same_v<T, double>) return 1e-11;
  if constexpr (std::is_same_v<T, mha::half>) return 2e-3;
  if constexpr (std::is_same_v<T, mha::bfloat16>) return 1e-2;
  return 1e-4;
}

/// Σ softmax(logits)ⱼ rows(j); a hidden logit is −∞.
///
/// Shapes    logits (L)  rows (L, n)  →  (n)
inline Row weighted_mean(const Row& logits, const Row& rows, std::size_t n) {
  const double max = *std::max_element(logits.begin(), logits.end());
  Row mean(n, 0.0);
  double sum = 0;
  for (std::size_t j = 0; j < logits.size(); ++j) {
    if (logits[j] == -std::numeric_limits<double>::infinity()) continue;
    const double w = std::exp(logits[j] - max);
    sum += w;
    for (std::size_t d = 0; d < n; ++d) mean[d] += w * rows[j * n + d];
  }
  if (sum > 0)
    for (double& x : mean) x /= sum;
  return mean;
}

inline double dot(const double* a, const double* b, std::size_t n) {
  double sum = 0;
  for (std::size_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

/// One row of one head.
///
/// Shapes    q (D)  k, v (L, D)  →  (D)
template <class Mask, class Score>
Row attention_row(const Row& q, const Row& k, const Row& v, const Mask& mask, const Score& score, int b, int h,
                  int position) {
  const std::size_t dim = q.size(), keys = k.size() / dim;
  Row logits(keys, -std::numeric_limits<double>::infinity());
  for (std::size_t j = 0; j < keys; ++j)
    if (mask(b, h, position, static_cast<int>(j)))
      logits[j] = score(dot(q.data(), &k[j * dim], dim) / std::sqrt(double(dim)), b, h, position, static_cast<int>(j));
  return weighted_mean(logits, v, dim);
}

/// Row i of a causal layer without biases. Keys and values are never made: (x W_Q)ₕ · (xⱼ W_K) is a product of xⱼ with
/// W_K (x W_Q)ₕ, and Σ pⱼ (xⱼ W_V) is (Σ pⱼ xⱼ) W_V.
///
/// Shapes    x (i + 1, E)  W_Q (E, Hq·D)  W_K, W_V (E, Hkv·D)  W_O (Hq·D, E)  →  (E)
template <class Matrix>
Row causal_layer_row(const Row& x, int d_model, int heads, int kv_heads, const Matrix& wq, const Matrix& wk,
                     const Matrix& wv, const Matrix& wo) {
  const std::size_t width = static_cast<std::size_t>(d_model), rows = x.size() / width;
  const int dim = wq.extent[1] / heads, group = heads / kv_heads;
  const double* const own = &x[(rows - 1) * width];
  Row y(width, 0.0);
  for (int h = 0; h < heads; ++h) {
    const int g = h / group * dim;  // first column of its key/value head
    Row q(static_cast<std::size_t>(dim), 0.0), key(width, 0.0), logits(rows);
    for (int e = 0; e < d_model; ++e)
      for (int d = 0; d < dim; ++d) q[static_cast<std::size_t>(d)] += own[e] * double(wq(e, h * dim + d));
    for (int e = 0; e < d_model; ++e)
      for (int d = 0; d < dim; ++d)
        key[static_cast<std::size_t>(e)] += double(wk(e, g + d)) * q[static_cast<std::size_t>(d)];
    for (std::size_t j = 0; j < rows; ++j) logits[j] = dot(key.data(), &x[j * width], width) / std::sqrt(double(dim));
    const Row mean = weighted_mean(logits, x, width);
    for (int d = 0; d < dim; ++d) {
      double head = 0;
      for (int e = 0; e < d_model; ++e) head += mean[static_cast<std::size_t>(e)] * double(wv(e, g + d));
      for (int e = 0; e < d_model; ++e) y[static_cast<std::size_t>(e)] += head * double(wo(h * dim + d, e));
    }
  }
  return y;
}

}  // namespace bench::gpu
