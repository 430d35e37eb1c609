// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "../backend/backend.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/items.hpp"
#include "../core/overlap.hpp"
#include "../core/view.hpp"

/// How what is called on rows reads them and where it writes them, whatever their strides.
namespace mha::inline MHA_NAMESPACE {

/// What a layer is called on: one sequence (L, E), the sequences of a ragged batch one after another (ΣL, E), or a
/// batch (B, L, E).
template <class T>
concept Sequence = ViewableOfRank<T, 2, 3>;
/// One of the layer's scalar.
template <class X, class T>
concept SequenceOf = Sequence<X> && std::same_as<ScalarOf<X>, T>;

namespace detail {

template <class T, int Rank> constexpr TensorView<T, 3> with_batch(const TensorView<T, Rank>& v) {
  const TensorView<T, 4> all = four_axes(v);
  return {v.data, {all.extent[1], all.extent[2], all.extent[3]}, {all.stride[1], all.stride[2], all.stride[3]}};
}
template <class Owner> constexpr TensorView<const ScalarOf<Owner>, 3> read_sequence(const Owner& owner) {
  const TensorView<const ScalarOf<Owner>, ViewTraits<Owner>::rank> rows = ViewTraits<Owner>::view(owner);
  return with_batch(rows);
}

/// What a call without into(y) returns.
template <class B, class X, class View> auto result_of_rows(const View& x, Index width) {
  using Result = ResultOn<B, X>;
  if constexpr (ViewTraits<X>::rank == 2)
    return Result::make(x.extent[1], width);
  else
    return Result::make(x.extent[0], x.extent[1], width);
}

/// The same in the memory of the call's backend.
template <class X, class B, class View> auto result_on(const B& backend, const View& x, Index width) {
  [[maybe_unused]] const auto held = entered(backend);
  return result_of_rows<B, X>(x, width);
}

/// The rows of all sequences together are no more than an axis may have.
template <class T> void require_row_count(const char* call, const char* name, const TensorView<T, 3>& v) {
  require(std::int64_t{v.extent[0]} * v.extent[1] <= longest_axis, call, ": ", name, " has ", v.extent[0],
          " sequences of ", v.extent[1], " rows, the limit is ", longest_axis, " rows");
}

/// Where a gradient of rows goes, (B, L, E): it is written there or, with `adds`, added to what is there.
template <class T> struct RowGradient {
  TensorView<T, 3> to{};
  bool adds = false;
};

/// Rows of the width that the configuration says: "layer: memory has width 8 but kv_model is 6".
template <class T>
void require_rows(const char* call, const char* name, const TensorView<T, 3>& v, const char* member, Index width) {
  require_data(call, name, v);
  require_row_count(call, name, v);
  require(v.extent[2] == width, call, ": ", name, " has width ", v.extent[2], " but ", member, " is ", width);
}

/// Whether (B, L, E) can be read as (B·L, E): the sequences follow each other at the stride of the rows.
template <class T> constexpr bool rows_collapse(const TensorView<T, 3>& v) {
  return v.extent[0] <= 1 || v.extent[1] == 0 ||
         (v.stride[0] % v.extent[1] == 0 && v.stride[0] / v.extent[1] == v.stride[1]);  // a product might not fit
}
template <class T> constexpr TensorView<T, 2> collapsed(const TensorView<T, 3>& v) {
  return {v.data, {v.extent[0] * v.extent[1], v.extent[2]}, {v.stride[1], v.stride[2]}};
}

/// A projection's result (B, L, H, D), heads side by side in rows that follow each other, as rows (B·L, H·D).
template <class T> constexpr TensorView<T, 2> rows_of(const TensorView<T, 4>& x) {
  return {x.data, {x.batch() * x.length(), x.heads() * x.dim()}, {x.stride[1], x.stride[3]}};
}

/// (B, L, E) as (B·L, E), rows contiguous; copied once if the sequences do not follow each other or rows are scattered.
template <class T, class Frame, class Run = SerialItems>
TensorView<const T, 2> as_rows(const TensorView<const T, 3>& v, Frame& frame, const Run& run = {}) {
  if (rows_collapse(v) && (v.stride[2] == 1 || v.extent[2] <= 1)) return collapsed(v);
  const auto copy = take_like<T>(frame, v);
  run(copy_items(v, copy));
  return collapsed<const T>(copy);
}

/// The rows (B·L, E) of a residual that is added to results on their way to `to`: copied where they do not follow each
/// other, or are overwritten before they are read.
template <class T, class Frame, class Run>
TensorView<const T, 2> residual_rows(const TensorView<const T, 3>& residual, const TensorView<T, 3>& to, Frame& frame,
                                     const Run& run) {
  if (residual.data == nullptr) return {};
  const bool apart = !may_overlap(residual, to) || same_view(residual, TensorView<const T, 3>(to));
  if (apart && rows_collapse(residual)) return collapsed(residual);
  const auto copy = take_like<T>(frame, residual);
  run(copy_items(residual, copy));
  return collapsed<const T>(copy);
}

/// f writes (B·L, E); it ends up in y, whatever y's strides.
template <class T, class Frame, class F, class Run = SerialItems>
void into_rows(const TensorView<T, 3>& y, Frame& frame, F&& f, const Run& run = {}) {
  if (rows_collapse(y)) return f(collapsed(y));
  const auto copy = take_like<T>(frame, y);
  f(collapsed(copy));
  run(copy_items(TensorView<const T, 3>(copy), y));
}

/// Whether results of one product of several parts lie beside each other in every row.
template <class B> constexpr bool parts_beside = false;
template <class B>
requires requires { B::side_by_side; }
constexpr bool parts_beside<B> = B::side_by_side;

/// Memory for the sums of a product of several parts, whose results lie as parts_beside says.
///
/// Shapes    sums[i] (rows, columns)
template <class B, class S, class Frame>
void take_sums(Frame& frame, Index rows, Index columns, std::span<TensorView<S, 2>> sums) {
  const std::ptrdiff_t size = checked_product("linear", "the memory of the call's sums", {rows, columns}),
                       count = static_cast<std::ptrdiff_t>(sums.size());
  const std::ptrdiff_t row = parts_beside<B> ? columns * count : std::ptrdiff_t{columns};
  S* at = frame.template take<S>(static_cast<std::size_t>(size) * sums.size());
  for (TensorView<S, 2>& sum : sums) {
    sum = TensorView<S, 2>{at, {rows, columns}, {row, 1}};
    at += parts_beside<B> ? columns : size;
  }
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
