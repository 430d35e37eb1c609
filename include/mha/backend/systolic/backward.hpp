// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../../cache/kv_source.hpp"
#include "../../core/workspace.hpp"
#include "../../policy/call_shape.hpp"
#include "../backward.hpp"
#include "../backward_plan.hpp"
#include "../simd/gradient_rows.hpp"
#include "../simd/pair_gradients.hpp"
#include "../simd/transpose.hpp"
#include "backward_kernels.hpp"
#include "backward_memory.hpp"
#include "backward_pieces.hpp"
#include "tile_rows.hpp"

namespace mha::inline MHA_NAMESPACE::detail::systolic {

using simd::AnyBackwardCall;

/// The backward pass of one query head of one sequence in steps, as BackwardHeads wants them.
///
/// Formula   S = K Qᵀ and dP = V dOᵀ on the array, P and dS from them as in simd::PairGradients, rounded to bfloat16;
///           dQᵀ += Kᵀ dS,  dV += P dO,  dK += dS Q on the array
/// Numerics  P has the weights of forward; dO of D is rounded as that of dP is. Where an operand of a sum over pairs is
///           NaN or infinite, the array has 0 for it, and what it adds to visible pairs is added by itself
/// Source    Dao et al. 2022 (FlashAttention), algorithm 4
template <class T> class HeadBackward : public BackwardPieces<simd::BackwardHead<T, BackwardTiling>> {
  using Base = BackwardPieces<simd::BackwardHead<T, BackwardTiling>>;
  using Base::call_, Base::f_, Base::tiling_, Base::pairs_, Base::b_, Base::h_, Base::queries_, Base::keys_,
      Base::tiles_, Base::kernels_, Base::at_, Base::padded_queries_, Base::padded_keys_, Base::depth_group,
      Base::key_row, Base::dq_of, Base::sums_at, Base::transposed_at, Base::transposed_stride;

 public:
  HeadBackward(const AnyBackwardCall<T>& call, const BackwardKernels& kernels, const BackwardTiling& tiling,
               const BackwardMemory& memory, Index b, Index h)
      : Base(call, kernels, tiling, memory, b, h) {}

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
        simd::put_rows(level(), call_.query, rows[0], sums_columns, std::min<Index>(16, count - i),
                       call_.query_row(b_, first + i, h_), d, n, 1.f);
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
        simd::put_rows(level(), to, sums_at(from, d / sums_columns, first), sums_columns, end - first,
                       call_.key_row(to, b_, first, f_.kv_head(h_)), d, std::min(sums_columns, dim - d), scale);
    };
    store(call_.key, at_.dk, f_.head_dim, f_.scale);
    store(call_.value, at_.dv, f_.value_dim, 1.f);
  }

 private:
  IsaLevel level() const { return kernels_.level; }

  /// The A tiles of the 64 keys from k on.
  void transpose_keys(Index k) const {
    bool non_finite = false;
    for (Index step = 0; step < key_block / tile_depth; ++step)
      kernels_.pack_transposed(key_row(at_.k, k + step * tile_depth), tiling_.query_dim, tiling_.query_dim / tile_side,
                               transposed_at(k) + step * tile_size, transposed_stride, &non_finite);
    at_.finite[tiles_ + k / key_block] = !non_finite;
    if (!non_finite) return;
    for (Index d = 0; d < tiling_.query_dim; d += tile_side) {
      bfloat16* const tiles = transposed_at(k) + d / tile_side * transposed_stride;
      for (Index i = 0; i < key_block / tile_depth * tile_size; ++i)
        if (!is_finite(tiles[i])) tiles[i] = bfloat16{};
    }
  }
};

/// The kernels of a call and the sizes of its parts, as BackwardHeads wants them.
template <class T> class BackwardMachine {
 public:
  using Scalar = T;
  using Memory = BackwardMemory;
  using Scratch = BackwardScratch;

  BackwardMachine(const AnyBackwardCall<T>& call, const BackwardKernels& kernels)
      : call_(call),
        kernels_(kernels),
        tiling_(kernels.product.lanes, call.call.forward.head_dim, call.call.forward.value_dim) {}

  const auto& call() const { return call_.call; }
  int score_tables() const { return call_.score_gradient.tables(); }
  const BackwardTiling& tiling() const { return tiling_; }
  Memory memory(Workspace::Frame& frame) const {
    const CallShape& shape = call_.call.forward.shape;
    return Memory(frame, tiling_, shape.queries, shape.keys, call_.log_sum_exp_apart(),
                  call_.score_gradient.padded_slots());
  }
  Scratch scratch(Workspace::Frame& frame) const {
    const auto& score = call_.score_gradient;
    return Scratch(frame, tiling_.lanes, call_.log_sum_exp_apart(), score.evaluates(), score.tables());
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
///             out is 16 bits wide its rounding, w |d_out| |out| 2⁻⁸ in dS. ∂t/∂s of a score multiplies B.
///           Tests hold it to that
/// Bits      a dQ row depends on its query and what that sees, a dK or dV row on its key and all queries of its
///           sequence and head group, and all on the unit; none on threads
template <class T, class Threads>
void attend_backward(const AnyBackwardCall<T>& call, const BackwardKernels& kernels, Workspace& workspace,
                     const Threads& threads) {
  run_heads(BackwardMachine<T>(call, kernels), workspace, threads);
}

}  // namespace mha::inline MHA_NAMESPACE::detail::systolic
