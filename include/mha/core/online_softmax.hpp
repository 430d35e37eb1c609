// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "dual.hpp"
#include "scalar.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The running state of one softmax row: the largest logit so far and the sum of exp(logit − max).
///
/// Formula   m′ = max(m, s),  l′ = l·exp(m − m′) + exp(s − m′)
/// Numerics  a state that has seen only hidden logits (−∞) is {−∞, 0}, is the neutral element of merge, and its row is
///           empty: output 0, log-sum-exp −∞. NaN logits make the sum NaN.
/// Source    Milakov & Gimelshein 2018, algorithm 3; Dao et al. 2022, §3.1
template <class T> struct OnlineSoftmax {
  T max = minus_infinity<T>();
  T sum = T(0);

  /// What one more logit means for an accumulated row: old contents times `rescale`, the new value row times `weight`.
  struct Step {
    T rescale, weight;
  };

  MHA_HOST_DEVICE Step add(T logit) {
    using mha::exp;
    if (logit == minus_infinity<T>()) return {T(1), T(0)};
    const T highest = logit > max ? logit : max;
    const Step step{max == minus_infinity<T>() ? T(0) : exp(max - highest), exp(logit - highest)};
    sum = sum * step.rescale + step.weight;
    max = highest;
    return step;
  }

  MHA_HOST_DEVICE constexpr bool empty() const { return max == minus_infinity<T>() && sum == T(0); }

  /// log Σ exp(logit), natural; −∞ for an empty row.
  MHA_HOST_DEVICE T log_sum_exp() const {
    using mha::log;
    return empty() ? minus_infinity<T>() : max + log(sum);
  }
};

/// How two parts of a row, attended over disjoint keys, make the whole: out = first·out₁ + second·out₂.
template <class T> struct MergeWeights { T first, second, log_sum_exp; };

/// The weights from the parts' natural log-sum-exps. Two empty parts make an empty row: weights 0, log-sum-exp −∞.
///
/// Formula   lse = log(exp(lse₁) + exp(lse₂)),  weightᵢ = exp(lseᵢ − lse)
template <class T> MHA_HOST_DEVICE MergeWeights<T> merge_weights(T first, T second) {
  using mha::exp;
  using mha::log;
  if (first == minus_infinity<T>() && second == minus_infinity<T>()) return {T(0), T(0), minus_infinity<T>()};
  const T highest = first > second ? first : second;
  const T a = first == minus_infinity<T>() ? T(0) : exp(first - highest);
  const T b = second == minus_infinity<T>() ? T(0) : exp(second - highest);
  return {a / (a + b), b / (a + b), highest + log(a + b)};
}

}  // namespace mha::inline MHA_NAMESPACE
