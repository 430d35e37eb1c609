// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>

#include "../../core/view.hpp"
#include "../backend.hpp"
#include "../simd/dropout.hpp"
#include "../simd/logit_scale.hpp"
#include "../simd/tile_lanes.hpp"
#include "../simd/tile_policies.hpp"
#include "drop_weights.hpp"
#include "held_blocks.hpp"
#include "kernels.hpp"
#include "kv_tiles.hpp"
#include "query_rows.hpp"
#include "softmax.hpp"
#include "tile_scratch.hpp"
#include "tiles.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

using simd::any_call;
using simd::AnyCall;
using simd::TileLanes;

/// One tile of queries of a head, or of the heads of a group, against the keys block by block.
///
/// Formula   for each key block:  S = K Qᵀ on the array;  masks and scores;  P = exp(S − anchor);  l += ΣP;
///           O += Vᵀ P on the array, up to four blocks at once.  Chunks of keys begin anew and are merged in their
///           order, whichever thread computed them.  Finally O / l.
/// Source    Dao et al. 2022 (FlashAttention), algorithm 1, with queries in vector lanes and an anchor for the maximum
template <class T, class Stored = T> class QueryTile {
  static constexpr float hidden = -std::numeric_limits<float>::infinity();
  static constexpr float log2e = std::numbers::log2e_v<float>, ln2 = std::numbers::ln2_v<float>;

 public:
  QueryTile(const AnyCall<T, Stored>& call, const Kernels& kernels, const KvTiles& kv, const BlockScratch& scratch,
            const TileState& state, const TileLanes& queries, Index to_next = 0)
      : call_(call),
        kernels_(kernels),
        unit_(kernels.product.of_lanes(queries.count())),
        kv_(kv),
        at_(scratch),
        state_(state),
        rows_{nullptr, nullptr, nullptr, state.block_sum, state.rescale, unit_.lanes, 0.f},
        queries_(queries),
        memory_(call, kernels.level, unit_, queries, to_next),
        b_(queries.b),
        count_(queries.count()),
        keys_(call.keys(b_)),
        scale_(call),
        use_(kernels, count_, call.head_dim, call.value_dim) {
    rows_.slope = scale_.slope();
    std::fill_n(rows_.block_sum, lanes(), 0.f);
    begin(state.part);
    memory_.pack(kv_.depth_steps(), at_.rows, state.q);
  }

  Index keys() const { return keys_; }
  Index sequence() const { return b_; }

  /// What comes next is of a chunk of keys of its own, in `part`.
  void begin(const TilePart& part) {
    set(part);
    added_ = false;
    rows_.any_unseen = true;
    rows_.any_far = rows_.any_over = rows_.any_rescale = false;
    std::fill_n(rows_.anchor, lanes(), hidden);
    std::fill_n(rows_.offset, lanes(), 0.f);
    std::fill_n(rows_.sum, lanes(), 0.f);
  }

  /// What there is of the chunk.
  TilePart part() const { return {out_, rows_.anchor, rows_.offset, rows_.sum, added_}; }

  /// The chunk comes after those before it, and another begins.
  void next_chunk() {
    add_chunk(part());
    begin(total_.out == out_ ? state_.next : part());
  }

  /// So does one that was computed elsewhere.
  void add_chunk(const TilePart& chunk) {
    if (!chunk.added) return;
    if (total_.added)
      merge(total_, chunk);
    else
      total_ = chunk;
  }

  /// Keys [begin, begin + 256): the values of one block, which are at `place` of the tiles.
  void attend(Index begin, Index place) {
    moved_ = begin - place;
    const Index end = std::min(begin + value_block, keys_);
    if (dropped(begin, end)) return;
    const TileVisibility all = queries_.visibility(call_.mask, begin, end);
    if (all == TileVisibility::none) return;
    Index pending = begin;  // weights of [pending, k) wait in p for their values
    for (Index k = begin; k < end; k += key_block) {
      const Index stop = std::min(k + key_block, end);
      const simd::KeyRange seen = all == TileVisibility::full ? simd::KeyRange{k, stop, all}
                                                              : queries_.visible(call_.mask, k, stop, tile_depth);
      if (seen.seen == TileVisibility::none || dropped(k, stop)) {
        add_values(pending, k);
        pending = k + key_block;
        continue;
      }
      // What lies before the first visible key of the block is computed and hidden, so that weights lie without gaps.
      const Index to = round_up(seen.end - k, tile_depth) + k;
      logits(k, {k, seen.end, seen.seen}, to);
      memory_.fetch(k, keys_);
      fetch_ahead(to == stop && stop < end, stop, pending);
      weigh(k, to, pending);
      if (values_of(k).non_finite) {
        add_values(pending, k);
        add_guarded_values(k, to);
        pending = k + key_block;
      } else if (to < stop) {
        add_values(pending, to);
        pending = k + key_block;
      }
    }
    add_values(pending, round_up(end, tile_depth));
  }

  /// From all chunks to outputs and log-sum-exps.
  void finish() {
    add_chunk(part());
    if (total_.added) set(total_);
    normalise();
    if (call_.log_sum_exp.data != nullptr)
      queries_.for_each([&](Index h, Index i, Index lane) { call_.row_log_sum_exp(b_, h, i) = log_sum_exp(lane); });
    if (call_.states.level != nullptr) record();
    count();
  }

  /// Counts what the array has done, once.
  void count() const { use_.count(); }

  /// The softmax itself into rows (Lk) of `to`: weights as the array gets them, in bfloat16, divided by their
  /// sum.
  void weights(const TensorView<float, 4>& to, const HeldBlocks& held) {
    const auto each_block = [&](auto&& f) {
      for (Index n = 0; n < held.count(b_) * (value_block / key_block); ++n) {
        const Index k = held.key(b_, n / (value_block / key_block)) + n * key_block % value_block;
        moved_ = k - n * key_block;
        if (k >= keys_) break;
        const Index end = std::min(k + key_block, keys_);
        const TileVisibility seen = queries_.visibility(call_.mask, k, end);
        if (seen == TileVisibility::none || dropped(k, end)) continue;
        logits(k, {k, end, seen}, round_up(end, tile_depth));
        f(k, end);
      }
    };
    // First the anchors, then the weights as they are relative to the last one.
    each_block([&](Index k, Index end) {
      Index pending = k;
      weigh(k, round_up(end, tile_depth), pending);
    });
    const auto weight = [&](Index i, Index k) -> float& { return to(b_, queries_.head_of(i), queries_.row_of(i), k); };
    for (Index i = 0; i < count_; ++i)
      for (Index k = 0; k < keys_; ++k) weight(i, k) = 0.f;
    std::fill_n(rows_.sum, lanes(), 0.f);
    each_block([&](Index k, Index end) {
      weights_of(k, round_up(end, tile_depth), true);
      kernels_.softmax.add(&rows_);
      for (Index j = k; j < end; ++j)
        for (Index i = 0; i < count_; ++i) weight(i, j) = stored_weight(j, i);
    });
    for (Index i = 0; i < count_; ++i)
      if (!empty(i))
        for (Index k = 0; k < keys_; ++k) weight(i, k) /= denominator(i);
    count();
  }

 private:
  Index lanes() const { return unit_.lanes; }
  Index value_rows() const { return kv_.value_tiles() * tile_side; }
  float& s(Index row, Index lane) const { return at_.s[std::ptrdiff_t{row} * lanes() + lane]; }

  /// What the product after the next weights reads first, half a key block: keys from `next` on, or the values of
  /// `pending`.
  void fetch_ahead(bool keys, Index next, Index pending) {
    constexpr std::ptrdiff_t lines = 128;
    if (keys) {
      const KeyRows& rows = kv_.key_rows[(next - moved_) / key_block];
      const std::ptrdiff_t row = rows.stride * std::ptrdiff_t{sizeof(bfloat16)};
      rows_.ahead = {reinterpret_cast<const char*>(rows.tile[0]), row,
                     kv_.depth_steps() > 2 ? lines : key_block / 2 * row};
    } else {
      const ValueTiles& values = values_of(pending);
      rows_.ahead = {reinterpret_cast<const char*>(values.tiles), lines,
                     values.stride * std::ptrdiff_t{sizeof(bfloat16)}};
    }
  }

  /// s ← logits of keys [begin, to), −∞ where hidden and beyond the visible range.
  void logits(Index begin, const simd::KeyRange& keys, Index to) {
    const KeyRows& rows = kv_.key_rows[(begin - moved_) / key_block];
    const Index tiles = (to - begin) / tile_side, together = std::min(tiles, rows.together());
    for (Index t = 0; t < tiles; t += together)
      unit_.multiply({rows.tile[t], rows.apart(t), state_.q, at_.s + std::ptrdiff_t{t} * tile_side * lanes(), together,
                      kv_.depth_steps(), false, tile_depth, rows.stride});
    use_.keys(keys.end - begin);
    if (!scale_.dots()) queries_.apply(call_.score, at_.s, lanes(), call_.scale, begin, keys.end);
    queries_.hide(call_.mask, at_.s, lanes(), keys, tile_depth);
    if (call_.kv.drops()) hide_dropped(begin, keys.end);
    std::fill_n(at_.s + std::ptrdiff_t{keys.end - begin} * lanes(), std::ptrdiff_t{to - keys.end} * lanes(), hidden);
  }

  /// Whether the source has dropped all keys [begin, end).
  bool dropped(Index begin, Index end) const { return call_.kv.held(b_, begin, end) == end; }
  void hide_dropped(Index begin, Index end) const {
    for (Index k = begin; k < end;) {
      const Index from = call_.kv.held(b_, k, end);
      std::fill_n(at_.s + std::ptrdiff_t{k - begin} * lanes(), std::ptrdiff_t{from - k} * lanes(), hidden);
      k = from < end ? call_.kv.held_end(b_, from, end) : end;
    }
  }

  /// The weights of keys [begin, to) into p; rows that have to move their anchor first get the values of [pending,
  /// begin).
  void weigh(Index begin, Index to, Index& pending) {
    if (rows_.any_unseen) raise(begin, to, pending, false);
    weights_of(begin, to, rows_.any_far);
    if (rows_.any_over) {
      raise(begin, to, pending, true);
      weights_of(begin, to, true);
    }
    kernels_.softmax.add(&rows_);
    if (call_.dropout.exist()) drop(begin, to);
  }

  /// The weights of keys [begin, to) that dropout drops become 0; what it multiplies by, normalise() does.
  MHA_NO_INLINE void drop(Index begin, Index to) const {
    simd::DroppingLanes lanes;
    queries_.set_draws(call_, lanes);
    simd::with_isa(kernels_.level, [&](auto isa) {
      for (Index k = begin; k < to; k += tile_depth)
        decltype(isa)::template run<DropWeightsBody>(weights_at(k), this->lanes(), k, lanes.of(call_.dropout));
      return 0;
    });
  }

  void weights_of(Index begin, Index to, bool guarded) {
    (guarded ? kernels_.softmax.guarded_weights : kernels_.softmax.weights)(at_.s, to - begin, weights_at(begin),
                                                                            &rows_);
  }

  void raise(Index begin, Index to, Index& pending, bool over) {
    kernels_.softmax.raise(at_.s, to - begin, &rows_, over);
    if (!rows_.any_rescale) return;
    add_values(pending, begin);
    pending = begin;
    if (added_) kernels_.softmax.rescale(out_, value_rows(), rows_.rescale, lanes());
  }

  std::uint32_t* weights_at(Index k) const {
    return at_.p + std::ptrdiff_t{k % value_block / tile_depth} * (lanes() / tile_side) * tile_words;
  }

  /// Of the 64 keys from k on.
  const ValueTiles& values_of(Index k) const { return kv_.values[(k - moved_) / key_block]; }

  /// O += Vᵀ P over keys [begin, end) of one value block, multiples of 64 and of 32: at once those that lie together.
  void add_values(Index begin, Index end) {
    if (begin >= end || kv_.value_dim == 0) return;
    for (Index k = begin; k < end;) {
      const ValueTiles& first = values_of(k);
      Index stop = k + key_block;
      const auto follows = [&](const ValueTiles& next) {
        return next.stride == first.stride && next.tiles == first.tiles + KvTiles::value_offset(stop - k);
      };
      while (stop < end && follows(values_of(stop))) stop += key_block;
      multiply_values(first.tiles, first.stride, k, std::min(stop, end));
      k = stop;
    }
    use_.values(std::min(end, keys_) - begin);
  }

  void multiply_values(const bfloat16* values, std::ptrdiff_t stride, Index begin, Index end) {
    unit_.multiply({values, stride, weights_at(begin), out_, kv_.value_tiles(), (end - begin) / tile_depth, added_});
    added_ = true;
  }

  /// The same for a key block with NaN or infinities among its values: they join one by one, for the queries that see
  /// their key, and the array multiplies the others.
  void add_guarded_values(Index begin, Index end) {
    const Index steps = (end - begin) / tile_depth, tiles = kv_.value_tiles();
    const ValueTiles& from = values_of(begin);
    for (Index t = 0; t < tiles; ++t)
      for (Index i = 0; i < steps * tile_size; ++i) {
        const bfloat16 v = from.tiles[std::ptrdiff_t{t} * from.stride + i];
        at_.finite[t * steps * tile_size + i] = is_finite(v) ? v : bfloat16{};
      }
    multiply_values(at_.finite, std::ptrdiff_t{steps} * tile_size, begin, end);
    use_.values(std::min(end, keys_) - begin);
    for (Index t = 0; t < tiles; ++t)
      for (Index i = 0; i < steps * tile_size; ++i) {
        const bfloat16 v = from.tiles[std::ptrdiff_t{t} * from.stride + i];
        if (is_finite(v)) continue;
        const Index key = i / tile_size * tile_depth + i % tile_depth, d = t * tile_side + i % tile_size / tile_depth;
        for (Index lane = 0; lane < count_; ++lane)
          if (s(key, lane) != hidden)
            out_[std::ptrdiff_t{d} * lanes() + lane] += static_cast<float>(v) * stored_weight(begin + key, lane);
      }
  }

  float stored_weight(Index key, Index lane) const {
    const std::uint32_t pair =
        weights_at(key)[lane / tile_side * tile_words + key % tile_depth / 2 * tile_side + lane % tile_side];
    return static_cast<float>(bfloat16::from_bits(static_cast<std::uint16_t>(pair >> (key % 2 * 16))));
  }

  bool empty(Index i) const { return rows_.anchor[i] == hidden && rows_.sum[i] == 0.f; }
  static bool far(float offset) { return !(std::abs(offset) < far_anchor); }

  void set(const TilePart& part) {
    out_ = part.out;
    rows_.anchor = part.anchor;
    rows_.offset = part.offset;
    rows_.sum = part.sum;
    added_ = part.added;
  }

  /// What the weights of row i are relative to, as a logit.
  float level(const TilePart& part, Index i) const {
    const float anchor = part.anchor[i], offset = part.offset[i];
    return anchor == hidden || far(offset) ? anchor : offset / rows_.slope;
  }

  /// `total` becomes what both make, relative to the higher level of each row.
  void merge(const TilePart& total, const TilePart& chunk) {
    float *const first = rows_.block_sum, *const second = rows_.rescale;
    for (Index i = 0; i < lanes(); ++i) {
      first[i] = level(total, i);
      second[i] = level(chunk, i);
      if (!(second[i] > first[i])) continue;
      total.anchor[i] = chunk.anchor[i];
      total.offset[i] = chunk.offset[i];
    }
    kernels_.softmax.merge({first, total.sum, total.out}, {second, chunk.sum, chunk.out}, rows_.slope, value_rows(),
                           lanes());
  }

  /// What a row is divided by: the sum over its keys and, relative to the same anchor, the sink.
  float denominator(Index i) const {
    const float sum = rows_.sum[i];
    if (call_.sink.size == 0) return sum;
    const float sink = static_cast<float>(call_.sink[queries_.head_of(i)]);
    if (far(rows_.offset[i])) return scale_.with_sink(sum, rows_.anchor[i], sink);
    return sum + std::exp2(sink * log2e - rows_.offset[i]);
  }

  float log_sum_exp(Index i) const {
    if (empty(i)) return hidden;
    return (far(rows_.offset[i]) ? scale_.logit(rows_.anchor[i]) : rows_.offset[i] * ln2) + std::log(rows_.sum[i]);
  }

  /// What the sums of weights are relative to, and the sums.
  void record() const {
    queries_.for_each([&](Index h, Index i, Index lane) {
      const std::ptrdiff_t row = call_.row_state(b_, h, i);
      call_.states.level[row] = level(part(), lane);
      call_.states.sum[row] = rows_.sum[lane];
    });
  }

  void normalise() const {
    if (!added_) std::fill_n(out_, std::ptrdiff_t{value_rows()} * lanes(), 0.f);
    float* const factor = rows_.rescale;
    const float kept = static_cast<float>(call_.dropout.scale);
    for (Index i = 0; i < lanes(); ++i) factor[i] = i >= count_ || empty(i) ? 0.f : kept / denominator(i);
    memory_.store(out_, factor, at_.out_rows);
  }

  const AnyCall<T, Stored>& call_;
  const Kernels& kernels_;
  const ProductUnit& unit_;
  const KvTiles& kv_;
  const BlockScratch& at_;
  const TileState state_;
  SoftmaxRows rows_;      ///< of the chunk
  float* out_ = nullptr;  ///< its too
  const TileLanes queries_;
  const QueryRows<AnyCall<T, Stored>> memory_;
  const Index b_, count_, keys_;
  const simd::LogitScale<float> scale_;
  bool added_ = false;  ///< whether `out` holds anything yet
  Index moved_ = 0;     ///< how far the keys of the block are from their place in kv_
  TilePart total_;      ///< of the chunks before
  TileUse use_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
