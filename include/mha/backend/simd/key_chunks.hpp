// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "../../core/check.hpp"

/// Where the keys of a call are cut into pieces that threads share.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Keys whose softmax is computed apart and merged with that of the keys before: what threads share when there are few
/// queries. Every call merges at these positions, so that its bits do not depend on whether threads did. Later chunks
/// are longer, so that what threads leave of many keys takes little memory.
inline constexpr Index key_chunk = 1024, short_chunks = 16, long_chunk = 4096;
static_assert(short_chunks * key_chunk % long_chunk == 0, "long chunks begin at multiples of their size");

/// Where chunk n begins, and the chunk of a key.
constexpr Index chunk_begin(Index n) {
  return n <= short_chunks ? n * key_chunk : short_chunks * key_chunk + (n - short_chunks) * long_chunk;
}
constexpr Index chunk_of(Index key) {
  constexpr Index from = short_chunks * key_chunk;
  return key < from ? key / key_chunk : short_chunks + (key - from) / long_chunk;
}

/// Whether so many tiles of queries are too few to keep workers busy.
constexpr bool too_few_tiles(std::int64_t tiles, Index workers) {
  constexpr Index tiles_per_worker = 4;
  return tiles < std::int64_t{tiles_per_worker} * workers;
}

/// The n-th chunk of sequence b's keys that is not all dropped; where there is none, one beyond its keys.
template <class Call> Index held_chunk(const Call& call, Index b, Index n) {
  if (!call.kv.drops()) return n;
  const Index keys = call.keys(b);
  Index chunk = -1;
  do chunk = chunk_of(call.kv.held(b, chunk_begin(chunk + 1), keys));
  while (n-- > 0 && chunk_begin(chunk) < keys);
  return chunk;
}

/// Where a chunk of so many keys ends.
constexpr Index chunk_end(Index chunk, Index keys) { return std::min(chunk_begin(chunk + 1), keys); }

/// Chunks of so many keys; 1 at least.
constexpr Index all_chunks(Index keys) { return keys == 0 ? 1 : chunk_of(keys - 1) + 1; }

/// The chunks of sequence b's keys that are not all dropped; 1 at least.
template <class Call> Index held_chunks(const Call& call, Index b) {
  const Index all = all_chunks(call.keys(b));
  if (!call.kv.drops()) return all;
  Index n = 1;
  while (n < all && chunk_begin(held_chunk(call, b, n)) < call.keys(b)) ++n;
  return n;
}
/// The most of any sequence.
template <class Call> Index most_chunks(const Call& call) {
  if (!call.kv.drops()) return all_chunks(call.shape.keys);
  Index most = 1;
  for (Index b = 0; b < call.shape.batch; ++b) most = std::max(most, held_chunks(call, b));
  return most;
}

/// What explain() says of workers that share the keys of a call where its mask lets queries see several chunks.
inline std::string explain_chunks(Index chunks) {
  return ", which can share the keys in " + std::to_string(chunks) + " chunks";
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
