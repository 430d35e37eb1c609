// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "backend.hpp"

/// Sums over rows in an order that does not depend on the threads: those of a block of rows each, then of these in
/// order.
namespace mha::inline MHA_NAMESPACE::detail {

/// Rows of a block.
inline constexpr std::ptrdiff_t sum_block = 64;

/// partial (blocks, columns) = Σ of term(i, j) over the rows i of a block. Neighbouring items read neighbouring
/// columns.
template <class Sum, class Term> struct PartialSums {
  std::ptrdiff_t rows;  ///< blocks
  Index columns, cost;
  std::ptrdiff_t length;
  Sum* partial;
  Term term;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t n, Index j) const {
    const std::ptrdiff_t last = (n + 1) * sum_block, end = last < length ? last : length;
    Sum sum(0);
    for (std::ptrdiff_t i = n * sum_block; i < end; ++i) sum += Sum(term(i, j));
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

/// to(j) += Σ term(i, j) over `length` rows; nothing where `to` has null data. A term is trivially copyable and called
/// where the backend computes.
///
/// Numerics  sums in LongSum<A>, rounded once; the same bits run after run
template <class A, class B, class Term>
void add_column_sums(std::ptrdiff_t length, const Term& term, const TensorView<A, 1>& to, const ItemsOn<B>& items) {
  using Sum = LongSum<A>;
  const Index columns = to.extent[0];
  if (length == 0 || columns == 0 || to.data == nullptr) return;
  auto frame = items.workspace.frame();
  const std::ptrdiff_t blocks = (length - 1) / sum_block + 1;
  Sum* const partial = frame.template take<Sum>(static_cast<std::size_t>(blocks) * static_cast<std::size_t>(columns));
  items(PartialSums<Sum, Term>{blocks, columns, Index{sum_block}, length, partial, term});
  items(JoinSums<Sum, A>{1, columns, static_cast<Index>(std::min(blocks, std::ptrdiff_t{longest_axis})), blocks,
                         partial, to});
}

/// The element (i, j) of a matrix as a term.
template <class T> struct ElementTerm {
  TensorView<const T, 2> of;
  MHA_HOST_DEVICE Accumulator<T> operator()(std::ptrdiff_t i, Index j) const { return Accumulator<T>(of(i, j)); }
};

/// partial (blocks, count) = what the rows i of a block add by row(i, sums).
template <class Sum, class Row> struct BlockSums {
  std::ptrdiff_t rows;  ///< blocks
  Index columns, cost;
  std::ptrdiff_t length;
  std::size_t count;
  Sum* partial;
  Row row;

  void operator()(std::ptrdiff_t n, Index) const {
    Sum* const sums = partial + static_cast<std::size_t>(n) * count;
    std::fill_n(sums, count, Sum(0));
    for (std::ptrdiff_t i = n * sum_block; i < std::min(length, (n + 1) * sum_block); ++i) row(i, sums);
  }
};

/// to += Σ over `length` rows of what row(i, sums) adds to as many sums, on the host; `cost` is that of a row. Where
/// `to` has null data the rows run and their sums are left.
///
/// Numerics  sums in LongSum<A>, rounded once; the same bits for any number of threads
template <class A, class B, class Row>
void add_row_sums(std::ptrdiff_t length, Index cost, const Row& row, const TensorView<A, 1>& to,
                  const ItemsOn<B>& items) {
  using Sum = LongSum<A>;
  if (length == 0 || to.extent[0] == 0) return;
  auto frame = items.workspace.frame();
  const auto count = static_cast<std::size_t>(to.extent[0]);
  const std::ptrdiff_t blocks = (length - 1) / sum_block + 1;
  Sum* const partial = frame.template take<Sum>(static_cast<std::size_t>(blocks) * count);
  items(BlockSums<Sum, Row>{blocks, 1,
                            static_cast<Index>(std::min<std::ptrdiff_t>(cost, longest_axis / sum_block) * sum_block),
                            length, count, partial, row});
  if (to.data == nullptr) return;
  for (std::ptrdiff_t n = 1; n < blocks; ++n)
    for (std::size_t j = 0; j < count; ++j) partial[j] += partial[static_cast<std::size_t>(n) * count + j];
  for (Index j = 0; j < to.extent[0]; ++j) to(j) += static_cast<A>(partial[j]);
}

}  // namespace mha::inline MHA_NAMESPACE::detail
