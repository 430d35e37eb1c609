// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../call.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The gradients of keys and values that calls attended to and did not make: those of a cache's earlier rows, or of
/// project_memory(). layer.backward(dy, tape, …, d) adds to them what its call adds; of a call with a step of a cache
/// it first takes what later calls have left for the step's own rows, which are 0 then, so that calls that followed
/// each other are differentiated as one, the last first, also where several went on from the same rows.
///
///   auto d = layer.key_value_gradients(sequences, length);  // all 0
///   for (std::size_t i = chunks; i-- > 0;) layer.backward(dy[i], tape[i], gradients, d, mha::into(dx[i]));
///
/// Scalars   A is the accumulator of the layer's scalar
/// Shapes    key (B, L, Hkv, D)  value (B, L, Hkv, Dv): position p of a call's sequence b is in row (b, p); L is at
///           least that of the longest sequence
template <class A, class B> class KeyValueGradients {
  using Workspace = typename B::Workspace;
  using Rows = detail::TensorOf<B, A, 4>;

 public:
  static constexpr bool is_key_value_gradients = true;

  /// Of so many sequences and positions, all 0.
  KeyValueGradients(const B& backend, Index batch, Index length, Index kv_heads, Index head_dim, Index value_dim)
      : backend_(backend) {
    [[maybe_unused]] const auto held = detail::entered(backend_);
    key = Rows(batch, length, kv_heads, head_dim);
    value = Rows(batch, length, kv_heads, value_dim);
    if constexpr (!detail::computes_on_host<B>) clear();  // the host's are 0
  }

  Rows key, value;

  /// All ← 0, in the workspace's stream if it has one.
  void clear(Workspace& workspace) {
    const detail::ItemsOn<B> items{backend_, workspace};
    for (Rows* rows : {&key, &value}) items(detail::zero_items(rows->view().data, rows->view().size()));
  }
  /// The same for calls without a Workspace.
  void clear() {
    Workspace own;
    detail::require_sendable(backend_, own);
    clear(own);
    if constexpr (!detail::computes_on_host<B>)  // waits for it
      backend_.download(std::as_const(key).view().data, std::span<A>{}, own);
  }

 private:
  B backend_;
};

/// No gradients go from call to call: keys and values that a call attended to and did not make are taken as constants,
/// and nobody asked anything of its own, layer.backward(dy, tape, …, mha::StopGradient{}).
struct StopGradient {};

namespace detail {

template <class E>
concept KeyValueGradientsArgument = requires {
  requires std::remove_cvref_t<E>::is_key_value_gradients;
};
template <class E>
concept StopGradientArgument = std::is_same_v<std::remove_cvref_t<E>, StopGradient>;

/// The sentences for the two in a backward pass of a layer whose KeyValueGradients are Own, one at a time.
template <class Own, class... Extra> constexpr bool check_key_value_gradients() {
  constexpr bool one = at_most_one<(KeyValueGradientsArgument<Extra> || StopGradientArgument<Extra>)...>;
  static_assert(one,
                "mha: one of KeyValueGradients and mha::StopGradient{} may be given once (see "
                "mha/layer/key_value_gradients.hpp)");
  constexpr bool same = ((!KeyValueGradientsArgument<Extra> || std::is_same_v<std::remove_cvref_t<Extra>, Own>)&&...);
  static_assert(
      same,
      "mha: backward() takes KeyValueGradients that key_value_gradients() of the layer has made: these are of "
      "another scalar or backend (see mha/layer/key_value_gradients.hpp)");
  constexpr bool named = ((!KeyValueGradientsArgument<Extra> || std::is_same_v<Extra, Own&>)&&...);
  static_assert(named || !same,
                "mha: backward() adds to KeyValueGradients that have a name and are not const: auto d = "
                "layer.key_value_gradients(sequences, length) (see mha/layer/key_value_gradients.hpp)");
  return one && same && named;
}

/// They have a place for each key and value of a call or a memory, `of`: so many sequences, the longest of `length`.
///
/// Shapes    like_key (·, ·, Hkv, D)  like_value (·, ·, Hkv, Dv)
template <class View, class D>
void require_key_value_gradients(const char* of, Index sequences, Index length, const View& like_key,
                                 const View& like_value, const D& key, const D& value) {
  const auto fits = [&](const char* name, const View& like, const D& d) {
    require_equal("backward", "batch", of, sequences, name, d.extent[0]);
    require(d.extent[1] >= length, "backward: ", name, " has ", d.extent[1], " positions, but the longest sequence of ",
            of, " has ", length);
    require_equal("backward", "heads", of, like.extent[2], name, d.extent[2]);
    require_equal("backward", "head size", of, like.extent[3], name, d.extent[3]);
  };
  fits("the KeyValueGradients' key", like_key, key);
  fits("the KeyValueGradients' value", like_value, value);
}

/// Hands the gradients of all keys and values of a call on: those of its own rows, and what later calls added to them,
/// to where those of the rows are, and leaves 0 there; the others are added to to_key and to_value, if these have data.
/// Rows are those of the longest sequence in every sequence and head.
///
/// Shapes    all_key, all_value (B, Lk, Hkv, ·), or with key offsets (1, ΣLk, Hkv, ·)  key, value as x is: (B, n, Hkv,
///           ·), or with offsets in `queries` (1, Σn, Hkv, ·); null data if the call made none
template <class A> struct KeyGradientItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  Index longest;
  TensorView<const A, 4> all_key, all_value;
  TensorView<A, 4> key, value, to_key, to_value;
  RowPositions queries;
  const Index* key_offsets;

  KeyGradientItems(const TensorView<const A, 4>& of_key, const TensorView<const A, 4>& of_value,
                   const TensorView<A, 4>& own_key, const TensorView<A, 4>& own_value,
                   const TensorView<A, 4>& other_key, const TensorView<A, 4>& other_value, const RowPositions& x,
                   const RowPositions& keys)
      : rows(std::ptrdiff_t{keys.sequences} * keys.longest * of_key.extent[2]),
        columns(of_key.extent[3] + of_value.extent[3]),
        cost(2),
        longest(keys.longest),
        all_key(of_key),
        all_value(of_value),
        key(own_key),
        value(own_value),
        to_key(other_key),
        to_value(other_value),
        queries(x),
        key_offsets(keys.offsets) {}

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const {
    const Index heads = all_key.extent[2], g = static_cast<Index>(row % heads);
    const auto k = static_cast<Index>(row / heads % longest), b = static_cast<Index>(row / heads / longest);
    if (key_offsets != nullptr && k >= key_offsets[b + 1] - key_offsets[b]) return;
    const Index dim = all_key.extent[3];
    if (column < dim)
      pass(all_key, key, to_key, b, k, g, column);
    else
      pass(all_value, value, to_value, b, k, g, column - dim);
  }

 private:
  MHA_HOST_DEVICE void pass(const TensorView<const A, 4>& all, const TensorView<A, 4>& own,
                            const TensorView<A, 4>& others, Index b, Index k, Index g, Index d) const {
    const A x = key_offsets != nullptr ? all(0, key_offsets[b] + k, g, d) : all(b, k, g, d);
    const bool adds = others.data != nullptr;
    if (own.data == nullptr || k < queries.first[b]) {
      if (adds) others(b, k, g, d) += x;
      return;
    }
    const Index i = k - queries.first[b];
    if (queries.offsets != nullptr && i >= queries.offsets[b + 1] - queries.offsets[b]) return;
    A& y = queries.offsets != nullptr ? own(0, queries.offsets[b] + i, g, d) : own(b, i, g, d);
    y = adds ? x + others(b, k, g, d) : x;
    if (adds) others(b, k, g, d) = A(0);
  }
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
