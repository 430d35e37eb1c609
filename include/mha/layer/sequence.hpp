// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../call.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"

namespace mha::inline v0 {

/// What a layer is called on: one sequence (L, E), packed sequences (ΣL, E), or a batch (B, L, E).
template <class T>
concept Sequence = ViewableOfRank<T, 2, 3>;

/// Keys and values that a layer projected once, to be attended by many calls: layer(x, layer.project_memory(memory)).
///
/// Shapes    key (B, Lk, Hkv, D), normalised and turned to its position  value (B, Lk, Hkv, Dv)
template <class T, class Owner = Tensor<T, 4>> struct KeyValues { Owner key, value; };

namespace detail {

template <class T> constexpr bool is_key_values = false;
template <class T, class Owner> constexpr bool is_key_values<KeyValues<T, Owner>> = true;

/// What cross-attention attends to: rows still to be projected, or keys and values already made.
template <class M>
concept MemoryArgument = Sequence<M> || is_key_values<std::remove_cvref_t<M>>;

template <class T> constexpr TensorView<T, 3> with_batch(const TensorView<T, 3>& v) { return v; }
template <class T> constexpr TensorView<T, 3> with_batch(const TensorView<T, 2>& v) {
  return {v.data, {1, v.extent[0], v.extent[1]}, {0, v.stride[0], v.stride[1]}};
}
template <class Owner> constexpr TensorView<const ScalarOf<Owner>, 3> read_sequence(const Owner& owner) {
  return with_batch<const ScalarOf<Owner>>(ViewTraits<Owner>::view(owner));
}

/// Where into(y) among a call's arguments sends the result, (B, L, E).
template <class T, class E, class... Rest> constexpr TensorView<T, 3> find_into(const E& first, const Rest&... rest) {
  if constexpr (IntoArgument<E>) {
    static_assert(std::is_same_v<ScalarOf<decltype(first.to)>, T>,
                  "mha: into(y) has another scalar than the layer (see mha/layer/multi_head_attention.hpp)");
    return with_batch(first.to);
  } else {
    return find_into<T>(rest...);
  }
}

/// A projection's result (B, L, H, D), heads side by side in rows that follow each other, as rows (B·L, H·D).
template <class T> constexpr TensorView<T, 2> rows_of(const TensorView<T, 4>& x) {
  return {x.data, {x.batch() * x.length(), x.heads() * x.dim()}, {x.stride[1], x.stride[3]}};
}

template <class T> void require_rows(const char* name, const TensorView<T, 3>& v) {
  require_data("layer", name, v);
  require(std::int64_t{v.extent[0]} * v.extent[1] <= std::numeric_limits<Index>::max(), "layer: ", name, " has ",
          v.extent[0], " sequences of ", v.extent[1], " rows, the most rows are ", std::numeric_limits<Index>::max());
}

/// Whether two views show the same elements in the same order.
template <class T> constexpr bool same_view(const TensorView<T, 3>& a, const TensorView<T, 3>& b) {
  bool same = a.data == b.data;
  for (int axis = 0; axis < 3; ++axis)
    same = same && a.extent[axis] == b.extent[axis] && a.stride[axis] == b.stride[axis];
  return same;
}

/// Whether (B, L, E) can be read as (B·L, E): the sequences follow each other at the stride of the rows.
template <class T> constexpr bool rows_collapse(const TensorView<T, 3>& v) {
  return v.extent[0] <= 1 || v.extent[1] == 0 || v.stride[0] == v.extent[1] * v.stride[1];
}
template <class T> constexpr TensorView<T, 2> collapsed(const TensorView<T, 3>& v) {
  return {v.data, {v.extent[0] * v.extent[1], v.extent[2]}, {v.stride[1], v.stride[2]}};
}

/// (B, L, E) as (B·L, E), rows contiguous; copied once if the sequences do not follow each other or rows are scattered.
template <class T, class Frame, class Run = SerialItems>
TensorView<const T, 2> as_rows(const TensorView<const T, 3>& v, Frame& frame, const Run& run = {}) {
  if (rows_collapse(v) && (v.stride[2] == 1 || v.extent[2] <= 1)) return collapsed(v);
  const auto copy = take_like<T>(frame, v);
  run(copy_items(v, copy));
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

/// mean (B, Lq, Lk) = each (B, H, Lq, Lk) averaged over H: Items whose rows are those of queries.
template <class A> struct MeanOverHeads {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const A, 4> each;
  TensorView<A, 3> mean;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index k) const {
    const Index b = static_cast<Index>(row / mean.extent[1]), i = static_cast<Index>(row % mean.extent[1]);
    A sum(0);
    for (Index h = 0; h < each.extent[1]; ++h) sum += each(b, h, i, k);
    mean(b, i, k) = sum / A(each.extent[1]);
  }
};
template <class A> MeanOverHeads<A> mean_over_heads(const TensorView<const A, 4>& each, const TensorView<A, 3>& mean) {
  return {std::ptrdiff_t{mean.extent[0]} * mean.extent[1], mean.extent[2], each.extent[1], each, mean};
}

}  // namespace detail

}  // namespace mha::inline v0
