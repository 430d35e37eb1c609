// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/scalar.hpp"
#include "../core/stored_row.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"
#include "kv_source.hpp"

/// The keys and values of a source in two arrays, for what reads them more often than once.
namespace mha::inline MHA_NAMESPACE::detail {

/// Where the keys and values of a call's source go.
///
/// Shapes    key (B, Lk, Hkv, D)  value (B, Lk, Hkv, Dv) of sequences that have Lk keys each, in a call that is not
///           ragged; else (1, ΣLk, Hkv, ·), one sequence after another, and offsets (B + 1)
template <class T> struct GatheredRows {
  TensorView<T, 4> key, value;
  Borrowed<Index> offsets{};

  ContiguousKv<T> source() const { return {TensorView<const T, 4>(key), TensorView<const T, 4>(value), offsets}; }
};

/// How many rows they are.
struct GatheredAxes {
  Index batch, length;
  bool side_by_side;  ///< one sequence after another
};
/// Of a checked source, in a call that is ragged or not.
///
/// Errors    ShapeError if all sequences together have more keys than an axis may be long
template <class Source> GatheredAxes gathered_axes(const char* call, const Source& source, bool ragged) {
  const Index batch = static_cast<Index>(source.batch());
  std::int64_t rows = 0;
  bool even = true;
  for (Index b = 0; b < batch; ++b) {
    rows += source.keys(b);
    even = even && source.keys(b) == source.keys(0);
    require(rows <= longest_axis, call, ": the first ", b + 1, " sequences of the source have ", rows,
            " keys together, the limit is ", longest_axis);
  }
  if (ragged || !even) return {1, static_cast<Index>(rows), true};
  return {batch, batch > 0 ? static_cast<Index>(source.keys(0)) : 0, false};
}

/// Where each sequence's keys begin, and behind the last one the end of all (B + 1).
template <class Source> void list_key_offsets(const Source& source, Index* to) {
  const Index batch = static_cast<Index>(source.batch());
  to[0] = 0;
  for (Index b = 0; b < batch; ++b) to[b + 1] = to[b] + static_cast<Index>(source.keys(b));
}
/// Memory of a frame for the rows; offsets are the caller's.
template <class T, class Source, class Frame>
GatheredRows<T> gathered_rows(const char* call, const Source& source, const GatheredAxes& axes, Frame& frame) {
  const auto rows_of = [&](Index width) {
    const Index extents[] = {axes.batch, axes.length, static_cast<Index>(source.heads()), width};
    return take_like<T>(frame, row_major<4>(static_cast<T*>(nullptr), extents, call));
  };
  const TensorView<T, 4> key = rows_of(static_cast<Index>(source.dim()));
  return {key, rows_of(static_cast<Index>(source.value_dim()))};
}

/// Items that write them, rows of a key and its value; a position that the source has dropped is 0.
template <class T, class Source> struct GatherItems {
  std::ptrdiff_t rows;  ///< of the longest sequence in every sequence and head
  Index columns, cost;
  Source source;
  Index longest;
  GatheredRows<T> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const {
    const Row at = find(row);
    if (at.k >= source.keys(at.b)) return;
    const Run run = run_of(at);
    const Index dim = to.key.extent[3];
    if (column < dim)
      to.key(at.sequence, at.position, at.g, column) = element(run.key, column);
    else
      to.value(at.sequence, at.position, at.g, column - dim) = element(run.value, column - dim);
  }

  void run_rows(std::ptrdiff_t begin, std::ptrdiff_t end) const {
    for (std::ptrdiff_t row = begin; row < end; ++row) {
      const Row at = find(row);
      if (at.k >= source.keys(at.b)) continue;
      const Run run = run_of(at);
      T* const key = to.key.pointer(at.sequence, at.position, at.g, 0);
      T* const value = to.value.pointer(at.sequence, at.position, at.g, 0);
      for (Index d = 0; d < to.key.extent[3]; ++d) key[d] = element(run.key, d);
      for (Index d = 0; d < to.value.extent[3]; ++d) value[d] = element(run.value, d);
    }
  }

 private:
  using Run = KvRun<typename Source::Scalar>;
  struct Row {
    Index b, k, g;             ///< in the source
    Index sequence, position;  ///< in the arrays
  };
  MHA_HOST_DEVICE Row find(std::ptrdiff_t row) const {
    const Index heads = to.key.extent[2], g = static_cast<Index>(row % heads);
    const auto k = static_cast<Index>(row / heads % longest), b = static_cast<Index>(row / heads / longest);
    if (to.offsets.data == nullptr) return {b, k, g, b, k};
    return {b, k, g, 0, to.offsets.data[b] + k};
  }
  /// Null data where the position is gone.
  MHA_HOST_DEVICE Run run_of(const Row& at) const {
    return held(source, at.b, at.k) == at.k ? source.run(at.b, at.g, at.k, at.k + 1) : Run{nullptr, nullptr, 0, 0, 0};
  }
  MHA_HOST_DEVICE static T element(const typename Source::Scalar* row, Index d) {
    if (row == nullptr) return T(0);
    return static_cast<T>(stored_number<Accumulator<T>>(row, d));
  }
};
/// Source and offsets are where the items run.
template <class T, class Source>
GatherItems<T, Source> gather_items(const Source& source, const CallShape& shape, const GatheredRows<T>& to) {
  const Index columns = to.key.extent[3] + to.value.extent[3];
  return {std::ptrdiff_t{shape.batch} * shape.keys * to.key.extent[2], columns, 1, source, shape.keys, to};
}

}  // namespace mha::inline MHA_NAMESPACE::detail
