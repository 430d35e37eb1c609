// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../core/dual.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "backend.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A norm of rows as a backend gets it, checked.
///
/// Formula   z = x + residual, not rounded;  sum = z;  y = n · weight + bias, where
///           n = (z − mean(z)) / √(mean((z − mean(z))²) + eps) if centred, else z / √(mean(z²) + eps);
///           0 / √0 counts as 0
/// Shapes    x, residual, y, sum (B, L, E), any strides; residual and sum have null data for none  weight, bias (E),
///           side by side. y and sum may each be x or residual
template <class T> struct NormCall {
  TensorView<const T, 3> x, residual;
  TensorView<T, 3> y, sum;
  const Accumulator<T>* weight = nullptr;
  const Accumulator<T>* bias = nullptr;
  Accumulator<T> eps{};
  bool centred = false;
};

namespace detail {

/// What a norm takes from the whole of a row: the norm of z is (z − mean − rest) · inverse.
template <class A> struct RowMoments {
  A mean{0}, rest{0}, inverse{0};
  MHA_HOST_DEVICE A normed(const A& z) const { return A((z - mean - rest) * inverse); }
};

/// Those of a row from its mean and the sums of the differences to it and of their squares; the mean is 0 and its
/// differences nothing unless centred.
template <class A>
MHA_HOST_DEVICE RowMoments<A> moments_of_sums(Index width, bool centred, const A& eps, const A& mean, const A& rest,
                                              const A& square) {
  using mha::sqrt;
  RowMoments<A> m;
  A variance = square / A(width);
  if (centred) {
    m.mean = mean;
    m.rest = rest / A(width);
    variance = variance - m.rest * m.rest;
    if (variance < A(0)) variance = A(0);
  }
  const A under = variance + eps;
  m.inverse = under == A(0) ? A(0) : A(1) / sqrt(under);
  return m;
}

/// Those of a row of so many numbers at(j).
///
/// The mean is corrected by the mean of the differences to it, so that rows far from 0 keep their digits; it starts
/// from the first element, so that the differences of a row of equal numbers are exactly 0.
template <class A, class At>
MHA_HOST_DEVICE RowMoments<A> row_moments(Index width, bool centred, const A& eps, const At& at) {
  A mean(0), rest(0), square(0);
  if (centred) {
    const A first = at(0);
    for (Index j = 0; j < width; ++j) mean += at(j) - first;
    mean = first + mean / A(width);
  }
  for (Index j = 0; j < width; ++j) {
    const A difference = at(j) - mean;
    rest += difference;
    square += difference * difference;
  }
  return moments_of_sums(width, centred, eps, mean, rest, square);
}

/// Number j of row (b, l) before its norm: x + residual.
template <class T> MHA_HOST_DEVICE Accumulator<T> norm_input(const NormCall<T>& call, Index b, Index l, Index j) {
  const Accumulator<T> x(call.x(b, l, j));
  return call.residual.data == nullptr ? x : x + Accumulator<T>(call.residual(b, l, j));
}

/// The norm as items, a row each, for any backend and scalar.
template <class T> struct NormRows {
  std::ptrdiff_t rows;
  Index columns, cost;
  NormCall<T> call;

  explicit NormRows(const NormCall<T>& c)
      : rows(std::ptrdiff_t{c.x.extent[0]} * c.x.extent[1]), columns(1), cost(c.x.extent[2]), call(c) {}

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index) const {
    using A = Accumulator<T>;
    const Index b = static_cast<Index>(row / call.x.extent[1]), l = static_cast<Index>(row % call.x.extent[1]);
    const Index width = call.x.extent[2];
    const auto m = row_moments<A>(width, call.centred, call.eps, [&](Index j) { return norm_input(call, b, l, j); });
    for (Index j = 0; j < width; ++j) {
      const A z = norm_input(call, b, l, j);
      call.y(b, l, j) = T(m.normed(z) * call.weight[j] + call.bias[j]);
      if (call.sum.data != nullptr) call.sum(b, l, j) = T(z);
    }
  }
};

/// A backend with a kernel of its own for norms.
template <class B, class T>
concept Normalizes = requires(const B backend, const NormCall<T>& call, typename B::Workspace& workspace) {
  backend.normalize(call, workspace);
};

template <class B, class T> void run_norm(const B& backend, const NormCall<T>& call, typename B::Workspace& workspace) {
  if (call.x.size() == 0) return;
  if constexpr (Normalizes<B, T>)
    backend.normalize(call, workspace);
  else
    ItemsOn<B>{backend, workspace}(NormRows<T>(call));
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
