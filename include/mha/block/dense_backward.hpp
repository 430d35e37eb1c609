// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "../backend/backend.hpp"
#include "../backend/gemm_sum.hpp"
#include "../backend/row_sums.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/items.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/projection.hpp"
#include "rows.hpp"

/// The backward pass of dense products, by the backend's own products.
namespace mha::inline MHA_NAMESPACE::detail {

/// f writes (B·L, E); it ends up in the destination, or is added to what is there, in T.
template <class T, class Frame, class F, class B>
void into_rows(const RowGradient<T>& d, Frame& frame, const F& f, const ItemsOn<B>& items) {
  if (!d.adds) return into_rows(d.to, frame, f, items);
  const TensorView<T, 3> rows = take_like<T>(frame, d.to);
  f(collapsed(rows));
  const auto sequence = [](const auto& v, Index b) {
    return TensorView<std::remove_pointer_t<decltype(v.data)>, 2>{
        v.data + b * v.stride[0], {v.extent[1], v.extent[2]}, {v.stride[1], v.stride[2]}};
  };
  for (Index b = 0; b < d.to.extent[0]; ++b)
    items(convert_items<true>(sequence(TensorView<const T, 3>(rows), b), sequence(d.to, b)));
}

/// Rows as accumulators: where they are, or in memory of the frame.
template <class T, class Frame, class B>
TensorView<const Accumulator<T>, 2> widened(const TensorView<const T, 2>& rows, Frame& frame, const ItemsOn<B>& items) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    return rows;
  } else {
    const auto wide = take_like<Accumulator<T>>(frame, rows);
    items(convert_items<false>(rows, wide));
    return wide;
  }
}

/// Marks the rows of d that are exactly 0.
template <class D> struct ZeroRows {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const D, 2> d;
  bool* zero;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t i, Index) const {
    bool all = true;
    for (Index j = 0; j < d.extent[1] && all; ++j) all = Accumulator<D>(d(i, j)) == Accumulator<D>(0);
    zero[i] = all;
  }
};

/// `count` columns of a matrix.
template <class U, class V> TensorView<U, 2> columns_of(const TensorView<V, 2>& v, Index first, Index count) {
  return {v.data + first * v.stride[1], {v.extent[0], count}, {v.stride[0], v.stride[1]}};
}

/// The weights of one dense product of a layer, and their gradients.
template <class T> struct DensePart {
  HeadWeights<const T> weights;
  HeadWeights<Accumulator<T>> gradient;

  Index columns() const { return gradient.head_count() * gradient.head_dim(); }
  /// Whether the gradient is computed: with null data it has the shape alone.
  bool learns() const { return gradient.heads.data != nullptr; }
};

/// f(first column, matrix) for the weights of a product: once for all heads that lie side by side.
template <class T, class F> void for_each_matrix(const HeadWeights<T>& w, const F& f) {
  if (w.is_matrix()) return f(Index{0}, w.matrix());
  for (Index h = 0; h < w.head_count(); ++h) f(h * w.head_dim(), w.head(h));
}

/// An output projection as a part: one head.
template <class T>
DensePart<T> output_part(const TensorView<const T, 2>& w, const TensorView<Accumulator<T>, 2>& dw,
                         const TensorView<Accumulator<T>, 1>& db) {
  using A = Accumulator<T>;
  HeadWeights<A> gradient{{dw.data, {1, dw.extent[0], dw.extent[1]}, {0, dw.stride[0], dw.stride[1]}}, {}};
  if (db.data != nullptr) gradient.bias = {db.data, {1, db.extent[0]}, {0, db.stride[0]}};
  return {{{w.data, {1, w.extent[0], w.extent[1]}, {0, w.stride[0], w.stride[1]}}, {}}, gradient};
}

/// The backward pass of products rows · W_n + b_n of the same rows, the gradients of whose results lie side by side.
///
/// Formula   dW_n += rowsᵀ · d_n,  db_n += Σ_i d_n(i),  d_rows = Σ_n d_n · W_nᵀ; of parts that do not learn d_rows
///           alone
/// Shapes    rows (M, K)  d (M, Σ N)  W_n (K, N) by heads  b_n (N)
/// Numerics  in Accumulator<T>; the bits do not depend on the threads; a row whose gradient is exactly 0 adds nothing
///           to dW, whatever stands in it
template <class T, class B> class DenseBackward {
  using A = Accumulator<T>;
  using Workspace = typename B::Workspace;
  using Parts = std::span<const DensePart<T>>;

 public:
  using Gradient = A;  ///< the scalar of d

  DenseBackward(const B& backend, Workspace& workspace)
      : backend_(backend), workspace_(workspace), items_{backend, workspace} {}

  void add_weights(const TensorView<const T, 2>& rows, const TensorView<const A, 2>& d, Parts parts) const {
    const Index m = d.extent[0], k = rows.extent[1], n = d.extent[1];
    if (m == 0 || !parts.front().learns()) return;
    auto frame = workspace_.frame();
    const TensorView<const A, 2> wide = widened(rows, frame, items_);
    bool* const zero = frame.template take<bool>(static_cast<std::size_t>(m));
    items_(ZeroRows<A>{m, 1, n, d, zero});
    const bool any_zero = std::find(zero, zero + m, true) != zero + m;
    // The narrower of both is transposed; the sums have the same bits.
    TensorView<const A, 2> sum;
    if (n < k) {
      // Memory for the third is taken where no row is left out, too: the next step may have one.
      const TensorView<A, 2> turned = take(frame, n, m), made = take(frame, n, k), left = take(frame, m, k);
      items_(copy_items(transposed(d), turned));
      if (any_zero) {
        items_(copy_items(wide, left));
        for (Index i = 0; i < m; ++i)
          if (zero[i]) std::fill_n(&left(i, 0), k, A(0));
      }
      backend_.gemm(GemmCall<A>{turned, any_zero ? TensorView<const A, 2>(left) : wide, {}, made}, workspace_);
      sum = transposed(TensorView<const A, 2>(made));
    } else {
      const TensorView<A, 2> turned = take(frame, k, m), made = take(frame, k, n);
      items_(copy_items(transposed(wide), turned));
      for (Index i = 0; i < m && any_zero; ++i)
        if (zero[i])
          for (Index e = 0; e < k; ++e) turned(e, i) = A(0);
      backend_.gemm(GemmCall<A>{turned, d, {}, made}, workspace_);
      sum = made;
    }
    Index first = 0;
    for (const DensePart<T>& part : parts) {
      for_each_matrix(part.gradient, [&](Index column, const TensorView<A, 2>& to) {
        items_(convert_items<true>(columns_of<const A>(sum, first + column, to.extent[1]), to));
      });
      first += part.columns();
    }
    add_biases(d, parts);
  }

  /// to (M, K) = Σ d_n · W_nᵀ.
  void rows(const TensorView<const A, 2>& d, Parts parts, const TensorView<T, 2>& to) const {
    if (to.size() == 0) return;
    auto frame = workspace_.frame();
    // Each transposed once: a product packs its matrix for every block of rows, along whose rows it reads faster.
    const TensorView<A, 2> turned = take(frame, d.extent[1], to.extent[1]);
    Index first = 0;
    for (const DensePart<T>& part : parts) {
      for_each_matrix(part.weights, [&](Index column, const TensorView<const T, 2>& w) {
        auto own = workspace_.frame();
        const TensorView<A, 2> below{
            turned.data + (first + column) * turned.stride[0], {w.extent[1], to.extent[1]}, {turned.stride[0], 1}};
        items_(copy_items(transposed(widened(w, own, items_)), below));
      });
      first += part.columns();
    }
    if constexpr (std::is_same_v<T, A>) {
      backend_.gemm(GemmCall<A>{d, turned, {}, to}, workspace_);
    } else {
      const TensorView<A, 2> sum = take(frame, to.extent[0], to.extent[1]);
      backend_.gemm(GemmCall<A>{d, turned, {}, sum}, workspace_);
      items_(convert_items<false>(TensorView<const A, 2>(sum), to));
    }
  }

  /// Rows as the products read gradients, in memory of the frame if they are not so already.
  template <class Frame> TensorView<const A, 2> gradient(const TensorView<const T, 2>& rows, Frame& frame) const {
    return widened(rows, frame, items_);
  }
  /// The same of gradients that were summed in accumulators.
  template <class Frame> TensorView<const A, 2> of_sums(const TensorView<const A, 2>& d, Frame&) const { return d; }

 private:
  /// db_n += Σ_i d_n(i).
  void add_biases(const TensorView<const A, 2>& d, Parts parts) const {
    Index first = 0;
    for (const DensePart<T>& part : parts) {
      const Index columns = part.columns();
      if (part.gradient.bias.data != nullptr) {
        const auto own = columns_of<const A>(d, first, columns);
        const auto row = [own](std::ptrdiff_t i, LongSum<A>* sums) {
          const A* const from = own.data + i * own.stride[0];
          Index j = 0;
          if (own.stride[1] == 1)
            for (; j + 8 <= own.extent[1]; j += 8)  // so many are vector code
              for (Index e = 0; e < 8; ++e) sums[j + e] += LongSum<A>(from[j + e]);
          for (; j < own.extent[1]; ++j) sums[j] += LongSum<A>(from[j * own.stride[1]]);
        };
        add_row_sums<A>(d.extent[0], columns, row, part.gradient.bias_row(), items_);
      }
      first += columns;
    }
  }

  template <class Frame> static TensorView<A, 2> take(Frame& frame, Index rows, Index columns) {
    checked_product("backward", "a matrix of the call", {rows, columns});
    return view(frame.template take<A>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns)), rows,
                columns);
  }

  const B& backend_;
  Workspace& workspace_;
  ItemsOn<B> items_;
};

/// to = rows, 0 where a row is marked.
template <class T> struct RowsUnlessZero {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const T, 2> from;
  const bool* zero;
  TensorView<T, 2> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t i, Index j) const { to(i, j) = zero[i] ? T(0) : from(i, j); }
};

/// The same in memory that the host does not reach: the gradients of results are in T, as the rows are, and the
/// products add to the gradients of weights where those are.
///
/// Shapes    W_n as matrices that lie side by side, as the backend has packed them
/// Numerics  sums in Accumulator<T>, of a bias in double for float; all else as above
template <class T, class B>
requires(!computes_on_host<B>) class DenseBackward<T, B> {
  using A = Accumulator<T>;
  using Workspace = typename B::Workspace;
  using Parts = std::span<const DensePart<T>>;

 public:
  using Gradient = T;

  DenseBackward(const B& backend, Workspace& workspace)
      : backend_(backend), workspace_(workspace), items_{backend, workspace} {}

  void add_weights(const TensorView<const T, 2>& rows, const TensorView<const T, 2>& d, Parts parts) const {
    const Index m = d.extent[0];
    if (m == 0 || !parts.front().learns()) return;
    auto frame = workspace_.frame();
    // The host cannot ask whether one is marked before it goes on.
    bool* const zero = frame.template take<bool>(static_cast<std::size_t>(m));
    items_(ZeroRows<T>{m, 1, d.extent[1], d, zero});
    const TensorView<T, 2> counted = take_like<T>(frame, rows);
    items_(RowsUnlessZero<T>{m, rows.extent[1], 1, rows, zero, counted});
    Index first = 0;
    for (const DensePart<T>& part : parts) {
      for_each_matrix(part.gradient, [&](Index column, const TensorView<A, 2>& to) {
        backend_.gemm(GemmSumCall<T>{transposed(TensorView<const T, 2>(counted)),
                                     columns_of<const T>(d, first + column, to.extent[1]), to},
                      workspace_);
      });
      if (part.gradient.bias.data != nullptr)
        add_column_sums(m, ElementTerm<T>{columns_of<const T>(d, first, part.columns())}, part.gradient.bias_row(),
                        items_);
      first += part.columns();
    }
  }

  void rows(const TensorView<const T, 2>& d, Parts parts, const TensorView<T, 2>& to) const {
    if (to.size() == 0) return;
    TensorView<const T, 2> all = parts.front().weights.matrix();
    all.extent[1] = d.extent[1];
    backend_.gemm(GemmCall<T>{d, transposed(all), {}, to}, workspace_);
  }

  template <class Frame> TensorView<const T, 2> gradient(const TensorView<const T, 2>& rows, Frame&) const {
    return rows;
  }
  template <class Frame> TensorView<const T, 2> of_sums(const TensorView<const A, 2>& d, Frame& frame) const {
    if constexpr (std::is_same_v<T, A>) {
      return d;
    } else {
      const TensorView<T, 2> rounded = take_like<T>(frame, d);
      items_(convert_items<false>(d, rounded));
      return rounded;
    }
  }

 private:
  const B& backend_;
  Workspace& workspace_;
  ItemsOn<B> items_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
