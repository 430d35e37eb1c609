// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "../backend/backend.hpp"
#include "../backend/default.hpp"
#include "../call_backend.hpp"
#include "norm_backward.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// The sentences for a norm's backend.
template <class B> constexpr bool check_norm_backend() {
  constexpr bool defined = is_defined<B>,
                 backend = Backend<OrNoBackend<B>> && !std::same_as<OrNoBackend<B>, NoBackend<false>>;
  static_assert(defined,
                "mha: the header of this backend is missing: include <mha/systolic.hpp> for Systolic, <mha/cuda.cuh> "
                "for Cuda, <mha/mha.hpp> for Cpu (see mha/backend/default.hpp)");
  static_assert(backend || !defined,
                "mha: the second template argument is no backend: LayerNorm<float, mha::Cpu> (see "
                "mha/backend/backend.hpp)");
  return true;
}

}  // namespace detail

/// The layer norm of rows, with a learned weight and, unless the configuration says otherwise, a bias.
///
/// Formula   (x − mean(x)) / √(var(x) + eps) · weight + bias
/// Numerics  sums in Accumulator<T>, the mean corrected, so that rows far from 0 keep their digits. A row of equal
///           numbers gives exactly the bias, also for eps 0; a row with a NaN or an infinity is NaN, and no other row
///           is. Where squares overflow, in float from |x − mean| of 1e19 on, a row becomes its bias, further up NaN;
///           where they underflow, from 1e-19 down, eps 0 costs digits, and from 1e-23 down makes the row its bias
/// Bits      a row's depend on itself, the parameters and the machine's kernel only, not on its place, the other rows
///           or the threads; x + r is not rounded to T before it is normed
/// Errors    ShapeError if the configuration's width is less than 1, or its eps negative or not finite
/// Source    Ba, Kiros & Hinton 2016
///
///   mha::LayerNorm<float> norm({.width = 768});
///   norm.borrow({.weight = gamma, .bias = beta});
///   norm(x, mha::residual(r), mha::sum_into(r), mha::into(x));  // r = x + r, x = its norm
template <class Scalar, class B = Cpu>
class LayerNorm : public detail::TrainableNorm<Scalar, detail::OrNoBackend<B>, detail::Centred> {
 public:
  using detail::TrainableNorm<Scalar, detail::OrNoBackend<B>, detail::Centred>::TrainableNorm;
  static_assert(detail::check_norm_backend<B>());
};

/// The root-mean-square norm of rows, with a learned weight, as in LLaMA and T5.
///
/// Formula   x / √(mean(x²) + eps) · weight, + bias with one
/// Numerics  sums in Accumulator<T>; a row of zeros stays 0, also for eps 0; a row with a NaN is NaN. Where squares
///           overflow, in float from |x| of 1e19 on, a row becomes its bias or 0; one with an infinity too, but for the
///           infinity, which becomes NaN. Where they underflow, eps 0 does as in LayerNorm
/// Bits, Errors   as LayerNorm's
/// Source    Zhang & Sennrich 2019
template <class Scalar, class B = Cpu>
class RmsNorm : public detail::TrainableNorm<Scalar, detail::OrNoBackend<B>, detail::RootMeanSquare> {
 public:
  using detail::TrainableNorm<Scalar, detail::OrNoBackend<B>, detail::RootMeanSquare>::TrainableNorm;
  static_assert(detail::check_norm_backend<B>());
};

}  // namespace mha::inline MHA_NAMESPACE
