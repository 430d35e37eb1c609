// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The absolute position of each sequence's first query: one for all, or one each.
struct Origins {
  Index all = 0;
  const Index* each = nullptr;

  constexpr Origins() = default;
  MHA_HOST_DEVICE constexpr Origins(Index common) : all(common) {}
  MHA_HOST_DEVICE constexpr explicit Origins(const Index* per_sequence) : each(per_sequence) {}
  MHA_HOST_DEVICE constexpr Index operator[](Index b) const { return each != nullptr ? each[b] : all; }
};

/// Where the rows of a (B, L, H, D) tensor stand: row l of sequence b at first[b] + l. With offsets it is (1, ΣL, H,
/// D), sequence b in rows offsets[b] … offsets[b + 1] − 1 and the longest of the sequences `longest`.
struct RowPositions {
  Origins first{};
  const Index* offsets = nullptr;
  Index sequences = 0, longest = 0;
};

/// Sizes of one attention call; of sequences of different lengths `queries` and `keys` are those of the longest.
/// Positions are absolute: query row i of sequence b stands at position origin[b] + i, key row j at j.
struct CallShape {
  Index batch = 0, heads = 0, queries = 0, keys = 0;
  Origins origin{};                      ///< keys − queries if not given, so that the last query meets the last key
  const Index* query_offsets = nullptr;  ///< of a ragged call, (batch + 1)
  bool uneven_keys = false;              ///< not every sequence has `keys` keys
  bool last_meets_last = false;          ///< in each sequence the last query stands at the last key
  Index fewest_queries = 0;              ///< of a sequence of a ragged call that has some; 0: not known

  MHA_HOST_DEVICE constexpr Index queries_of(Index b) const {
    return query_offsets != nullptr ? query_offsets[b + 1] - query_offsets[b] : queries;
  }
  /// Where it is not known, of the longest sequence.
  MHA_HOST_DEVICE constexpr Index keys_of(Index b) const { return last_meets_last ? queries_end(b) : keys; }
  /// Pairs of a query and a key in all heads, hidden ones too, as if every sequence had the length of the longest.
  MHA_HOST_DEVICE constexpr double pairs() const { return double(batch) * heads * queries * keys; }
  /// One past the position of sequence b's last query.
  MHA_HOST_DEVICE constexpr Index queries_end(Index b) const { return origin[b] + queries_of(b); }
};

}  // namespace mha::inline MHA_NAMESPACE
