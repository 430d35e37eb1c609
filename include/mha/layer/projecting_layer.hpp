// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "../block/rows.hpp"
#include "../call.hpp"
#include "../call_backend.hpp"
#include "../checked_call.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"
#include "../positions.hpp"
#include "cache_step.hpp"
#include "cached_call.hpp"
#include "call.hpp"
#include "config.hpp"
#include "key_values.hpp"
#include "memory_rows.hpp"
#include "memory_tape.hpp"
#include "parameters.hpp"
#include "products.hpp"
#include "stages.hpp"

namespace mha::inline MHA_NAMESPACE {

template <class T, Backend B, class Policies> class Layer;  // in layer.hpp

/// A layer that projects memories for many calls.
template <class T, Backend B, class Policies> class ProjectingLayer : public Layer<T, B, Policies> {
  using Base = Layer<T, B, Policies>;
  using MemoryRows = detail::MemoryRows<T>;

 public:
  using KeyValues = typename Base::KeyValues;

  using Base::Base;

  /// Keys and values of a memory, projected once.
  ///
  /// Shapes    memory (Lk, E_kv) or (B, Lk, E_kv)
  /// Then      Ragged; Origin, the position that each sequence's first key is turned to, 0 if not given: for keys that
  ///           are to stand further on among others, because masks count keys from 0; a Workspace, a backend
  /// Errors    ShapeError if memory has not kv_model columns, a Ragged or an Origin is of other sizes, or there are no
  ///           weights yet
  template <SequenceOf<T> Memory, class... Extra>
  requires(!detail::records_memory<Extra...> && !detail::begins_with_step<Extra...> &&
           !detail::has_value_rows<Memory, Extra...>) [[nodiscard]] KeyValues
      project_memory(const Memory& memory, Extra&&... extra) const {
    return made_of(
        detail::read_memory<B>(memory), [](const auto&...) {}, extra...);
  }
  /// The same with keys from some rows and values from others: keys (Lk, E_kv), values (Lk, E_v), or (B, Lk, ·).
  template <SequenceOf<T> Keys, SequenceOf<T> Values, class... Extra>
  requires(!detail::records_memory<Extra...> && !detail::begins_with_step<Extra...>) [[nodiscard]] KeyValues
      project_memory(const Keys& keys, const Values& values, Extra&&... extra) const {
    return made_of(
        detail::read_memory<B>(keys, values), [](const auto&...) {}, extra...);
  }

  /// The same, written to a cache: keys and values of more rows of the step's sequences, each of which is a memory.
  /// Calls attend to them through a source, layer(x, step.source(i)), in this step or, once it is committed, in others.
  ///
  /// Shapes    memory (Σn, E_kv), sequence by sequence as the step names them, or (B, n, E_kv)
  /// Then      a Workspace, a backend. The first row of a sequence stands at position 0
  /// Errors    ShapeError if memory has not kv_model columns, a size is not the step's or the cache's, or the rows that
  ///           a sequence has were made by other weights; the step can be ended then as if nothing had happened
  template <SequenceOf<T> Memory, detail::LayerStepArgument Step, class... Extra>
  void project_memory(const Memory& memory, const Step& step, Extra&&... extra) const {
    write(detail::read_memory<B>(memory), step, extra...);
  }
  template <SequenceOf<T> Keys, SequenceOf<T> Values, detail::LayerStepArgument Step, class... Extra>
  void project_memory(const Keys& keys, const Values& values, const Step& step, Extra&&... extra) const {
    write(detail::read_memory<B>(keys, values), step, extra...);
  }

 protected:
  using Base::backend_, Base::config_, Base::parameters_, Base::products_;

  /// Keys and values of a memory; before(scope, rows, where they stand, keys) runs before norm and position do.
  template <class Before, class... Extra>
  MHA_NO_INLINE KeyValues made_of(const MemoryRows& rows, const Before& before, Extra&... extra) const {
    detail::check_project_arguments<Extra...>();
    const detail::CallNames names = names_of(rows);
    this->check_memory(names, rows);
    const Index batch = rows.keys.extent[0], length = rows.keys.extent[1];
    const B& backend = detail::backend_or(backend_, extra...);
    detail::CallScope<B> scope(backend, extra...);
    const auto options = detail::collect_options<Accumulator<T>>(extra...);
    RowPositions at = detail::key_positions(names, options.ragged, options.origin, batch, length);
    std::vector<Index> offsets;
    if (at.offsets != nullptr) offsets.assign(at.offsets, at.offsets + at.sequences + 1);
    require_computable(backend, rows);
    if (at.offsets == nullptr) at.sequences = batch, at.longest = length;
    const RowPositions there = detail::staged_positions(at, scope.backend, scope.frame, scope.workspace);
    using Made = detail::TensorOf<B, T, 4>;
    KeyValues to{Made(batch, length, config_.num_kv_heads, config_.head_dim),
                 Made(batch, length, config_.num_kv_heads, config_.value_dim), std::move(offsets),
                 parameters_.version()};
    make_keys(scope, rows, to.key.view(), to.value.view(), there,
              [&] { before(scope, rows, at, std::as_const(to).key.view()); });
    return to;
  }

 private:
  static detail::CallNames names_of(const MemoryRows& rows) {
    if (!rows.same()) return {"project_memory", "x", "key", "value"};
    return {"project_memory", "x", "memory", "memory"};
  }
  static void require_computable(const B& backend, const MemoryRows& rows) {
    detail::require_supported(backend, "project_memory");
    detail::require_rows_reachable(backend, "project_memory", rows);
  }

  template <class Step, class... Extra>
  MHA_NO_INLINE void write(const MemoryRows& rows, const Step& step, Extra&... extra) const {
    detail::check_project_step_arguments<Extra...>();
    detail::check_cache_memory<B, Step>();
    const detail::CallNames names = names_of(rows);
    this->check_memory(names, rows);
    const Index batch = rows.keys.extent[0], length = rows.keys.extent[1];
    step.check(config_, parameters_.version(), batch, length, names.call, names.k);
    const B& backend = detail::backend_or(backend_, extra...);
    detail::CallScope<B> scope(backend, extra...);
    require_computable(backend, rows);
    const detail::HeadSizes k{config_.num_kv_heads, config_.head_dim}, v{config_.num_kv_heads, config_.value_dim};
    const auto made = rows.same() ? detail::head_buffers<T, detail::parts_beside<B>>(scope.frame, batch, length, {k, v})
                                  : detail::head_buffers<T, false>(scope.frame, batch, length, {k, v});
    const RowPositions at = detail::staged_positions(detail::positions_of_step(step, batch), scope.backend, scope.frame,
                                                     scope.workspace, detail::sent_numbers(step, scope.workspace));
    make_keys(scope, rows, made[0], made[1], at, [] {});
    step.write(TensorView<const T, 4>(made[0]), TensorView<const T, 4>(made[1]), parameters_.version(), scope.items);
  }

  /// Keys and values of a memory's rows; before() runs before norm and position do.
  template <class Before>
  void make_keys(detail::CallScope<B>& scope, const MemoryRows& rows, const TensorView<T, 4>& key,
                 const TensorView<T, 4>& value, const RowPositions& at, const Before& before) const {
    const auto w = parameters_.views();
    const TensorView<const T, 3> from[] = {rows.keys, rows.values};
    const TensorView<T, 2> results[] = {detail::rows_of(key), detail::rows_of(value)};
    this->multiply(scope, w, detail::LayerMatrix::key, from, results);
    before();
    this->finish_keys(key, w, at, scope.items);
  }
};

}  // namespace mha::inline MHA_NAMESPACE
