// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "../../core/check.hpp"
#include "../simd/tile_lanes.hpp"
#include "array.hpp"
#include "backward_memory.hpp"
#include "backward_unit.hpp"
#include "pair_operands.hpp"
#include "product_unit.hpp"
#include "tile_rows.hpp"
#include "waiting_products.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

/// What a query head computes of its queries × its keys, from operands to sums. Base is a simd::BackwardHead in
/// BackwardTiling.
template <class Base> class BackwardPieces : public Base {
  static constexpr Index together = BackwardTiling::together;
  static constexpr float hidden = -std::numeric_limits<float>::infinity();

 public:
  /// Pieces [n, end) of the queries against pieces [m, m_end) of the keys, one after another.
  void pieces(Index n, Index end, Index m, Index m_end, const BackwardScratch& scratch) const {
    const UnitScope unit(kernels_.product.unit);
    Course course{scratch, WaitingProducts(kernels_.interleaves)};
    const Index first = n * BackwardTiling::query_piece,
                tiles_end = std::min(tiles_, end * BackwardTiling::query_piece);
    Index t = first;
    const auto next = [&](Block& in) {
      for (; m < m_end; ++m, t = first)
        while (t < tiles_end) {
          in.tile = t;
          in.tiles = std::min(together, tiles_end - t);
          t += together;
          if (look(m, in)) return true;
        }
      return false;
    };
    Block blocks[2];
    bool more = next(blocks[0]);
    if (more) start(blocks[0].steps[0], course);
    course.waiting.run();
    for (Index i = 0; more; i = 1 - i) {
      more = next(blocks[1 - i]);
      compute(blocks[i], more ? &blocks[1 - i].steps[0] : nullptr, course);
    }
    finish(course);
  }

 protected:
  using Base::call_, Base::f_, Base::tiling_, Base::pairs_, Base::b_, Base::h_, Base::queries_, Base::keys_,
      Base::tiles_;

  template <class Call>
  BackwardPieces(const Call& call, const BackwardKernels& kernels, const BackwardTiling& tiling,
                 const BackwardMemory& memory, Index b, Index h)
      : Base(call, kernels.pairs, tiling, memory.rows, b, h),
        kernels_(kernels),
        at_(memory),
        padded_queries_(tiling.padded_queries(queries_)),
        padded_keys_(BackwardTiling::padded_keys(keys_)) {}

  std::ptrdiff_t depth_group() const { return std::ptrdiff_t{padded_queries_} * tile_side; }
  bfloat16* key_row(bfloat16* rows, Index k) const { return rows + std::ptrdiff_t{k} * tiling_.query_dim; }
  float* dq_of(Index t) const { return at_.dq + std::ptrdiff_t{t} * tiling_.lanes * tiling_.query_dim; }
  /// Row k of columns [32 g, 32 g + 32) of dK or dV.
  float* sums_at(float* sums, Index g, Index k) const {
    return sums + (std::ptrdiff_t{g} * padded_keys_ + k) * sums_columns;
  }
  /// The first of the A tiles of 32 keys from k on.
  bfloat16* transposed_at(Index k) const {
    constexpr Index piece = BackwardTiling::key_piece;
    return key_row(at_.k_transposed, k / piece * piece) + k % piece / tile_depth * tile_size;
  }
  static constexpr std::ptrdiff_t transposed_stride = BackwardTiling::key_steps * std::ptrdiff_t{tile_size};

  const BackwardKernels& kernels_;
  const BackwardMemory& at_;
  const Index padded_queries_, padded_keys_;

 private:
  static constexpr Index key_steps = BackwardTiling::key_steps;
  static constexpr std::ptrdiff_t query_step = std::ptrdiff_t{BackwardTiling::key_piece} * tile_depth;  ///< of rows

  /// What a block adds to dK and dV: for each 32 keys that some tile sees a product for each 32 columns.
  struct Sums {
    struct Keys {
      Index first, count;          ///< keys of the piece
      Index step, steps, queries;  ///< from 32 queries `step` of the block on
    } keys[std::size_t{key_steps}];
    const BackwardScratch::Rows* rows = nullptr;
    Index key = 0, query = 0;  ///< the first of the block
    Index done = 0, count = 0;
  };

  /// What a tile adds to dQ: a product for each 32 columns.
  struct QuerySums {
    Index tile = 0, key = 0, keys = 0;  ///< from `key` on
    const std::uint32_t* ds_tiles = nullptr;
    Index done = 0, count = 0;
  };

  /// How far a piece is.
  struct Course {
    const BackwardScratch& scratch;
    WaitingProducts waiting;
    Sums sums{};                             ///< of the block before
    QuerySums query_sums{};                  ///< of the tile before
    Index blocks = 0, tiles = 0, steps = 0;  ///< how many have begun
    Index due = 0;                           ///< tiles × depth of these sums that have to be computed now
  };

  /// 32 keys of a tile.
  struct Step {
    Index tile, before;  ///< whose queries are `before` queries after the first of the block
    simd::KeyRange keys;
    Index first, left;  ///< the first key that the tile sees; steps of the tile after this one
    Index next;         ///< the key with which the next one begins
  };

  /// What `tiles` tiles from `tile` on see of keys [key, end) of a piece.
  struct Block {
    Index tile = 0, tiles = 0, key = 0, end = 0;
    bool guarded = false;
    Index size = 0;  ///< steps
    Step steps[std::size_t{together * key_steps}];
    bool sees[std::size_t{together}][std::size_t{key_steps}];

    /// In rows, where pairs of key k and query q of the block lie.
    static std::ptrdiff_t at(Index k, Index q) {
      return q / tile_depth * query_step + std::ptrdiff_t{k} * tile_depth + q % tile_depth;
    }
  };

  /// A product of which (m, k) · (k, n) are of the call.
  void add(Course& course, const ProductUnit& unit, const TileProduct& product, Index m, Index n, Index k) const {
    course.waiting.add(unit, product);
    if (metered_) count_use(kernels_.use(m, n, k));
  }

  /// The steps of a block whose tiles are given against piece m of the keys. Whether there is any.
  bool look(Index m, Block& in) const {
    in.key = m * BackwardTiling::key_piece;
    in.end = std::min(keys_, in.key + BackwardTiling::key_piece);
    in.size = 0;
    in.guarded = false;
    for (Index g = 0; g < in.tiles; ++g) in.guarded = in.guarded || !at_.finite[in.tile + g];
    for (Index j = in.key / key_block; j < blocks_of(in.end, key_block); ++j)
      in.guarded = in.guarded || !at_.finite[tiles_ + j];
    for (Index g = 0; g < in.tiles; ++g) {
      const Index from = in.size;
      for (Index key = in.key, j = 0; key < in.end; key += tile_depth, ++j) {
        const simd::KeyRange keys =
            f_.mask.visible(pairs_.queries(in.tile + g), key, std::min(key + tile_depth, in.end), tile_depth);
        in.sees[g][j] = keys.seen != TileVisibility::none;
        if (!in.sees[g][j]) continue;
        if (in.size > from) in.steps[in.size - 1].next = key;
        in.steps[in.size] = {in.tile + g, g * tiling_.lanes, keys, in.size > from ? in.steps[from].first : key,
                             0,           key + tile_depth};
        ++in.size;
      }
      for (Index i = from; i < in.size; ++i) in.steps[i].left = in.size - 1 - i;
    }
    return in.size > 0;
  }

  /// A block of which the first step has begun; begins `next`, that of the block after it, if there is one.
  void compute(const Block& in, const Step* next, Course& course) const {
    const Sums sums = begin_sums(in, course.scratch.rows[course.blocks++ % 2]);
    if (in.guarded) std::fill_n(course.scratch.visible, Block::at(0, together * tiling_.lanes), std::uint8_t{0});
    for (Index i = 0; i < in.size; ++i) {
      const Step* const after = i + 1 < in.size ? &in.steps[i + 1] : next;
      const BackwardScratch::Step& scratch = course.scratch.steps[(course.steps - 1) % 2];
      if (after != nullptr) start(*after, course);
      add_due(course, in.size - i, in.steps[i].left + 1);
      if (in.steps[i].left == 0) add_query_sums(course);
      if (i + 1 == in.size) add_sums(course);
      one_step(in.steps[i], in, *sums.rows, course, scratch);
    }
    course.sums = sums;
    if (!in.guarded) return;
    finish(course);
    add_non_finite(in, *sums.rows, course.scratch.visible);
  }

  /// What a block will add to dK and dV. Pairs that no step computes weigh nothing there.
  Sums begin_sums(const Block& in, const BackwardScratch::Rows& rows) const {
    const Index lanes = tiling_.lanes;
    Sums sums;
    Index size = 0;
    for (Index key = 0, j = 0; in.key + key < in.end; key += tile_depth, ++j) {
      Index first = 0, last = in.tiles;
      while (first < last && !in.sees[first][j]) ++first;
      while (first < last && !in.sees[last - 1][j]) --last;
      if (first == last) continue;
      const Index from = first * lanes / tile_depth, to = blocks_of(last * lanes, tile_depth);
      clear(key, from * tile_depth, first * lanes, rows);
      for (Index g = first; g < last; ++g)
        if (!in.sees[g][j]) clear(key, g * lanes, (g + 1) * lanes, rows);
      clear(key, last * lanes, to * tile_depth, rows);
      sums.keys[size++] = {key, std::min(tile_depth, in.end - in.key - key), from, to - from,
                           std::min((last - first) * lanes, queries_ - (in.tile + first) * lanes)};
    }
    sums.rows = &rows;
    sums.key = in.key;
    sums.query = in.tile * lanes;
    sums.count = size * (value_sums() + key_sums());
    return sums;
  }

  Index value_sums() const { return call_.value.wanted() ? tiling_.value_dim / sums_columns : 0; }
  Index key_sums() const { return call_.key.wanted() ? tiling_.query_dim / sums_columns : 0; }

  /// The share of a step of all sums that wait, where so many steps of the block and of the tile are left.
  void add_due(Course& course, Index steps_of_block, Index steps_of_tile) const {
    const Sums& sums = course.sums;
    const QuerySums& query_sums = course.query_sums;
    const auto share = [](Index left, Index size, Index steps) { return blocks_of(left * size, steps); };
    course.due += share(sums.count - sums.done, 2 * together * tiling_.lanes / tile_depth, steps_of_block);
    course.due += share(query_sums.count - query_sums.done, 2 * blocks_of(query_sums.keys, tile_depth), steps_of_tile);
    while (course.due > 0 && query_sums.done < query_sums.count) course.due -= add_query_sum(course);
    while (course.due > 0 && sums.done < sums.count) course.due -= add_sum(course);
    course.due = std::min(course.due, Index{0});
  }

  /// One of the block before, and how many tiles × depth it has.
  Index add_sum(Course& course) const {
    Sums& of = course.sums;
    const Index columns = value_sums() + key_sums(), i = of.done++ % columns;
    const typename Sums::Keys& keys = of.keys[(of.done - 1) / columns];
    const bool value = i < value_sums();
    const Index g = value ? i : i - value_sums(), dim = value ? f_.value_dim : f_.head_dim;
    const TileProduct product{(value ? of.rows->p : of.rows->ds) + Block::at(keys.first, keys.step * tile_depth),
                              tile_size,
                              (value ? at_.d_out_depth : at_.q_depth) + g * depth_group() +
                                  std::ptrdiff_t{of.query / tile_depth + keys.step} * 2 * tile_words,
                              sums_at(value ? at_.dv : at_.dk, g, of.key + keys.first),
                              blocks_of(keys.count, tile_side),
                              keys.steps,
                              true,
                              query_step,
                              tile_depth,
                              keys.count};
    add(course, kernels_.sums, product, keys.count, std::min(sums_columns, dim - g * sums_columns), keys.queries);
    return product.tiles * product.steps;
  }
  void add_sums(Course& course) const {
    while (course.sums.done < course.sums.count) add_sum(course);
  }

  /// The same of dQ.
  Index add_query_sum(Course& course) const {
    QuerySums& of = course.query_sums;
    const Index d = of.done++ * sums_columns, columns = std::min(sums_columns, f_.head_dim - d);
    const TileProduct product{transposed_at(of.key) + d / tile_side * transposed_stride,
                              transposed_stride,
                              of.ds_tiles,
                              dq_of(of.tile) + std::ptrdiff_t{d} * tiling_.lanes,
                              blocks_of(columns, tile_side),
                              blocks_of(of.keys, tile_depth),
                              true};
    add(course, kernels_.query_sums, product, columns, pairs_.queries(of.tile).count, of.keys);
    return product.tiles * product.steps;
  }
  void add_query_sums(Course& course) const {
    while (course.query_sums.done < course.query_sums.count) add_query_sum(course);
  }

  /// All that waits.
  void finish(Course& course) const {
    add_query_sums(course);
    add_sums(course);
    course.waiting.run();
  }

  /// Pairs of 32 keys from k on and queries [from, to) of the block weigh nothing.
  void clear(Index k, Index from, Index to, const BackwardScratch::Rows& rows) const {
    for (Index q = from; q < to;) {
      const Index next = std::min(to, (q / tile_depth + 1) * tile_depth);
      for (Index i = k; i < k + tile_depth; ++i) {
        const std::ptrdiff_t at = Block::at(i, q);
        std::fill_n(rows.p + at, next - q, bfloat16{});
        std::fill_n(rows.ds + at, next - q, bfloat16{});
      }
      q = next;
    }
  }

  /// The products S and dP of the step after those that have begun.
  void start(const Step& step, Course& course) const {
    const Index lanes = tiling_.lanes;
    const auto product = [&](const bfloat16* rows, Index width, const std::uint32_t* columns, Index dim, float* to) {
      if (width == 0) {
        std::fill_n(to, std::ptrdiff_t{tile_depth} * lanes, 0.f);
        return;
      }
      add(course, kernels_.product,
          {rows + std::ptrdiff_t{step.keys.begin} * width, std::ptrdiff_t{tile_side} * width,
           columns + std::ptrdiff_t{step.tile} * lanes * (width / 2), to, tile_depth / tile_side, width / tile_depth,
           false, tile_depth, width},
          step.keys.end - step.keys.begin, pairs_.queries(step.tile).count, dim);
    };
    const BackwardScratch::Step& to = course.scratch.steps[course.steps++ % 2];
    product(at_.k, tiling_.query_dim, at_.q_lanes, f_.head_dim, to.s);
    if (pairs_.wants_ds()) product(at_.v, tiling_.value_dim, at_.d_out_lanes, f_.value_dim, to.ds);
  }

  /// P and dS of a step, and what its tile adds to dQ if it is the last.
  void one_step(const Step& step, const Block& in, const BackwardScratch::Rows& rows, Course& course,
                const BackwardScratch::Step& scratch) const {
    const Index lanes = tiling_.lanes, t = step.tile, begin = step.keys.begin, seen = step.keys.end - begin;
    const simd::TileQueries of = pairs_.queries(t);
    pairs_.logits({t, 0, lanes, step.keys, 0}, scratch.s, tile_depth, course.scratch.pairs);
    // A lane without a query weighs nothing, whatever the key it meets.
    for (Index i = 0; of.count < lanes && i < seen; ++i)
      std::fill(scratch.s + std::ptrdiff_t{i} * lanes + of.count, scratch.s + std::ptrdiff_t{i + 1} * lanes, hidden);
    if (in.guarded) note_visible(scratch.s, seen, course.scratch.visible, begin - in.key, step.before);
    const bool alone = pairs_.weighs_alone();
    if (begin == step.first) {
      ++course.tiles;
      if (alone) kernels_.prepare_lanes(pairs_.states(t), lanes, pairs_.slope(), course.scratch.lanes);
    }
    std::uint32_t* const ds_tiles = course.scratch.ds_tiles[course.tiles % 2];
    const auto tile_of = [&](Index key) {
      return ds_tiles + (key - step.first) / tile_depth * (lanes / tile_side) * tile_words;
    };
    const std::ptrdiff_t row = std::ptrdiff_t{begin - in.key} * tile_depth;
    const PairOperands to{rows.p + row, rows.ds + row, query_step, step.before, tile_of(begin)};
    const std::ptrdiff_t tail = std::ptrdiff_t{seen} * lanes, size = std::ptrdiff_t{tile_depth} * lanes;
    if (alone) {
      std::fill(scratch.s + tail, scratch.s + size, hidden);
      course.waiting.run_among(
          kernels_, {scratch.s, scratch.ds, lanes, course.scratch.lanes, pairs_.states(t).delta, pairs_.slope(), to});
    } else {
      course.waiting.run();
      pairs_.weigh({t, 0, lanes, step.keys, 0}, scratch.s, scratch.ds, course.scratch.pairs);
      kernels_.product.stay_awake();
      std::fill(scratch.s + tail, scratch.s + size, 0.f);
      std::fill(scratch.ds + tail, scratch.ds + size, 0.f);
      kernels_.round({scratch.s, pairs_.wants_ds() ? scratch.ds : nullptr, lanes, to});
    }
    if (!call_.query.wanted()) return;
    for (Index key = begin + tile_depth; key < step.next; key += tile_depth)
      std::fill(tile_of(key), tile_of(key + tile_depth), 0u);
    if (step.left > 0) return;
    course.query_sums = {t, step.first, step.keys.end - step.first, ds_tiles, 0, tiling_.query_dim / sums_columns};
  }

  /// Which pairs of 32 keys from k on, of which the first `seen` have logits s, are visible.
  void note_visible(const float* s, Index seen, std::uint8_t* visible, Index k, Index before) const {
    const Index lanes = tiling_.lanes;
    for (Index j = 0; j < tile_depth; ++j)
      for (Index i = 0; i < lanes; ++i)
        visible[Block::at(k + j, before + i)] = j < seen && s[std::ptrdiff_t{j} * lanes + i] != hidden;
  }

  /// What the numbers that are not finite add to the sums of visible pairs.
  MHA_NO_INLINE void add_non_finite(const Block& in, const BackwardScratch::Rows& rows,
                                    const std::uint8_t* visible) const {
    const Index lanes = tiling_.lanes, row = in.tile * lanes;
    for (Index k = 0; k < in.end - in.key; ++k)
      for (Index i = 0; i < std::min(in.tiles * lanes, queries_ - row); ++i) {
        const std::ptrdiff_t at = Block::at(k, i);
        if (visible[at] == 0) continue;
        const auto p = static_cast<float>(rows.p[at]);
        const auto add = [&](const bfloat16* x, Index dim, float by, auto&& to) {
          for (Index d = 0; d < dim; ++d)
            if (!is_finite(x[d])) to(d) += by * static_cast<float>(x[d]);
        };
        const auto sums = [&](float* all) {
          return [this, all, key = in.key + k](Index d) -> float& {
            return sums_at(all, d / sums_columns, key)[d % sums_columns];
          };
        };
        if (call_.value.wanted())
          add(at_.d_out + std::ptrdiff_t{row + i} * tiling_.value_dim, f_.value_dim, p, sums(at_.dv));
        if (!pairs_.wants_ds()) continue;
        const auto ds = static_cast<float>(rows.ds[at]);
        if (call_.key.wanted()) add(at_.q + std::ptrdiff_t{row + i} * tiling_.query_dim, f_.head_dim, ds, sums(at_.dk));
        if (call_.query.wanted())
          add(key_row(at_.k, in.key + k), f_.head_dim, ds,
              [&](Index d) -> float& { return dq_of(in.tile + i / lanes)[std::ptrdiff_t{d} * lanes + i % lanes]; });
      }
  }

  const bool metered_ = UseCounters::instance().meters.load(std::memory_order_relaxed) != 0;
};

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
