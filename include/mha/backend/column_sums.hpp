// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "backend.hpp"

/// Sums over rows as items, a column each, for any backend: those of 64 rows each, then of these in order.
namespace mha::inline MHA_NAMESPACE::detail {

/// partial (blocks, columns) = Σ of term(i, j) over the rows i of a block. Neighbouring items read neighbouring
/// columns.
template <class Sum, class Term> struct PartialSums {
  static constexpr std::ptrdiff_t block = 64;

  std::ptrdiff_t rows;  ///< blocks
  Index columns, cost;
  std::ptrdiff_t length;
  Sum* partial;
  Term term;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t n, Index j) const {
    const std::ptrdiff_t last = (n + 1) * block, end = last < length ? last : length;
    Sum sum(0);
    for (std::ptrdiff_t i = n * block; i < end; ++i) sum += Sum(term(i, j));
    partial[n * columns + j] = sum;
  }
};

/// to(j) += Σ_n partial(n, j).
template <class Sum, class A> struct JoinSums {
  std::ptrdiff_t rows;  ///< one
  Index columns, cost;
  std::ptrdiff_t blocks;
  const Sum* partial;
  TensorView<A, 1> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t, Index j) const {
    Sum sum(0);
    for (std::ptrdiff_t n = 0; n < blocks; ++n) sum += partial[n * columns + j];
    to(j) += static_cast<A>(sum);
  }
};

/// to(j) += Σ term(i, j) over `length` rows. A term is trivially copyable and called where the backend computes.
///
/// Numerics  sums in LongSum<A>, rounded once; the same bits run after run
template <class A, class B, class Term>
void add_column_sums(std::ptrdiff_t length, const Term& term, const TensorView<A, 1>& to, const ItemsOn<B>& items) {
  using Sum = LongSum<A>;
  using Partial = PartialSums<Sum, Term>;
  const Index columns = to.extent[0];
  if (length == 0 || columns == 0) return;
  auto frame = items.workspace.frame();
  const std::ptrdiff_t blocks = (length - 1) / Partial::block + 1;
  Sum* const partial = frame.template take<Sum>(static_cast<std::size_t>(blocks) * static_cast<std::size_t>(columns));
  items(Partial{blocks, columns, Index{Partial::block}, length, partial, term});
  items(JoinSums<Sum, A>{1, columns, static_cast<Index>(std::min(blocks, std::ptrdiff_t{longest_axis})), blocks,
                         partial, to});
}

/// The element (i, j) of a matrix as a term.
template <class T> struct ElementTerm {
  TensorView<const T, 2> of;
  MHA_HOST_DEVICE Accumulator<T> operator()(std::ptrdiff_t i, Index j) const { return Accumulator<T>(of(i, j)); }
};

}  // namespace mha::inline MHA_NAMESPACE::detail
