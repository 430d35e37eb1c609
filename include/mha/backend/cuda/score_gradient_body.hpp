// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../core/dual.hpp"
#include "../../core/scalar.hpp"
#include "../../policy/score_gradient.hpp"
#include "fma_body.hpp"
#include "gradient_params.hpp"

/// The gradients of a score's own numbers: of a bias, of numbers that all pairs of a head share, of a table by
/// distance, of numbers that a score's accumulate() adds to.
///
/// Each kernel computes q kᵀ and d_out vᵀ of its tiles of pairs once more, on multiply-adds in every scalar. A sum is
/// shared by as many blocks as the call's sizes say; each writes its part, and part_sum_body adds them in order: no
/// atomics, the same bits on every device.
namespace mha::inline MHA_NAMESPACE::cuda {

/// A tile of pairs: 64 queries of a head, four warps of 16, and the keys of a WarpTile. In shared memory two stages of
/// a slice of both sides, and what the threads tell each other of the pairs; of a score that accumulates a number more.
template <class A> struct PairShape {
  using Block = FmaShape<A, 64>;
  using Tile = typename Block::Tile;
  static constexpr int warps = Block::warps, threads = Block::threads, rows = Block::rows, keys = Block::keys;
  static constexpr int blocks_per_multiprocessor = 2;
  static constexpr int depth = Block::depth, slice_packs = Block::slice_packs;
  static constexpr Shared pitch = Block::pitch, k_slice = Block::k_slice, stage = k_slice + Block::q_slice;
  static constexpr Shared patch_pitch = (keys + 8) * int{sizeof(A)};  // rows of a warp in different banks
  static constexpr Shared patch = rows * patch_pitch, scratch = warps * keys * int{sizeof(LongSum<A>)};
  static constexpr Shared bytes = 2 * stage + patch + scratch, bytes_of_own = bytes + patch;
};

/// Which numbers of a score are variables, as lifted() counts them.
template <class Wanted, int Count, int FirstSlot, int FirstTable, int Own = -1> struct ScoreVariables {
  static constexpr int count = Count;
  static constexpr int own = Own;  ///< of the scores that accumulate the one whose result is variable 1; −1: none
  template <class Head> static constexpr int inputs = mha::detail::accumulating_count<Wanted, Head>;
  /// `to`: what each of those scores is asked.
  template <class A, class Head> MHA_KERNEL static auto lift(const Head& score, A* to) {
    return mha::detail::lifted<Wanted, Dual<A, 1 + Count>>(score, FirstSlot, FirstTable, Own < 0 ? 1 + Count : 1 - Own,
                                                           to);
  }
};
/// The bias; `Count` slots from `First` on; the table of this number.
using BiasVariable = ScoreVariables<mha::detail::WantedScoreGradients<true, false>, 1, 2, 1>;
template <class Wanted, int First, int Count>
using SlotVariables = ScoreVariables<mha::detail::OnlyParameters<Wanted>, Count, 1 - First, 1 + Count>;
template <class Wanted, int Table>
using TableVariable = ScoreVariables<mha::detail::OnlyParameters<Wanted>, 1, 2, 1 - Table>;
template <class Wanted, int Own>
using ResultVariable = ScoreVariables<mha::detail::OnlyParameters<Wanted>, 1, 2, 2, Own>;

/// What the kernels of a score's gradients get: a backward pass, and where the parts of the sums go.
template <class Call_> struct ScoreGradientParams : GradientParams<Call_> {
  using Call = Call_;
  using A = Accumulator<typename Call::Scalar>;

  /// (parts, …): of slots (B, Hq, count), of a table (B, Hq, count), of a bias as it, of a score that accumulates
  /// (owners, B, Hq, count)
  LongSum<A>* sums = nullptr;
  std::ptrdiff_t count = 0;  ///< slots of a score, distances of a table, numbers of a score that accumulates
  Index owners = 1;          ///< threads of a block that add, each to sums of its own
  Index least = 0;           ///< the first distance k − q
  Index tiles = 1;           ///< of the queries of the longest sequence

  A* bias = nullptr;              ///< the gradient of the bias, written if there is one part
  std::ptrdiff_t stride[4] = {};  ///< its strides
  Index extent[4] = {};           ///< and extents
  Index own[4] = {};              ///< tiles of it along (B, Hq, Lq, Lk), of 64 queries and PairShape::keys keys
  Index repeats[4] = {};          ///< tiles of pairs that one of it sums; along each axis own or repeats is 1
};

/// Tiles of pairs of a call, and the gradients of the variables in each.
template <class Machine, class Call, class Variables> class PairTiles {
 public:
  using A = Accumulator<typename Call::Scalar>;
  using Shape = PairShape<A>;
  using Tile = typename Shape::Tile;
  struct Gradients {
    A of[std::size_t{Variables::count}];
    A input;  ///< what a score that accumulates was asked
  };

  MHA_KERNEL PairTiles(Machine& m, const GradientParams<Call>& p) : m_(m), p_(p) {}

  /// Of this thread: rows row(0), row(0) + 4, … and keys key(0), key(0) + 8, … of a tile.
  MHA_KERNEL Index row(int i) const {
    return m_.thread() / warp_size * Tile::rows + Tile::group(m_) + i * Tile::groups;
  }
  MHA_KERNEL Index key(int j) const { return Tile::lane(m_) + j * Tile::lanes; }
  /// Where this tile's threads keep a number for a pair; the rows of a warp are its own until it syncs.
  MHA_KERNEL Shared patch() const { return m_.shared() + 2 * Shape::stage; }
  MHA_KERNEL Shared place(int i, int j) const {
    return patch() + row(i) * Shape::patch_pitch + key(j) * int{sizeof(A)};
  }
  MHA_KERNEL Shared scratch() const { return patch() + Shape::patch; }

  /// The tiles of keys that these queries of a head see.
  MHA_KERNEL auto tiles(Index b, Index h, Index q_tile) const {
    const Call& call = p_.call;
    const Index first = q_tile * Shape::rows, queries = call.queries(b);
    const Index end = first + Shape::rows < queries ? first + Shape::rows : queries;
    const auto seen = [&call, b, h, first, end](Index k, Index k_end) {
      return mha::tile(call.mask, b, h, call.position(b, first), call.position(b, end), k, k_end);
    };
    return KeyTiles<Shape::keys, decltype(seen)>(first < end ? call.keys(b) : 0, seen);
  }

  /// f(i, j, gradients) for each pair of this thread, 0 where it is hidden. Of all threads of the block.
  ///
  /// Formula   dθ = dt · ∂t/∂θ,  dt = p (f d_out · v − slope)
  template <class F> MHA_KERNEL void visit(Index b, Index h, Index q_tile, KeyTile tile, const F& f) {
    const Call& call = p_.call;
    const Index g = call.kv_head(h), q0 = q_tile * Shape::rows, k0 = tile.index * Shape::keys;
    const Index queries = call.queries(b), keys = call.keys(b);
    typename Tile::Logits s, d_weight;
    Tile::clear(s);
    Tile::clear(d_weight);
    const Index slices = (call.head_dim + Shape::depth - 1) / Shape::depth;
    const Index all = slices + (call.value_dim + Shape::depth - 1) / Shape::depth;
    const auto load = [&](Index slice) {
      const bool dots = slice < slices;
      const Shared to = m_.shared() + stage_ * Shape::stage;
      const Index column = (dots ? slice : slice - slices) * Shape::depth;
      const Index columns = dots ? call.head_dim : call.value_dim;
      stage_rows<A, Shape::slice_packs>(m_, m_.thread(), Shape::threads, Shape::keys, keys - k0, column, columns, 1,
                                        p_.aligned, rows_at(to, Shape::pitch), [&](Index r) {
                                          const auto run = call.kv.run(b, g, k0 + r, k0 + r + 1);
                                          return dots ? run.key : run.value;
                                        });
      stage_rows<A, Shape::slice_packs>(
          m_, m_.thread(), Shape::threads, Shape::rows, queries - q0, column, columns,
          dots ? call.q.stride[3] : p_.d_out.stride[3], p_.aligned, rows_at(to + Shape::k_slice, Shape::pitch),
          [&](Index r) { return dots ? call.query(b, q0 + r, h) : p_.row(p_.d_out, b, q0 + r, h); });
    };
    const auto dots = [&](typename Tile::Logits& to, Index begin, Index end) {
      for (Index slice = begin; slice < end; ++slice) {
        m_.template wait<0>();
        m_.sync();
        const Shared here = m_.shared() + stage_ * Shape::stage;
        stage_ ^= 1;
        if (slice + 1 < all) load(slice + 1);
        m_.commit();
        Tile::dots(m_, to, here + Shape::k_slice + m_.thread() / warp_size * Tile::rows * Shape::pitch, Shape::pitch,
                   here, Shape::pitch, Shape::slice_packs);
      }
    };
    if (all > 0) load(0);
    m_.commit();
    dots(s, 0, slices);
    dots(d_weight, slices, all);

    const bool drops = call.dropout.exist();
    if (drops) MHA_ROLL for (int at = 0; at < Tile::rows_per_lane * Tile::keys_per_lane; ++at) {
        const int i = at / Tile::keys_per_lane, j = at % Tile::keys_per_lane;
        m_.store(place(i, j), static_cast<A>(call.dropout_factor(b, h, q0 + row(i), k0 + key(j))));
      }
    const auto head = at_head(call.score, b, h);
    A inputs[std::size_t{Variables::template inputs<std::remove_cvref_t<decltype(head)>>} + 1];
    const auto score = Variables::template lift<A>(head, +inputs);
    using D = Dual<A, 1 + Variables::count>;
    MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) {
      const Index q = q0 + row(i), position = call.position(b, q);
      const RowFacts<A> facts = p_.rows[call.row_state(b, h, q < queries ? q : queries - 1)];
      MHA_UNROLL for (int j = 0; j < Tile::keys_per_lane; ++j) {
        const Index k = k0 + key(j);
        Gradients gradients{};
        if (q < queries && k < keys && facts.level != level_of_nothing<A>() &&
            (!tile.partial || call.mask(b, h, position, k))) {
          const D t = score(D::variable(A(call.scale * s.s[i][j])), b, h, position, k);
          if (t.value != minus_infinity<A>()) {
            const A weight = m_.exp2((t.value - facts.level) * log2e<A>()) * facts.inverse;
            const A factor = drops ? m_.template load<A>(place(i, j)) : A(1);
            const A d_t = weight * (d_weight.s[i][j] * factor - facts.slope);
            MHA_UNROLL for (int v = 0; v < Variables::count; ++v) gradients.of[v] =
                mha::detail::slope_times(d_t, t.derivative[1 + v]);
            if constexpr (Variables::own >= 0) gradients.input = inputs[Variables::own];
          }
        }
        f(i, j, gradients);
      }
    }
  }

 private:
  Machine& m_;
  const GradientParams<Call>& p_;
  int stage_ = 0;
};

/// The gradient of an AdditiveBias. A block has a tile of the table and, of the tiles of pairs that meet in it, every
/// parts-th one.
///
/// Numerics  a pair in A, the sum over axes that the bias repeats in LongSum<A>
/// Grid      parts · tiles of the table
template <class Machine, class Call> class BiasGradientBlock {
  using Pairs = PairTiles<Machine, Call, BiasVariable>;
  using A = typename Pairs::A;
  using Sum = LongSum<A>;
  using Shape = PairShape<A>;
  using Tile = typename Shape::Tile;
  using Params = ScoreGradientParams<Call>;

 public:
  MHA_KERNEL static void run(Machine& m, const Params& p) {
    const Index part = m.block().x % p.parts;
    Index place = m.block().x / p.parts, at[4];
    MHA_UNROLL for (int a = 3; a >= 0; --a) {
      at[a] = place % p.own[a];
      place /= p.own[a];
    }
    Sum sums[std::size_t{Tile::rows_per_lane}][std::size_t{Tile::keys_per_lane}];
    MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) MHA_UNROLL for (int j = 0; j < Tile::keys_per_lane; ++j)
        sums[i][j] = Sum(0);
    Pairs pairs(m, p);
    const std::int64_t summed = std::int64_t{p.repeats[0]} * p.repeats[1] * p.repeats[2] * p.repeats[3];
    for (std::int64_t i = part; i < summed; i += p.parts) {
      std::int64_t rest = i;
      Index of[4];
      MHA_UNROLL for (int a = 3; a >= 0; --a) {
        of[a] = at[a] + static_cast<Index>(rest % p.repeats[a]);
        rest /= p.repeats[a];
      }
      if (std::int64_t{of[2]} * Shape::rows >= p.call.queries(of[0])) continue;
      if (std::int64_t{of[3]} * Shape::keys >= p.call.keys(of[0])) continue;
      const TileVisibility seen = pairs.tiles(of[0], of[1], of[2]).of(of[3], of[3]);
      if (seen == TileVisibility::none) continue;
      pairs.visit(of[0], of[1], of[2], {of[3], seen == TileVisibility::partial},
                  [&](int r, int c, const typename Pairs::Gradients& g) { sums[r][c] += Sum(g.of[0]); });
    }
    store(m, p, pairs, part, at, sums);
  }

 private:
  template <class Sums>
  MHA_KERNEL static void store(Machine& m, const Params& p, const Pairs& pairs, Index part, const Index (&at)[4],
                               Sums& sums) {
    const Index q0 = at[2] * Shape::rows, k0 = at[3] * Shape::keys;
    const auto put = [&](Index q, Index k, Sum x) {
      if (q >= p.extent[2] || k >= p.extent[3]) return;
      if (p.parts == 1) {
        m.store_global(p.bias + (at[0] * p.stride[0] + at[1] * p.stride[1] + q * p.stride[2] + k * p.stride[3]),
                       static_cast<A>(x));
        return;
      }
      const std::ptrdiff_t table = std::ptrdiff_t{part} * p.extent[0] + at[0];
      m.store_global(p.sums + ((table * p.extent[1] + at[1]) * p.extent[2] + q) * p.extent[3] + k, x);
    };
    const bool one_row = p.extent[2] == 1, one_key = p.extent[3] == 1;
    if (one_key)  // a row's keys, in its first lane
      MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) {
        MHA_UNROLL for (int j = 1; j < Tile::keys_per_lane; ++j) sums[i][0] += sums[i][j];
        MHA_UNROLL for (int other = 1; other < Tile::lanes; other *= 2) sums[i][0] += m.shuffle_xor(sums[i][0], other);
      }
    if (!one_row) {
      MHA_UNROLL for (int i = 0; i < Tile::rows_per_lane; ++i) {
        if (!one_key)
          MHA_UNROLL for (int j = 0; j < Tile::keys_per_lane; ++j)
              put(q0 + pairs.row(i), k0 + pairs.key(j), sums[i][j]);
        else if (Tile::lane(m) == 0)
          put(q0 + pairs.row(i), 0, sums[i][0]);
      }
      return;
    }
    // A warp's rows, in its first group of lanes, and then those of the warps.
    MHA_UNROLL for (int j = 0; j < Tile::keys_per_lane; ++j) {
      MHA_UNROLL for (int i = 1; i < Tile::rows_per_lane; ++i) sums[0][j] += sums[i][j];
      MHA_UNROLL for (int other = Tile::lanes; other < warp_size; other *= 2) sums[0][j] +=
          m.shuffle_xor(sums[0][j], other);
      if (Tile::group(m) == 0)
        m.store(pairs.scratch() + (m.thread() / warp_size * Shape::keys + pairs.key(j)) * int{sizeof(Sum)}, sums[0][j]);
    }
    m.sync();
    for (Index k = m.thread(); k < (one_key ? 1 : Shape::keys); k += Shape::threads) {
      Sum all(0);
      MHA_UNROLL for (int w = 0; w < Shape::warps; ++w) all +=
          m.template load<Sum>(pairs.scratch() + (w * Shape::keys + k) * int{sizeof(Sum)});
      put(0, k0 + k, all);
    }
  }
};

/// What the blocks of a head's numbers share: every parts-th tile of its queries, and the keys that they see.
template <class Machine, class Pairs, class Params, class F>
MHA_KERNEL void for_each_tile(const Params& p, const Pairs& pairs, Index b, Index h, Index part, const F& f) {
  for (Index q_tile = part; q_tile < p.tiles; q_tile += p.parts) {
    const auto tiles = pairs.tiles(b, h, q_tile);
    for (KeyTile tile = tiles.first(); tile; tile = tiles.after(tile)) f(q_tile, tile);
  }
}

/// The gradients of `Count` slots from `First` on: numbers of a score that all pairs of a head share.
///
/// Numerics  in A within the pairs of a thread in a tile, in LongSum<A> above
/// Grid      parts · heads · batch
template <class Machine, class Wanted, int First, int Count, class Call> class SlotGradientBlock {
  using Pairs = PairTiles<Machine, Call, SlotVariables<Wanted, First, Count>>;
  using A = typename Pairs::A;
  using Sum = LongSum<A>;
  using Shape = PairShape<A>;

 public:
  MHA_KERNEL static void run(Machine& m, const ScoreGradientParams<Call>& p) {
    const Index part = m.block().x % p.parts, head = m.block().x / p.parts;
    const Index b = head / p.call.shape.heads, h = head % p.call.shape.heads;
    Sum sums[std::size_t{Count}];
    MHA_UNROLL for (int v = 0; v < Count; ++v) sums[v] = Sum(0);
    Pairs pairs(m, p);
    for_each_tile<Machine>(p, pairs, b, h, part, [&](Index q_tile, KeyTile tile) {
      A of_tile[std::size_t{Count}];
      MHA_UNROLL for (int v = 0; v < Count; ++v) of_tile[v] = A(0);
      pairs.visit(b, h, q_tile, tile, [&](int, int, const typename Pairs::Gradients& g) {
        MHA_UNROLL for (int v = 0; v < Count; ++v) of_tile[v] += g.of[v];
      });
      MHA_UNROLL for (int v = 0; v < Count; ++v) sums[v] += Sum(of_tile[v]);
    });
    MHA_UNROLL for (int v = 0; v < Count; ++v) {
      MHA_UNROLL for (int other = 1; other < warp_size; other *= 2) sums[v] += m.shuffle_xor(sums[v], other);
      if (m.thread() % warp_size == 0)
        m.store(pairs.scratch() + (m.thread() / warp_size * Count + v) * int{sizeof(Sum)}, sums[v]);
    }
    m.sync();
    if (m.thread() >= Count) return;
    Sum all(0);
    MHA_UNROLL for (int w = 0; w < Shape::warps; ++w) all +=
        m.template load<Sum>(pairs.scratch() + (w * Count + m.thread()) * int{sizeof(Sum)});
    const std::ptrdiff_t row = (std::ptrdiff_t{part} * p.call.shape.batch + b) * p.call.shape.heads + h;
    m.store_global(p.sums + row * p.count + First + m.thread(), all);
  }
};

/// The gradient of a table by distance k − q, of which the first and the last element stand for all beyond.
///
/// Numerics  a diagonal of a tile in A, its sums in LongSum<A>
/// Grid      parts · heads · batch
template <class Machine, class Wanted, int Table, class Call> class DistanceGradientBlock {
  using Pairs = PairTiles<Machine, Call, TableVariable<Wanted, Table>>;
  using A = typename Pairs::A;
  using Sum = LongSum<A>;
  using Shape = PairShape<A>;
  using Tile = typename Shape::Tile;
  static constexpr int diagonals = Shape::rows + Shape::keys - 1;
  static_assert(diagonals <= Shape::threads);

 public:
  MHA_KERNEL static void run(Machine& m, const ScoreGradientParams<Call>& p) {
    const Call& call = p.call;
    const Index part = m.block().x % p.parts, head = m.block().x / p.parts;
    const Index b = head / call.shape.heads, h = head % call.shape.heads;
    Sum* const to = p.sums + ((std::ptrdiff_t{part} * call.shape.batch + b) * call.shape.heads + h) * p.count;
    for (std::ptrdiff_t i = m.thread(); i < p.count; i += Shape::threads) m.store_global(to + i, Sum(0));
    const auto add = [&](std::ptrdiff_t i, Sum x) { m.store_global(to + i, m.template load_global<Sum>(to + i) + x); };
    Pairs pairs(m, p);
    for_each_tile<Machine>(p, pairs, b, h, part, [&](Index q_tile, KeyTile tile) {
      pairs.visit(b, h, q_tile, tile,
                  [&](int i, int j, const typename Pairs::Gradients& g) { m.store(pairs.place(i, j), g.of[0]); });
      m.sync();
      // Thread t has the pairs of column − row = t − (rows − 1).
      const Index shift = m.thread() - (Shape::rows - 1);
      A sum(0);
      for (Index r = 0; r < Shape::rows; ++r)
        if (r + shift >= 0 && r + shift < Shape::keys)
          sum += m.template load<A>(pairs.patch() + r * Shape::patch_pitch + (r + shift) * int{sizeof(A)});
      const std::ptrdiff_t at =
          std::ptrdiff_t{tile.index} * Shape::keys + shift - call.position(b, q_tile * Shape::rows) - p.least;
      const bool is_last = at >= p.count - 1 && at > 0;
      Sum first(at <= 0 ? sum : A(0)), last(is_last ? sum : A(0));
      MHA_UNROLL for (int other = 1; other < warp_size; other *= 2) {
        first += m.shuffle_xor(first, other);
        last += m.shuffle_xor(last, other);
      }
      const Shared ends = pairs.scratch();
      if (m.thread() % warp_size == 0) {
        m.store(ends + m.thread() / warp_size * 2 * int{sizeof(Sum)}, first);
        m.store(ends + (m.thread() / warp_size * 2 + 1) * int{sizeof(Sum)}, last);
      }
      m.sync();
      if (at > 0 && !is_last) add(at, Sum(sum));
      if (m.thread() != 0) return;
      first = last = Sum(0);
      MHA_UNROLL for (int w = 0; w < Shape::warps; ++w) {
        first += m.template load<Sum>(ends + w * 2 * int{sizeof(Sum)});
        last += m.template load<Sum>(ends + (w * 2 + 1) * int{sizeof(Sum)});
      }
      add(0, first);
      add(p.count - 1, last);
    });
  }
};

/// The gradients of the numbers of score number `Own` that accumulates. Owner t, a thread of the block, has rows t,
/// t + owners, … of every tile, and sums that no other thread touches: the score's accumulate() adds to them pair after
/// pair, in an order that the call's sizes say.
///
/// Numerics  a pair in A, sums in LongSum<A>
/// Grid      parts · heads · batch
template <class Machine, class Wanted, int Own, class Call> class OwnGradientBlock {
  using Pairs = PairTiles<Machine, Call, ResultVariable<Wanted, Own>>;
  using A = typename Pairs::A;
  using Sum = LongSum<A>;
  using Shape = PairShape<A>;

 public:
  MHA_KERNEL static void run(Machine& m, const ScoreGradientParams<Call>& p) {
    const Call& call = p.call;
    const Index heads = call.shape.batch * call.shape.heads;
    const Index part = m.block().x % p.parts, head = m.block().x / p.parts;
    const Index b = head / call.shape.heads, h = head % call.shape.heads;
    const Index owner = m.thread();
    const std::ptrdiff_t copy = std::ptrdiff_t{part} * p.owners + owner;
    const mha::detail::DeviceSpan<Sum> sums{p.sums + (copy * heads + head) * p.count,
                                            static_cast<std::size_t>(p.count)};
    if (owner < p.owners)
      for (std::ptrdiff_t i = 0; i < p.count; ++i) sums.first[i] = Sum(0);
    const auto& score = mha::detail::accumulating_part<mha::detail::OnlyParameters<Wanted>, Own>(call.score);
    Pairs pairs(m, p);
    for_each_tile<Machine>(p, pairs, b, h, part, [&](Index q_tile, KeyTile tile) {
      pairs.visit(b, h, q_tile, tile, [&](int i, int j, const typename Pairs::Gradients& g) {
        m.store(pairs.place(i, j), g.of[0]);
        m.store(input(pairs.place(i, j)), g.input);
      });
      m.sync();
      if (owner < p.owners) {
        const Index q0 = q_tile * Shape::rows, queries = call.queries(b);
        MHA_ROLL for (Index r = owner; r < Shape::rows && q0 + r < queries; r += p.owners) {
          const Index position = call.position(b, q0 + r);
          MHA_ROLL for (Index turn = 0; turn < Shape::keys; ++turn) {
            const Index c = (turn + owner) % Shape::keys;  // the owners of a warp read different banks
            const Shared at = pairs.patch() + r * Shape::patch_pitch + c * int{sizeof(A)};
            if (const A d = m.template load<A>(at); d != A(0))
              score.accumulate(sums, d, m.template load<A>(input(at)), b, h, position, tile.index * Shape::keys + c);
          }
        }
      }
      m.sync();
    });
  }

 private:
  /// Where the input of a pair is whose gradient is here: behind all that other kernels have.
  MHA_KERNEL static Shared input(Shared at) { return at + (Shape::patch + Shape::scratch); }
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
