// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "../../core/check.hpp"
#include "key_chunks.hpp"

/// How workers share the tiles of queries of a call, and the keys of long sequences.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Passes over tiles: every part of those whose keys are shared and every other one whole; then the former's parts
/// together.
enum class Pass { attend, merge };

/// A tile, or the part of it that one chunk of its keys makes.
struct TileTask {
  Index b, tile;            ///< the sequence, and which one of its tiles
  std::int64_t first_part;  ///< of the tile
  Index parts;              ///< of the tile, 0 where its keys are not shared
  Index chunk;              ///< of a part: the n-th of the sequence's chunks that are not all dropped

  /// That of chunk n; later chunks, which are longer, come first.
  std::int64_t part(Index n) const { return first_part + parts - 1 - n; }
};

/// The tiles of a call's sequences as tasks, whole or in parts, each chunk of a tile's keys a part. A tile is what
/// reads its keys once: on some machines it is a group of tiles.
class TileTasks {
 public:
  /// Memory of the frame, no tiles yet.
  template <class Frame>
  TileTasks(Index batch, Frame& frame)
      : batch_(batch), before_(frame.template take<Counts>(static_cast<std::size_t>(batch) + 1)) {
    cut([](Index) { return 0; });
  }

  /// Sequence b has tiles_of(b) tiles, all of them whole.
  template <class Tiles> void cut(const Tiles& tiles_of) {
    before_[0] = {0, 0, 0};
    for (Index b = 0; b < batch_; ++b) before_[b + 1] = {before_[b].whole + tiles_of(b), 0, 0};
  }

  /// The keys of sequences of several chunks are shared, if shared(b) says so; none are where tasks would be more than
  /// an Index counts.
  template <class Call, class Shared> void share(const Call& call, const Shared& shared) {
    for (Index b = 0; b < batch_; ++b) {
      const std::int64_t tiles = tiles_of(b);
      const Index chunks = tiles > 0 && shared(b) ? held_chunks(call, b) : 1;
      before_[b + 1] = before_[b];
      if (chunks > 1) {
        before_[b + 1].shared += tiles;
        before_[b + 1].parts += tiles * chunks;
      } else {
        before_[b + 1].whole += tiles;
      }
    }
    if (count(Pass::attend) > std::numeric_limits<Index>::max()) cut([&](Index b) { return tiles_of(b); });
  }

  /// Those of sequences where one tile has more than half of a worker's share of the work, if all tiles are whole; a
  /// key takes a tile of sequence b work(b).
  template <class Call, class Work> void share_longest(const Call& call, Index workers, const Work& work) {
    const auto of_tile = [&](Index b) { return double(work(b)) * call.keys(b); };
    double all = 0;
    for (Index b = 0; b < batch_; ++b) all += double(tiles_of(b)) * of_tile(b);
    share(call, [&](Index b) { return of_tile(b) > all / double(most_longest(workers)); });
  }
  /// More tiles than are shared so.
  static constexpr std::int64_t most_longest(Index workers) { return std::int64_t{2} * workers; }

  /// Of all sequences; and of those whose keys are shared.
  std::int64_t tiles() const { return before_[batch_].tiles(); }
  std::int64_t parts() const { return before_[batch_].parts; }

  /// How many tasks a pass has, and one of them: in the first pass those of parts come first.
  std::int64_t count(Pass pass) const {
    const Counts& all = before_[batch_];
    return pass == Pass::merge ? all.shared : all.parts + all.whole;
  }
  TileTask task(Pass pass, std::int64_t i) const {
    if (pass == Pass::merge) return of_tile(&Counts::shared, i);
    if (i >= parts()) return of_tile(&Counts::whole, i - parts());
    const Index b = sequence_of(&Counts::parts, i), chunks = chunks_of(b);
    const std::int64_t at = i - before_[b].parts;
    const auto after = static_cast<Index>(at % chunks);  // parts of later chunks
    return {b, static_cast<Index>(at / chunks), i - after, chunks, chunks - 1 - after};
  }

 private:
  /// Before a sequence: tiles that are whole and that are not, and parts of the latter.
  struct Counts {
    std::int64_t whole, shared, parts;
    std::int64_t tiles() const { return whole + shared; }
  };
  using Count = std::int64_t Counts::*;

  std::int64_t tiles_of(Index b) const { return before_[b + 1].tiles() - before_[b].tiles(); }
  /// That are parts of each tile.
  Index chunks_of(Index b) const { return static_cast<Index>((before_[b + 1].parts - before_[b].parts) / tiles_of(b)); }
  /// Of the i-th: the last sequence that has so many before it or fewer, for those that have none of their own.
  Index sequence_of(Count count, std::int64_t i) const {
    const auto* const next = std::upper_bound(before_, before_ + batch_, i,
                                              [&](std::int64_t n, const Counts& before) { return n < before.*count; });
    return static_cast<Index>(next - before_) - 1;
  }
  TileTask of_tile(Count count, std::int64_t i) const {
    const Index b = sequence_of(count, i), parts = chunks_of(b);
    const std::int64_t tile = i - before_[b].*count;
    return {b, static_cast<Index>(tile), before_[b].parts + tile * parts, parts, 0};
  }

  Index batch_;
  Counts* before_;  ///< (batch + 1), and of all
};

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
