// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../core/scalar.hpp"
#include "gradient_params.hpp"

/// How the query heads that read a key/value head are shared out to the blocks of its dK and dV.
namespace mha::inline MHA_NAMESPACE::cuda {

/// The part of dK and dV that one launch sums, and where its blocks leave the parts: (sequences, rows, kv_heads, most
/// shares, columns) of the accumulator.
struct GradientSlice {
  Index first_sequence = 0, sequences = 0;
  Index first_row = 0, rows = 0;

  constexpr std::int64_t rows_of_all() const { return std::int64_t{sequences} * rows; }
};

/// Slices of the rows of all sequences, one after another: whole sequences, or row tiles of one.
class GradientSlices {
 public:
  constexpr GradientSlices() = default;
  /// `row_numbers`: what the parts of one row of a sequence take; `most_numbers`: what those of a slice may take, if it
  /// is more than one tile.
  constexpr GradientSlices(Index batch, Index rows, Index rows_of_tile, std::int64_t row_numbers,
                           std::int64_t most_numbers)
      : batch_(batch), rows_(rows) {
    const std::int64_t all = std::max<std::int64_t>(1, most_numbers / std::max<std::int64_t>(1, row_numbers));
    slice_rows_ = all >= rows ? rows : static_cast<Index>(std::max(all / rows_of_tile, std::int64_t{1}) * rows_of_tile);
    sequences_ = rows > 0 && all >= rows ? static_cast<Index>(std::min<std::int64_t>(batch, all / rows)) : 1;
  }

  /// The largest.
  constexpr GradientSlice first() const { return at(0, 0); }
  template <class F> void for_each(const F& f) const {
    for (Index b = 0; b < batch_; b += sequences_)
      for (Index row = 0; row < rows_; row += slice_rows_) f(at(b, row));
  }

 private:
  constexpr GradientSlice at(Index b, Index row) const {
    return {b, std::min(sequences_, batch_ - b), row, std::min(slice_rows_, rows_ - row)};
  }
  Index batch_ = 0, rows_ = 0, sequences_ = 1, slice_rows_ = 1;
};

/// dK or dV from the parts that the blocks of a slice left, added in order.
///
/// Shapes    from as GradientSlice has it, of `shares.most` parts a head  to (B, Lk, Hkv, columns)
/// Numerics  in the accumulator; the bits of a row do not depend on how many shares another sequence has
/// Grid      blocks of 128 elements
template <class Call_> struct SharedGradientParams {
  using Call = Call_;
  using T = typename Call::Scalar;
  using A = Accumulator<T>;

  Call call;
  HeadShares shares;
  GradientSlice slice;
  const A* from = nullptr;
  GradientRows<T> to;
  Index columns = 0;
};
struct SharedGradientShape {
  static constexpr int threads = 128;
};
template <class Machine, class Call>
MHA_KERNEL void shared_gradient_body(Machine& m, const SharedGradientParams<Call>& p) {
  using A = typename SharedGradientParams<Call>::A;
  const std::ptrdiff_t i = std::ptrdiff_t{m.block().x} * SharedGradientShape::threads + m.thread();
  const Index column = static_cast<Index>(i % p.columns);
  const std::ptrdiff_t place = i / p.columns, row_place = place / p.call.kv_heads;  // (sequences, rows, kv_heads)
  const Index g = static_cast<Index>(place % p.call.kv_heads);
  const Index sequence = static_cast<Index>(row_place / p.slice.rows);
  if (sequence >= p.slice.sequences) return;
  const Index row = p.slice.first_row + static_cast<Index>(row_place % p.slice.rows);
  const Index b = p.slice.first_sequence + sequence;
  if (row >= p.call.keys(b)) return;
  const Index shares = p.shares.of(p.call.queries(b));
  const A* const from = p.from + place * p.shares.most * p.columns + column;
  A sum = from[0];
  for (Index share = 1; share < shares; ++share) sum += from[std::ptrdiff_t{share} * p.columns];
  p.to.put(m, p.to.row(b, row, g), column, sum);
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
