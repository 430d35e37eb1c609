// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

#include "../cache/gathered_rows.hpp"
#include "../call.hpp"
#include "../checked_call.hpp"
#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/overlap.hpp"
#include "../core/view.hpp"
#include "backward_interface.hpp"
#include "cache_step.hpp"
#include "key_values.hpp"

/// The keys and values that a recorded call attends to, as its backward pass reads them.
namespace mha::inline MHA_NAMESPACE::detail {

/// Where they are, on the tape or what it borrows.
template <class T> struct RecordedKeys {
  KeysFrom from;
  TensorView<const T, 4> key, value;
  RecordedLists lists{};
  bool shared = false;         ///< whether other calls attend to them too
  GatheredRows<T> gathered{};  ///< of a cache or a source: to be written; offsets, if any, of a projection too

  /// The call's options with the lists in place of the step's.
  template <class A> CallOptions<A> options(CallOptions<A> given) const {
    if (from != KeysFrom::cache) return given;
    if (given.ragged) given.ragged = Ragged{lists.query_offsets};
    given.origin = Origin(Borrowed<Index>(lists.positions));
    given.whole = nullptr;
    return given;
  }
};

/// Of a call whose keys are rows of `memory`, which may be x itself, or what project_memory() returned, or of a step or
/// another source, which are copied. `made` are those of the call; arrays are taken from `kept`.
///
/// Errors    ShapeError if the step is of a recordable cache, or all its sequences together are too long for an axis
template <class T, class Made, class Memory, class Source, class A, class Kept>
RecordedKeys<T> recorded_keys(KeysFrom from, const Made& made, [[maybe_unused]] const Memory& memory,
                              [[maybe_unused]] const Source& source, [[maybe_unused]] const CallOptions<A>& options,
                              [[maybe_unused]] Kept& kept) {
  constexpr bool cached = LayerStepArgument<Memory>;
  if constexpr (cached || KvSource<Memory>) {
    require(options.planned_keys == 0,
            "layer: a tape records no step of a recordable cache: make the cache without CacheSizes{.recordable = "
            "true}");
    const GatheredAxes axes = gathered_axes("layer", source, options.ragged.has_value());
    const GatheredRows<T> rows = gathered_rows<T>("layer", source, axes, kept);
    RecordedKeys<T> keys{from, rows.key, rows.value, {}, cached || rows.key.size() > 0, rows};
    if constexpr (cached) {
      const auto offsets = memory.offsets(), positions = memory.positions();
      keys.lists.query_offsets.assign(offsets.begin(), offsets.end());
      keys.lists.positions.assign(positions.begin(), positions.end());
    }
    if (axes.side_by_side) {
      keys.lists.key_offsets.resize(static_cast<std::size_t>(source.batch()) + 1);
      list_key_offsets(source, keys.lists.key_offsets.data());
      keys.gathered.offsets = Borrowed<Index>(keys.lists.key_offsets);
    }
    return keys;
  } else if constexpr (is_key_values<Memory>) {
    RecordedKeys<T> keys{from, made.key, made.value, {{}, {}, memory.offsets}, made.key.size() > 0};
    if (!memory.offsets.empty()) keys.gathered.offsets = Borrowed<Index>(keys.lists.key_offsets);
    return keys;
  } else {
    return {from, made.key, made.value};
  }
}

/// What a recorded call attends to, which has x's batch.
template <class T, class Made, class Memory>
decltype(auto) recorded_source(const CallNames& names, const TensorView<const T, 4>& q, const Made& made,
                               const Memory& memory, const std::optional<Ragged>& ragged) {
  if constexpr (LayerStepArgument<Memory>)
    return memory.source();
  else if constexpr (KvSource<Memory>)
    return (memory);
  else
    return kv_of(names, q, made.key, made.value, ragged);
}

}  // namespace mha::inline MHA_NAMESPACE::detail
