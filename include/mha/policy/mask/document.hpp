// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/borrowed.hpp"
#include "../../core/check.hpp"
#include "../mask.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A position sees those of its own document only: several documents packed into one sequence.
///
/// Shapes    ids (L) for all sequences or (B·L), one row each; non-decreasing along a row. Self-attention: the ids of
///           queries and keys are the same row. A query before position 0 sees nothing.
/// Errors    ShapeError if there are not L or B·L ids, a query lies beyond them, or ids decrease; ids in device memory
///           are not checked
struct Document {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "Document";
  static constexpr bool borrows = true;
  Borrowed<Index> ids;
  std::ptrdiff_t row_stride = 0;  ///< set by prepared(): 0 when one row serves all sequences

  Document() = default;
  constexpr explicit Document(Borrowed<Index> rows, std::ptrdiff_t stride = 0) : ids(rows), row_stride(stride) {}

  MHA_HOST_DEVICE constexpr bool operator()(Index b, Index, Index q, Index k) const {
    return q >= 0 && id(b, q) == id(b, k);
  }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index b, Index, Index q_begin, Index q_end, Index k_begin,
                                                Index k_end) const {
    if (q_end <= 0) return TileVisibility::none;
    const Index first = id(b, q_begin > 0 ? q_begin : 0), last = id(b, q_end - 1);
    if (id(b, k_end - 1) < first || id(b, k_begin) > last) return TileVisibility::none;
    const bool one = q_begin >= 0 && first == last && id(b, k_begin) == first && id(b, k_end - 1) == first;
    return one ? TileVisibility::full : TileVisibility::partial;
  }
  Document prepared(const CallShape& s) const {
    const std::int64_t rows = std::int64_t{s.batch} * s.keys;
    detail::require(s.batch != 1 || ids.size == rows, "Document: ", ids.size, " ids for a sequence of ", s.keys,
                    " keys: give ", s.keys);
    detail::require(ids.size == s.keys || ids.size == rows, "Document: ", ids.size, " ids for ", s.batch,
                    " sequences of ", s.keys, " keys: give ", s.keys, " or ", rows);
    detail::require(ids.data != nullptr || ids.size == 0, "Document: the data of ", ids.size, " ids is null");
    for (Index b = 0; b < s.batch; ++b)
      detail::require(s.queries_end(b) <= s.keys, "Document: the last query is at position ", s.queries_end(b) - 1,
                      " but there are ids for ", s.keys);
    if (ids.memory == Memory::host)
      for (Index i = 1; i < ids.size; ++i)
        detail::require(i % s.keys == 0 || ids[i] >= ids[i - 1], "Document: ids decrease from ", ids[i - 1], " to ",
                        ids[i], " at position ", i % s.keys, " of sequence ", i / s.keys);
    return Document(ids, ids.size == s.keys ? 0 : s.keys);
  }
  template <class F> Document with_data(F&& f) const { return Document(f(ids), row_stride); }

 private:
  MHA_HOST_DEVICE constexpr Index id(Index b, Index position) const { return ids.data[b * row_stride + position]; }
};

}  // namespace mha::inline MHA_NAMESPACE
