// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include "../block/rows.hpp"
#include "../cache/kv_source.hpp"
#include "../call.hpp"
#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Keys and values that a layer projected once, to be attended by many calls: layer(x, layer.project_memory(memory)).
///
/// Shapes    key (B, Lk, Hkv, D), normalised and turned to its position  value (B, Lk, Hkv, Dv)
template <class T, class Owner = Tensor<T, 4>> struct KeyValues {
  Owner key, value;
  std::vector<Index> offsets{};       ///< of a ragged batch (B + 1), else empty
  std::uint64_t weights_version = 0;  ///< of the weights that made them, which no others have; 0 fits any
};

namespace detail {

template <class T> constexpr bool is_key_values = false;
template <class T, class Owner> constexpr bool is_key_values<KeyValues<T, Owner>> = true;

/// Keys and values already made, wherever they lie.
template <class M>
concept SourceArgument = KvSource<std::remove_cvref_t<M>>;
/// One that stores what is accumulated as T is.
template <class M, class T>
concept SourceOf = SourceArgument<M> && meets_rows_of<T, typename std::remove_cvref_t<M>::Scalar>;

/// What cross-attention attends to: rows still to be projected, or keys and values already made.
template <class M>
concept MemoryArgument = Sequence<M> || is_key_values<std::remove_cvref_t<M>> || SourceArgument<M>;
/// One that a layer takes whose project_memory() returns Own.
template <class M, class Own>
concept MemoryOf = SequenceOf<M, ScalarOf<decltype(Own::key)>> || std::same_as<std::remove_cvref_t<M>, Own> ||
    SourceOf<M, ScalarOf<decltype(Own::key)>>;
template <class Own, class... Extra>
constexpr bool has_foreign_memory = ((MemoryArgument<Extra> && !MemoryOf<Extra, Own>) || ...);
/// Whether a memory and what follows it begin with rows of keys and rows of values.
template <class... Extra> constexpr bool has_value_rows = false;
template <class Keys, class Values, class... Rest>
constexpr bool has_value_rows<Keys, Values, Rest...> =
    Sequence<std::remove_cvref_t<Keys>>&& Sequence<std::remove_cvref_t<Values>>;
/// Whether one follows another argument of the call, and not x.
template <class... Extra> constexpr bool misplaced_memory = false;
template <class First, class... Rest>
constexpr bool misplaced_memory<First, Rest...> = !MemoryArgument<First> && (MemoryArgument<Rest> || ...);

template <class T, class Owner>
void require_fitting_memory(const KeyValues<T, Owner>& memory, const Config& c, std::uint64_t weights_version) {
  require(
      memory.weights_version == 0 || memory.weights_version == weights_version,
      "layer: these keys and values were projected with other weights than the layer has now: call project_memory() "
      "again");
  require_equal("layer", "heads", "key", memory.key.extent(2), "the layer", c.num_kv_heads);
  require_equal("layer", "head size", "key", memory.key.extent(3), "the layer", c.head_dim);
  require_equal("layer", "head size", "value", memory.value.extent(3), "the layer", c.value_dim);
}

/// A source has the heads and head sizes of the layer's keys and values.
inline void require_fitting_source(const KvSizes& source, const Config& c) {
  const auto agree = [](const char* axis, Index stored, Index own) {
    require_equal("layer", axis, "the source", stored, "the layer", own);
  };
  agree("key/value heads", source.heads, c.num_kv_heads);
  agree("head size", source.dim, c.head_dim);
  agree("value head size", source.value_dim, c.value_dim);
}

/// A call's Ragged over keys and values of a batch that was projected with these offsets: its key offsets are theirs.
///
/// Errors    ShapeError if the call cuts the keys elsewhere, or does not cut the queries at all
inline void take_projected_offsets(const std::vector<Index>& offsets, Index batch, std::optional<Ragged>& ragged) {
  const Index sequences = offsets.empty() ? 1 : static_cast<Index>(offsets.size()) - 1;
  if (!ragged)
    return require(sequences == 1, "layer: the memory was projected as ", sequences,
                   " sequences, but the call has no Ragged: give mha::Ragged with the offsets of x");
  if (offsets.empty()) {
    require(batch == 1, "layer: the memory was projected as a batch of ", batch,
            ", but Ragged cuts the rows of one: project its rows one after another, with the same Ragged");
    return require(ragged->keys().size == 2,
                   "layer: the memory was projected as one sequence, but Ragged cuts it into ", ragged->keys().size - 1,
                   ": give project_memory() the same Ragged");
  }
  const Borrowed<Index>& asked = ragged->key_offsets;
  if (asked.size > 0) {
    require(asked.size - 1 == sequences, "layer: Ragged has ", asked.size - 1,
            " key sequences, but the memory was projected as ", sequences);
    for (Index b = 0; b <= sequences; ++b)
      require(asked[b] == offsets[static_cast<std::size_t>(b)], "layer: Ragged says that key sequence ", b,
              " starts at row ", asked[b], ", but the memory was projected with ",
              offsets[static_cast<std::size_t>(b)]);
  }
  ragged->key_offsets = offsets;
}

/// Keys or values (B, Lk, Hkv, ·) of a call's queries (B, Lq, Hq, D): those of a single sequence serve every sequence
/// of queries.
template <class T>
TensorView<const T, 4> shared_by(const TensorView<const T, 4>& queries, TensorView<const T, 4> rows) {
  if (rows.batch() != 1 || queries.batch() <= 1) return rows;
  rows.extent[0] = queries.batch();
  rows.stride[0] = 0;
  return rows;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
