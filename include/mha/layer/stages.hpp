// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../backend/epilogue.hpp"
#include "../block/arguments.hpp"
#include "../block/rows.hpp"
#include "../cache/kv_source.hpp"
#include "../call.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/overlap.hpp"
#include "../policy/call_shape.hpp"
#include "../policy/mask.hpp"
#include "../policy/position.hpp"
#include "config.hpp"
#include "key_values.hpp"
#include "memory_rows.hpp"
#include "products.hpp"

/// What a layer does between its products, on whatever machine: where Q, K and V lie, norm, position, gates.
namespace mha::inline MHA_NAMESPACE::detail {

struct HeadSizes {
  Index heads, dim;
};

/// Buffers (B, L, H, D) of a frame: side by side in every row (B, L, Σ H·D), or one after another.
template <class T, bool side_by_side, std::size_t Count, class Frame>
std::array<TensorView<T, 4>, Count> head_buffers(Frame& frame, Index batch, Index length,
                                                 const HeadSizes (&sizes)[Count]) {
  std::array<TensorView<T, 4>, Count> buffers;
  std::ptrdiff_t width = 0;
  for (const HeadSizes& s : sizes) width += std::ptrdiff_t{s.heads} * s.dim;
  if (width > 0) checked_product("layer", "the memory of a call's rows", {batch, length, width});
  T* at = frame.template take<T>(static_cast<std::size_t>(batch) * static_cast<std::size_t>(length) *
                                 static_cast<std::size_t>(width));
  for (std::size_t n = 0; n < Count; ++n) {
    const auto [heads, dim] = sizes[n];
    const std::ptrdiff_t own = std::ptrdiff_t{heads} * dim, row = side_by_side ? width : own;
    buffers[n] = {at, {batch, length, heads, dim}, {length * row, row, dim, 1}};
    at += side_by_side ? own : own * batch * length;
  }
  return buffers;
}

/// Rows still to be projected, or keys and values already made, as they are.
template <class B, Sequence Keys, Sequence Values>
MemoryRows<ScalarOf<Keys>> read_memory(const Keys& keys, const Values& values) {
  check_memory_of<B, Keys>();
  check_memory_of<B, Values>();
  return {read_sequence(keys), read_sequence(values)};
}
template <class B, Sequence Memory> MemoryRows<ScalarOf<Memory>> read_memory(const Memory& memory) {
  return read_memory<B>(memory, memory);
}
template <class B, class T, class Owner> const KeyValues<T, Owner>& read_memory(const KeyValues<T, Owner>& memory) {
  return memory;
}

template <class B, KvSource Source> const Source& read_memory(const Source& source) { return source; }

/// What the messages of a layer call name its tensors: as attention names them, they would be the layer's own.
template <class T> CallNames layer_names(const TensorView<const T, 3>& x, const MemoryRows<T>& memory) {
  if (!memory.same()) return {"layer", "x", "key", "value"};
  const char* const rows = same_view(x, memory.keys) ? "x" : "memory";
  return {"layer", "x", rows, rows};
}
template <class T, class Owner> CallNames layer_names(const TensorView<const T, 3>&, const KeyValues<T, Owner>&) {
  return {"layer", "x", "key", "value"};
}
template <class T, KvSource Source> CallNames layer_names(const TensorView<const T, 3>&, const Source&) {
  return {"layer", "x", "the source", "the source"};
}

/// Where a call's queries, keys and values are, and what keys and values are still to be made from.
template <class T> struct Projected {
  TensorView<T, 4> q;
  TensorView<const T, 4> key, value;
  TensorView<T, 4> to_key{}, to_value{};  // null data: nothing to make
  MemoryRows<T> rows{};
  TensorView<T, 4> q_before_norm{}, key_before_norm{};  // null data: not wanted
};

/// Buffers for queries from x and for keys, and values if wanted, from the rows of memory: side by side, where the
/// backend has it so, what one product makes.
template <class B, class T, class Frame>
Projected<T> projected(const Config& c, const TensorView<const T, 3>& x, const MemoryRows<T>& memory, bool values,
                       Frame& frame) {
  const HeadSizes q{c.num_heads, c.head_dim}, k{c.num_kv_heads, c.head_dim},
      v{values ? c.num_kv_heads : 0, values ? c.value_dim : 0};
  const auto buffers = [&](const TensorView<const T, 3>& rows, const auto&... sizes) {
    return head_buffers<T, parts_beside<B>>(frame, rows.extent[0], rows.extent[1], {sizes...});
  };
  const bool self = same_view(x, memory.keys), together = !values || memory.same();
  TensorView<T, 4> query, key, value;
  if (self && together) {
    const auto all = buffers(x, q, k, v);
    query = all[0], key = all[1], value = all[2];
  } else if (self) {
    const auto both = buffers(x, q, k);
    query = both[0], key = both[1];
  } else {
    query = buffers(x, q)[0];
    if (together) {
      const auto both = buffers(memory.keys, k, v);
      key = both[0], value = both[1];
    } else {
      key = buffers(memory.keys, k)[0];
    }
  }
  if (!together) value = buffers(memory.values, v)[0];
  return {query, key, value, key, values ? value : TensorView<T, 4>{}, memory};
}
template <class B, class T, class Owner, class Frame>
Projected<T> projected(const Config& c, const TensorView<const T, 3>& x, const KeyValues<T, Owner>& memory, bool,
                       Frame& frame) {
  const HeadSizes q{c.num_heads, c.head_dim};
  return {head_buffers<T, false>(frame, x.extent[0], x.extent[1], {q})[0], memory.key.view(), memory.value.view()};
}
template <class B, class T, KvSource Source, class Frame>
Projected<T> projected(const Config& c, const TensorView<const T, 3>& x, const Source&, bool, Frame& frame) {
  const HeadSizes q{c.num_heads, c.head_dim};
  return {head_buffers<T, false>(frame, x.extent[0], x.extent[1], {q})[0], {}, {}};
}

/// Checks where the rows are that keys and values are made from, or, of those that are made already, where they are.
template <class B, class T>
void require_rows_reachable(const B& backend, const char* call, const MemoryRows<T>& memory) {
  require_reachable(backend, call, memory.same() ? "memory" : "key", memory.keys);
  require_reachable(backend, call, "value", memory.values);
}
template <class B, class T, class Memory, class Kv>
void require_memory_reachable(const B& backend, const MemoryRows<T>& rows, const Memory&, const Kv& kv) {
  require_rows_reachable(backend, "layer", rows);
  if constexpr (!std::is_same_v<Memory, MemoryRows<T>>) require_source_reachable(backend, "layer", kv);
}

/// x normalised, in place; nothing if the norm has no weights.
template <class B, class T, class Norm>
void run_norm(const Norm& norm, const TensorView<T, 4>& x, const TensorView<const T, 1>& weight,
              const ItemsOn<B>& run) {
  if constexpr (Norm::has_weights) {
    constexpr bool has_items = requires { norm.template items<T>(x, weight); };
    static_assert(has_items, "mha: this norm has weights but no member items(x, weight) (see mha/policy/qk_norm.hpp)");
    if constexpr (has_items) run(norm.template items<T>(x, weight));
  }
}

/// Lets the position of every row enter, sequence by sequence where the batch is ragged.
///
/// Shapes    x (B, L, H, D) of head_buffers(), with offsets (1, B·L, H, D) as well
template <class B, class T, class Position>
void run_position(const Position& position, TensorView<T, 4> x, const RowPositions& at, const ItemsOn<B>& run) {
  if (at.offsets != nullptr) x.extent[1] *= std::exchange(x.extent[0], 1);
  if constexpr (requires { position.for_each_items(x, at, run); }) {
    position.for_each_items(x, at, run);
  } else if constexpr (requires { position.apply(x, at.first); }) {
    static_assert(computes_on_host<B>,
                  "mha: this position has no member for_each_items(x, at, f), so it runs on the host only "
                  "(see mha/policy/position.hpp)");
    apply_to_sequences(x, at, [&](const auto& rows, const Origins& first) { position.apply(rows, first); });
  } else {
    static_assert(std::is_same_v<Position, NoPosition>,
                  "mha: this position turns no rows of the layer's scalar: it has no member apply(x, first) const and "
                  "no for_each_items(x, at, f) const that takes them (see mha/policy/position.hpp)");
  }
}

/// The heads' outputs times their gates; nothing if the concatenation has none.
template <class B, class Concat, class T>
void run_gates(const TensorView<T, 4>& heads, const TensorView<const T, 1>& gate, const ItemsOn<B>& run) {
  if constexpr (Concat::has_gates) {
    constexpr bool has_items = requires { Concat::template items<T>(heads, gate); };
    static_assert(has_items,
                  "mha: this concatenation has gates but no static member items(heads, gate) "
                  "(see mha/policy/concat.hpp)");
    if constexpr (has_items) run(Concat::template items<T>(heads, gate));
  }
}

/// The heads' outputs as rows (B·L, Hq·Dv); gated in memory of the frame.
template <class B, class Concat, class T, class Frame>
TensorView<const T, 2> gated_rows(const TensorView<const T, 4>& heads, const TensorView<const T, 1>& gate, Frame& frame,
                                  const ItemsOn<B>& items) {
  if constexpr (Concat::has_gates) {
    const TensorView<T, 4> copy = take_like<T>(frame, heads);
    items(copy_items(heads, copy));
    run_gates<B, Concat, T>(copy, gate, items);
    return rows_of(TensorView<const T, 4>(copy));
  } else {
    return rows_of(heads);
  }
}

/// y = rows (B·L, Hq·Dv) through the output projection, or the rows themselves without one, + the residual among a
/// call's arguments.
///
/// Shapes    y and residual (B, L, E)
template <class Output, class B, class T, class Products, class Weights, class Frame, class... Extra>
void finish_rows(const Products& products, const TensorView<const T, 2>& rows, const Weights& w,
                 const TensorView<T, 3>& y, Frame& frame, const ItemsOn<B>& run, const Extra&... extra) {
  const auto finish = [&](const TensorView<T, 2>& to) {
    if constexpr ((ResidualArgument<Extra> || ...)) {
      const auto residual = residual_rows(find_rows<Residual, const T>(extra...), y, frame, run);
      if constexpr (Output::has_weights)
        products.run_output(run.backend, rows, w, to, residual, frame, run.workspace);
      else
        run(sum_items<T>(rows, residual, to));
    } else if constexpr (Output::has_weights) {
      products.run(run.backend, rows, w, LayerMatrix::output, {&to, 1}, run.workspace);
    } else {
      run(copy_items(rows, to));
    }
  };
  into_rows(y, frame, finish, run);
}

/// A layer's mask or score, refused if it is one for no call.
template <class P> P checked_policy(P policy, Index heads) {
  check_policy(policy, heads);
  return policy;
}

/// A policy that a layer owns: as it was given, and as the backend's machine reads it.
template <class B, class P> class Kept {
 public:
  Kept(P policy, const B&) : own_(std::move(policy)) {}
  const P& own() const { return own_; }
  const P& there() const { return own_; }

 private:
  [[no_unique_address]] P own_;
};
template <class B, class P>
requires(!computes_on_host<B>) class Kept<B, P> {
 public:
  Kept(P policy, const B& backend) : own_(std::move(policy)), there_(backend.keep(own_)) {}
  const P& own() const { return own_; }
  const auto& there() const { return there_; }

 private:
  [[no_unique_address]] P own_;
  std::remove_cvref_t<decltype(std::declval<const B&>().keep(std::declval<const P&>()))> there_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
