// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "../../core/workspace.hpp"
#include "../backward.hpp"
#include "../simd/backward_plan.hpp"
#include "../simd/gradient_rows.hpp"
#include "../simd/pair_gradients.hpp"
#include "../simd/transpose.hpp"
#include "backward_kernels.hpp"
#include "backward_memory.hpp"
#include "tile_rows.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

using simd::AnyBackwardCall;

/// The backward pass of one query head of one sequence in steps, as simd::BackwardHeads wants them.
///
/// Formula   S = K Qᵀ and dP = V dOᵀ on the array, P and dS from them as in simd::PairGradients, rounded to bfloat16;
///           dQᵀ += Kᵀ dS,  dV += P dO,  dK += dS Q on the array
/// Numerics  P has the weights of forward; dO of D is rounded as that of dP is. Where an operand of a sum over pairs is
///           NaN or infinite, the array has 0 for it, and what it adds to visible pairs is added by itself
/// Source    Dao et al. 2022 (FlashAttention), algorithm 4
template <class T> class HeadBackward : public simd::BackwardHead<T, BackwardTiling> {
  using Base = simd::BackwardHead<T, BackwardTiling>;
  using Base::call_, Base::f_, Base::tiling_, Base::pairs_, Base::b_, Base::h_, Base::queries_, Base::keys_,
      Base::tiles_;
  static constexpr Index together = BackwardTiling::together;
  static constexpr float hidden = -std::numeric_limits<float>::infinity();

 public:
  HeadBackward(const AnyBackwardCall<T>& call, const BackwardKernels& kernels, const BackwardTiling& tiling,
               const BackwardMemory& memory, Index b, Index h)
      : Base(call, kernels.pairs, tiling, memory.rows, b, h),
        kernels_(kernels),
        at_(memory),
        padded_queries_(tiling.padded_queries(queries_)),
        padded_keys_(BackwardTiling::padded_keys(keys_)) {}

  /// The operands of tile t.
  void prepare_queries(Index t) const {
    const Index lanes = tiling_.lanes, first = t * lanes, count = std::min(lanes, queries_ - first);
    // The last tile has the rows of the last step too.
    const Index rows = t + 1 == tiles_ ? padded_queries_ - first : lanes;
    bool finite[2];
    const auto operand = [&](const T* from, const TensorView<const T, 4>& of, Index dim, Index padded, bfloat16* to,
                             std::uint32_t* to_lanes, std::uint32_t* to_depth, bool* all_finite) {
      bfloat16* const at = to + std::ptrdiff_t{first} * padded;
      round_rows<T>(level(), {from, of.stride[1], of.stride[3], count, dim}, at, padded, tile_depth);
      std::fill_n(at + std::ptrdiff_t{count} * padded, std::ptrdiff_t{rows - count} * padded, bfloat16{});
      kernels_.finite(at, std::ptrdiff_t{rows} * padded, all_finite);
      std::uint32_t* const columns = to_lanes + std::ptrdiff_t{first} * (padded / 2);
      for (Index step = 0; step < padded / tile_depth; ++step)
        kernels_.pack_columns(at + step * tile_depth, padded, lanes / tile_side, 1,
                              columns + step * (lanes / tile_side) * tile_words);
      kernels_.pack_depth(at, padded, first, rows / 2, padded / tile_depth, to_depth, depth_group());
    };
    operand(f_.query(b_, first, h_), f_.q, f_.head_dim, tiling_.query_dim, at_.q, at_.q_lanes, at_.q_depth, &finite[0]);
    operand(call_.row(call_.d_out, b_, first, h_), call_.d_out, f_.value_dim, tiling_.value_dim, at_.d_out,
            at_.d_out_lanes, at_.d_out_depth, &finite[1]);
    at_.finite[t] = finite[0] && finite[1];
    pairs_.prepare(t, count, at_.d_out + std::ptrdiff_t{first} * tiling_.value_dim, tiling_.value_dim);
    std::fill_n(dq_of(t), std::ptrdiff_t{lanes} * tiling_.query_dim, 0.f);
  }

  /// The operands of piece m of the keys.
  void prepare_keys(Index m) const {
    const Index begin = m * BackwardTiling::key_piece, end = std::min(keys_, begin + BackwardTiling::key_piece);
    const Index rows = round_up(end, key_block) - begin;
    const auto fill = [&](bfloat16* to, Index padded, Index from) {
      std::fill_n(to + std::ptrdiff_t{from} * padded, std::ptrdiff_t{begin + rows - from} * padded, bfloat16{});
    };
    for (Index key = begin; key < end;) {
      const KvRun<T> run = f_.kv.run(b_, f_.kv_head(h_), key, end);
      round_rows<T>(level(), {run.key, run.key_stride, 1, run.count, f_.head_dim}, key_row(at_.k, key),
                    tiling_.query_dim, tile_depth);
      round_rows<T>(level(), {run.value, run.value_stride, 1, run.count, f_.value_dim},
                    at_.v + std::ptrdiff_t{key} * tiling_.value_dim, tiling_.value_dim, tile_depth);
      key += run.count;
    }
    fill(at_.k, tiling_.query_dim, end);
    fill(at_.v, tiling_.value_dim, end);
    for (Index k = begin; k < begin + rows; k += key_block) transpose_keys(k);
    const auto clear = [&](float* sums, Index padded) {
      for (Index g = 0; g < padded / sums_columns; ++g)
        std::fill_n(sums_at(sums, g, begin), std::ptrdiff_t{rows} * sums_columns, 0.f);
    };
    clear(at_.dk, tiling_.query_dim);
    clear(at_.dv, tiling_.value_dim);
  }

  /// Piece n of the queries against piece m of the keys.
  void piece(Index n, Index m, const BackwardScratch& scratch) const {
    const UnitScope unit(kernels_.product.unit);
    const Index tiles_end = std::min(tiles_, (n + 1) * BackwardTiling::query_piece);
    const Index keys_end = std::min(keys_, (m + 1) * BackwardTiling::key_piece);
    for (Index t = n * BackwardTiling::query_piece; t < tiles_end; t += together)
      for (Index k = m * BackwardTiling::key_piece; k < keys_end; k += key_block)
        some_tiles(t, std::min(together, tiles_end - t), k, std::min(key_block, keys_end - k), scratch);
  }

  /// dQ of tile t into its destination.
  void store_queries(Index t) const {
    if (!call_.query.wanted()) return;
    const Index lanes = tiling_.lanes, first = t * lanes, count = std::min(lanes, queries_ - first);
    float rows[std::size_t{16}][std::size_t{sums_columns}], scale[16];
    std::fill_n(scale, 16, f_.scale);
    const float* const from = dq_of(t);
    for (Index i = 0; i < count; i += 16)
      for (Index d = 0; d < f_.head_dim; d += sums_columns) {
        const Index n = std::min(sums_columns, f_.head_dim - d);
        simd::with_isa(level(), [&](auto isa) {
          using Isa = decltype(isa);
          constexpr Index W = simd::Vector<float, Isa>::width;
          for (Index j = 0; j < 16; j += W)
            Isa::template run<simd::UnpackBody<float, float>, const float*, std::ptrdiff_t, const float*, Index, float*,
                              std::ptrdiff_t>(from + std::ptrdiff_t{d} * lanes + i + j, lanes, scale, n, rows[j],
                                              sums_columns);
          return 0;
        });
        simd::put_rows(level(), call_.query, rows[0], sums_columns, std::min<Index>(16, count - i), d, n, 1.f,
                       [&](Index j) { return call_.query_row(b_, first + i + j, h_); });
      }
  }

  /// The sums over piece m of the keys += those of another head that reads them.
  void add_keys(Index m, const BackwardMemory& other) const {
    const Index first = m * BackwardTiling::key_piece, n = std::min(padded_keys_ - first, BackwardTiling::key_piece);
    const auto add = [&](float* to, const float* from, Index padded) {
      for (Index g = 0; g < padded / sums_columns; ++g)
        kernels_.pairs.add_rows(from + (sums_at(to, g, first) - to), std::ptrdiff_t{n} * sums_columns,
                                sums_at(to, g, first));
    };
    add(at_.dk, other.dk, tiling_.query_dim);
    add(at_.dv, other.dv, tiling_.value_dim);
  }

  /// dK and dV of piece m of the keys into their destinations.
  void store_keys(Index m) const {
    const Index first = m * BackwardTiling::key_piece, end = std::min(keys_, first + BackwardTiling::key_piece);
    const auto store = [&](const GradientTo<T>& to, float* from, Index dim, float scale) {
      for (Index d = 0; to.wanted() && d < dim; d += sums_columns)
        simd::put_rows(level(), to, sums_at(from, d / sums_columns, first), sums_columns, end - first, d,
                       std::min(sums_columns, dim - d), scale,
                       [&](Index i) { return call_.key_row(to, b_, first + i, f_.kv_head(h_)); });
    };
    store(call_.key, at_.dk, f_.head_dim, f_.scale);
    store(call_.value, at_.dv, f_.value_dim, 1.f);
  }

 private:
  IsaLevel level() const { return kernels_.level; }
  std::ptrdiff_t depth_group() const { return std::ptrdiff_t{padded_queries_} * tile_side; }
  bfloat16* key_row(bfloat16* rows, Index k) const { return rows + std::ptrdiff_t{k} * tiling_.query_dim; }
  float* dq_of(Index t) const { return at_.dq + std::ptrdiff_t{t} * tiling_.lanes * tiling_.query_dim; }
  /// Row k of columns [32 g, 32 g + 32) of dK or dV.
  float* sums_at(float* sums, Index g, Index k) const {
    return sums + (std::ptrdiff_t{g} * padded_keys_ + k) * sums_columns;
  }
  bfloat16* transposed_at(Index k) const { return key_row(at_.k_transposed, k); }
  static constexpr std::ptrdiff_t transposed_stride = key_block / tile_depth * std::ptrdiff_t{tile_size};

  /// The A tiles of the 64 keys from k on.
  void transpose_keys(Index k) const {
    bool non_finite = false;
    for (Index step = 0; step < key_block / tile_depth; ++step)
      kernels_.pack_transposed(key_row(at_.k, k + step * tile_depth), tiling_.query_dim, tiling_.query_dim / tile_side,
                               transposed_at(k) + step * tile_size, transposed_stride, &non_finite);
    at_.finite[tiles_ + k / key_block] = !non_finite;
    if (!non_finite) return;
    bfloat16* const tiles = transposed_at(k);
    for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{key_block} * tiling_.query_dim; ++i)
      if (!is_finite(tiles[i])) tiles[i] = bfloat16{};
  }

  /// What some tiles and a block of n keys from k on have in common.
  struct Block {
    Index k, n, first;  ///< `first` tile
    bool guarded;
    const BackwardScratch* scratch;
    Index key_begin, key_end;  ///< of the block, seen by some tile, the end a multiple of 32

    std::ptrdiff_t stride(Index lanes) const { return std::ptrdiff_t{together} * lanes; }
  };

  /// A product of which (m, k) · (k, n) are of the call.
  void multiply(const ProductUnit& unit, const TileProduct& product, Index m, Index n, Index k) const {
    unit.multiply(product);
    if (metered_) count_use(kernels_.use(m, n, k));
  }

  /// Tiles [t, t + count) against keys [k, k + n).
  void some_tiles(Index t, Index count, Index k, Index n, const BackwardScratch& scratch) const {
    const Index lanes = tiling_.lanes;
    simd::KeyRange seen[std::size_t{together}];
    Block in{k, n, t, !at_.finite[tiles_ + k / key_block], &scratch, key_block, 0};
    Index first = count, last = 0, end = k;  // tiles and keys that see anything
    for (Index g = 0; g < count; ++g) {
      in.guarded = in.guarded || !at_.finite[t + g];
      seen[g] = f_.mask.visible(pairs_.queries(t + g), k, k + n, tile_depth);
      if (seen[g].seen == TileVisibility::none) {
        seen[g].end = seen[g].begin;
        continue;
      }
      first = std::min(first, g);
      last = g + 1;
      end = std::max(end, seen[g].end);
      in.key_begin = std::min(in.key_begin, seen[g].begin - k);
      in.key_end = std::max(in.key_end, round_up(seen[g].end - k, tile_depth));
    }
    if (first >= last) return;
    const Index from = first * lanes / tile_depth * tile_depth, to = round_up(last * lanes, tile_depth);
    clear(in.key_begin, in.key_end, from, first * lanes, in);
    clear(in.key_begin, in.key_end, last * lanes, to, in);
    for (Index g = first; g < last; ++g) one_tile(t + g, g * lanes, seen[g], in);
    const auto sum = [&](const GradientTo<T>& wanted, const bfloat16* rows, const std::uint32_t* x, Index dim,
                         float* sums) {
      const Index step = (t * lanes + from) / tile_depth, height = end - k - in.key_begin;
      for (Index d = 0; wanted.wanted() && d < dim; d += sums_columns) {
        const Index g = d / sums_columns;
        multiply(kernels_.sums,
                 {rows + in.key_begin * in.stride(lanes) + from, tile_side * in.stride(lanes),
                  x + g * depth_group() + std::ptrdiff_t{step} * 2 * tile_words, sums_at(sums, g, k + in.key_begin),
                  blocks_of(height, tile_side), (to - from) / tile_depth, true, tile_depth, in.stride(lanes), height},
                 height, std::min(sums_columns, dim - d),
                 std::min((last - first) * lanes, queries_ - (t + first) * lanes));
      }
    };
    sum(call_.value, scratch.p_rows, at_.d_out_depth, f_.value_dim, at_.dv);
    sum(call_.key, scratch.ds_rows, at_.q_depth, f_.head_dim, at_.dk);
    if (in.guarded) add_non_finite(in, first, last, end);
  }

  /// Pairs of keys [begin, end) of the block and columns [from, to) weigh nothing.
  void clear(Index begin, Index end, Index from, Index to, const Block& in) const {
    const BackwardScratch& scratch = *in.scratch;
    if (from >= to) return;
    for (Index k = begin; k < end; ++k) {
      const std::ptrdiff_t at = k * in.stride(tiling_.lanes);
      std::fill(scratch.p_rows + at + from, scratch.p_rows + at + to, bfloat16{});
      std::fill(scratch.ds_rows + at + from, scratch.ds_rows + at + to, bfloat16{});
      if (in.guarded) std::fill(scratch.visible + at + from, scratch.visible + at + to, std::uint8_t{0});
    }
  }

  /// P and dS of tile t, whose queries are `before` queries after the first of the block, and what they add to dQ.
  void one_tile(Index t, Index before, const simd::KeyRange& keys, const Block& in) const {
    const BackwardScratch& scratch = *in.scratch;
    const ProductUnit& unit = kernels_.product;
    const Index lanes = tiling_.lanes, begin = keys.begin - in.k, seen = keys.end - keys.begin,
                n = round_up(keys.end - in.k, tile_depth) - begin;
    const simd::TileQueries of = pairs_.queries(t);
    clear(in.key_begin, std::max(in.key_begin, seen > 0 ? begin : in.key_end), before, before + lanes, in);
    if (seen <= 0) return;
    clear(begin + n, in.key_end, before, before + lanes, in);

    const auto product = [&](const bfloat16* rows, Index width, const std::uint32_t* columns, Index dim, float* to) {
      if (width == 0) {
        std::fill_n(to, std::ptrdiff_t{n} * lanes, 0.f);
        return;
      }
      multiply(unit,
               {rows + std::ptrdiff_t{keys.begin} * width, std::ptrdiff_t{tile_side} * width,
                columns + std::ptrdiff_t{t} * lanes * (width / 2), to, n / tile_side, width / tile_depth, false,
                tile_depth, width},
               seen, of.count, dim);
    };
    product(at_.k, tiling_.query_dim, at_.q_lanes, f_.head_dim, scratch.s);
    const typename simd::PairGradients<T>::Pairs pairs{t, 0, lanes, keys, 0};
    pairs_.logits(pairs, scratch.s, tile_depth, scratch.pairs);
    // A lane without a query weighs nothing, whatever the key it meets.
    for (Index i = 0; of.count < lanes && i < seen; ++i)
      std::fill(scratch.s + std::ptrdiff_t{i} * lanes + of.count, scratch.s + std::ptrdiff_t{i + 1} * lanes, hidden);
    const std::ptrdiff_t at = begin * in.stride(lanes) + before;
    if (in.guarded) note_visible(n, seen, in, at);
    unit.stay_awake();
    if (pairs_.wants_ds()) product(at_.v, tiling_.value_dim, at_.d_out_lanes, f_.value_dim, scratch.ds);
    pairs_.weigh(pairs, scratch.s, scratch.ds, scratch.pairs);
    unit.stay_awake();
    const std::ptrdiff_t tail = std::ptrdiff_t{seen} * lanes, size = std::ptrdiff_t{n} * lanes;
    std::fill(scratch.s + tail, scratch.s + size, 0.f);
    std::fill(scratch.ds + tail, scratch.ds + size, 0.f);
    kernels_.round({scratch.s, pairs_.wants_ds() ? scratch.ds : nullptr, n, lanes, scratch.p_rows + at,
                    scratch.ds_rows + at, in.stride(lanes), scratch.ds_tiles});
    if (call_.query.wanted())
      multiply(unit,
               {transposed_at(in.k) + begin / tile_depth * tile_size, transposed_stride, scratch.ds_tiles, dq_of(t),
                blocks_of(f_.head_dim, tile_side), n / tile_depth, true},
               f_.head_dim, of.count, seen);
  }

  /// Which pairs of n keys, of which the first `seen` have logits, are visible.
  void note_visible(Index n, Index seen, const Block& in, std::ptrdiff_t at) const {
    const Index lanes = tiling_.lanes;
    for (Index k = 0; k < n; ++k)
      for (Index i = 0; i < lanes; ++i)
        in.scratch->visible[at + k * in.stride(lanes) + i] =
            k < seen && in.scratch->s[std::ptrdiff_t{k} * lanes + i] != hidden;
  }

  /// What the numbers that are not finite add to the sums of visible pairs, of keys before `end` and tiles [first,
  /// last) of the block.
  MHA_NO_INLINE void add_non_finite(const Block& in, Index first, Index last, Index end) const {
    const Index lanes = tiling_.lanes, row = in.first * lanes;
    for (Index k = in.key_begin; k < end - in.k; ++k)
      for (Index i = first * lanes; i < std::min(last * lanes, queries_ - row); ++i) {
        const std::ptrdiff_t at = k * in.stride(lanes) + i;
        if (in.scratch->visible[at] == 0) continue;
        const auto p = static_cast<float>(in.scratch->p_rows[at]);
        const auto add = [&](const bfloat16* x, Index dim, float by, auto&& to) {
          for (Index d = 0; d < dim; ++d)
            if (!is_finite(x[d])) to(d) += by * static_cast<float>(x[d]);
        };
        const auto sums = [&](float* all) {
          return [this, all, key = in.k + k](Index d) -> float& {
            return sums_at(all, d / sums_columns, key)[d % sums_columns];
          };
        };
        if (call_.value.wanted())
          add(at_.d_out + std::ptrdiff_t{row + i} * tiling_.value_dim, f_.value_dim, p, sums(at_.dv));
        if (!pairs_.wants_ds()) continue;
        const auto ds = static_cast<float>(in.scratch->ds_rows[at]);
        if (call_.key.wanted()) add(at_.q + std::ptrdiff_t{row + i} * tiling_.query_dim, f_.head_dim, ds, sums(at_.dk));
        if (call_.query.wanted())
          add(key_row(at_.k, in.k + k), f_.head_dim, ds,
              [&](Index d) -> float& { return dq_of(in.first + i / lanes)[std::ptrdiff_t{d} * lanes + i % lanes]; });
      }
  }

  const BackwardKernels& kernels_;
  const BackwardMemory& at_;
  const Index padded_queries_, padded_keys_;
  const bool metered_ = UseCounters::instance().meters.load(std::memory_order_relaxed) != 0;
};

/// The kernels of a call and the sizes of its parts, as simd::BackwardHeads wants them.
template <class T> class BackwardMachine {
 public:
  using Scalar = T;
  using Memory = BackwardMemory;
  using Scratch = BackwardScratch;

  BackwardMachine(const AnyBackwardCall<T>& call, const BackwardKernels& kernels)
      : call_(call),
        kernels_(kernels),
        tiling_(kernels.product.lanes, call.call.forward.head_dim, call.call.forward.value_dim) {}

  const AnyBackwardCall<T>& call() const { return call_; }
  const BackwardTiling& tiling() const { return tiling_; }
  Memory memory(Workspace::Frame& frame) const {
    const CallShape& shape = call_.call.forward.shape;
    return Memory(frame, tiling_, shape.queries, shape.keys, call_.log_sum_exp_apart(),
                  call_.score_gradient.padded_slots());
  }
  HeadBackward<T> head(const Memory& memory, Index b, Index h) const {
    return {call_, kernels_, tiling_, memory, b, h};
  }

 private:
  const AnyBackwardCall<T>& call_;
  const BackwardKernels& kernels_;
  const BackwardTiling tiling_;
};

/// The backward pass of a whole call: five products on the array, all between them in float.
///
/// Numerics  against the exact backward pass over the rounded q, k, v and d_out, with w the exact weights, twice the
///           error of one of forward's weights (attend.hpp) δ = 2ε / (1 − ε), dP = d_out · v and D = Σ w dP:
///             P is within δ w of w, so that |dV error| ≤ Σ_i ((1 + δ)(1 + u) − 1) w |d_out|,  u = 2⁻⁸;
///             D̂ = d_out · out is of the same weights, which add up to 1: |D̂ − D| ≤ δ Σ w |dP − D|, so that
///             |dS error| ≤ B = δ w (|dP − D| + (1 + δ) Σ w |dP − D|), and rounded (1 + u) B + u |dS|;
///             dQ and dK have Σ |k| or |q| times that. Beside them stand (Lk + Lq + Dv) · 2⁻²³ of float sums, and where
///             out is 16 bits wide its rounding, w |d_out| |out| 2⁻⁹ in dS. ∂t/∂s of a score multiplies B.
///           Tests hold it to that
/// Bits      a dQ row depends on its query and what that sees, a dK or dV row on its key and all queries of its
///           sequence and head group, and all on the unit; none on threads
template <class T, class Threads>
void attend_backward(const AnyBackwardCall<T>& call, const BackwardKernels& kernels, Workspace& workspace,
                     const Threads& threads) {
  simd::attend_backward(BackwardMachine<T>(call, kernels), workspace, threads);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
