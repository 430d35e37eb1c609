// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <Eigen/Core>
#include <type_traits>

#include "../backend.hpp"
#include "../executor.hpp"
#include "product.hpp"

namespace mha::inline v0::detail::cpu {

template <class A, int Order> using Matrix = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Order>;
template <class A, int Order> using ConstMap = Eigen::Map<const Matrix<A, Order>, 0, Eigen::OuterStride<>>;
template <class A, int Order> using MutableMap = Eigen::Map<Matrix<A, Order>, 0, Eigen::OuterStride<>>;

/// Whether an Eigen map can stand on the view: contiguous along `inner`, and the other axis strides over it.
template <class T> bool is_mappable(const TensorView<T, 2>& v, int inner) {
  const int outer = 1 - inner;
  return (v.stride[inner] == 1 || v.extent[inner] <= 1) && (v.stride[outer] >= v.extent[inner] || v.extent[outer] <= 1);
}

/// The view's elements in accumulator precision, rows contiguous: the view itself if it is so already.
template <class T, class A = Accumulator<T>>
TensorView<const A, 2> rows_of(const TensorView<const T, 2>& v, Workspace::Frame& frame) {
  if constexpr (std::is_same_v<T, A>)
    if (is_mappable(v, 1)) return v;
  A* const copy = frame.take<A>(static_cast<std::size_t>(v.size()));
  const auto to = view(copy, v.extent[0], v.extent[1]);
  for (Index i = 0; i < v.extent[0]; ++i)
    for (Index j = 0; j < v.extent[1]; ++j) to(i, j) = static_cast<A>(v(i, j));
  return to;
}

/// An Eigen outer stride is at least the inner extent, also where there is only one row to stride over.
template <class A> std::ptrdiff_t outer_stride(const TensorView<A, 2>& v, int outer_axis) {
  return std::max<std::ptrdiff_t>(v.stride[outer_axis], v.extent[1 - outer_axis]);
}

/// c (M, N) row-major = a (M, K) · b (K, N) + bias (N), by Eigen; a's rows are contiguous, b is contiguous either way.
template <class A>
void eigen_product(const TensorView<const A, 2>& a, const TensorView<const A, 2>& b, const A* bias,
                   const TensorView<A, 2>& c) {
  const ConstMap<A, Eigen::RowMajor> left(a.data, a.extent[0], a.extent[1], Eigen::OuterStride<>(outer_stride(a, 0)));
  MutableMap<A, Eigen::RowMajor> to(c.data, c.extent[0], c.extent[1], Eigen::OuterStride<>(outer_stride(c, 0)));
  if (is_mappable(b, 1))
    to.noalias() =
        left * ConstMap<A, Eigen::RowMajor>(b.data, b.extent[0], b.extent[1], Eigen::OuterStride<>(outer_stride(b, 0)));
  else
    to.noalias() =
        left * ConstMap<A, Eigen::ColMajor>(b.data, b.extent[0], b.extent[1], Eigen::OuterStride<>(outer_stride(b, 1)));
  if (bias != nullptr) to.rowwise() += Eigen::Map<const Eigen::Matrix<A, 1, Eigen::Dynamic>>(bias, c.extent[1]);
}

/// Below this much work a product stays on the calling thread.
inline constexpr double enough_flop = 4e6;

/// A dense product shared among the executor's workers: by own kernels chosen by instruction set; by Eigen at the
/// baseline level, which is any processor's, and where weights are only streamed once.
template <class T, class Threads> void gemm(const GemmCall<T>& call, Workspace& workspace, const Threads& threads) {
  using A = Accumulator<T>;
  const Index m = call.c.extent[0], n = call.c.extent[1], k = call.a.extent[1];
  if (m == 0 || n == 0) return;
  auto frame = workspace.frame();
  const TensorView<const A, 2> a = rows_of(call.a, frame);
  // A transposed checkpoint, contiguous along its first axis, is read in place as well.
  TensorView<const A, 2> b;
  if constexpr (std::is_same_v<T, A>)
    b = is_mappable(call.b, 0) ? call.b : rows_of(call.b, frame);
  else
    b = rows_of(call.b, frame);
  A* bias = nullptr;
  if (call.bias.data != nullptr) {
    bias = frame.take<A>(static_cast<std::size_t>(n));
    for (Index j = 0; j < n; ++j) bias[j] = static_cast<A>(call.bias(j));
  }
  TensorView<A, 2> c;
  bool in_place = false;
  if constexpr (std::is_same_v<T, A>) {
    in_place = is_mappable(call.c, 1);
    if (in_place) c = call.c;
  }
  if (!in_place) c = view(frame.take<A>(static_cast<std::size_t>(m) * static_cast<std::size_t>(n)), m, n);

  const IsaLevel isa = current_isa();
  const double flop = 2.0 * m * n * k;
  const Index workers = flop < enough_flop ? 1 : threads.workers();
  const auto share = [&](Index parts, const auto& part) {
    if (workers == 1)
      Serial{}.run(parts, part);
    else
      threads.run(parts, part);
  };
  // One row, or a few against a transposed matrix, have nothing to lie in lanes and reuse no panel.
  const bool streams = m == 1 || (m <= 4 && !is_mappable(b, 1));
  if (isa == IsaLevel::baseline || streams) {
    // Cut by rows alone, so that the bits do not depend on the workers.
    const Index parts = streams ? m : (m + 63) / 64;
    share(parts, [&](Index part, Index) {
      const Index first = static_cast<Index>(std::int64_t{m} * part / parts);
      const Index last = static_cast<Index>(std::int64_t{m} * (part + 1) / parts);
      eigen_product<A>({&a(first, 0), {last - first, k}, {a.stride[0], a.stride[1]}}, b, bias,
                       {&c(first, 0), {last - first, n}, {c.stride[0], c.stride[1]}});
    });
  } else {
    const bool prefilled = bias != nullptr || k == 0;
    if (prefilled)
      for (Index i = 0; i < m; ++i) {
        if (bias != nullptr)
          std::copy_n(bias, n, &c(i, 0));
        else
          std::fill_n(&c(i, 0), n, A(0));
      }
    const DenseProduct<A> product(a, b, c, isa, prefilled);
    A* const scratch = frame.take<A>(product.scratch() * static_cast<std::size_t>(workers));
    share(product.parts(), [&](Index part, Index worker) {
      product.run(part, scratch + product.scratch() * static_cast<std::size_t>(worker));
    });
  }

  if (!in_place)
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < n; ++j) call.c(i, j) = static_cast<T>(c(i, j));
}

}  // namespace mha::inline v0::detail::cpu
