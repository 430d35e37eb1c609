// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../cache/kv_source.hpp"
#include "../../policy/mask.hpp"
#include "finite.hpp"
#include "forward_shape.hpp"
#include "scores.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// What the bodies of attention on tensor cores have in common, however they multiply: a tile of query rows of one
/// head, its queries, two stages of keys and values in shared memory, its logits and their running softmax in
/// accumulators of mma.m16n8k16, and how its rows are written.
///
/// Shapes    rows (Shape::rows) × keys (Shape::keys) a step, each warp 16 · strips rows; q (rows, D)  k (keys, D)
///           v (keys, Dv)  o (rows, Dv)
/// Numerics  logits beyond 2³⁰ are beyond what a shift in float can balance
template <class Machine, class Shape, class Call> class ForwardRows {
 protected:
  using T = typename Call::Scalar;
  using Logits = HeadLogits<Call>;
  using Source = std::remove_cvref_t<decltype(Call::kv)>;
  using Mask = std::remove_cvref_t<decltype(Call::mask)>;
  using Query = typename Shape::Query;
  using Key = typename Shape::Key;
  using Value = typename Shape::Value;
  using Output = typename Shape::Output;
  static constexpr int strips = Shape::strips;
  static constexpr int key_steps = Shape::keys / 8, value_steps = Shape::value_dim / 8;  // columns of accumulators
  static constexpr int key_depth = Shape::keys / 16;                                     // steps of products
  /// Where the keys and values of the head begin is kept in registers if the policies leave some.
  static constexpr bool keeps_run =
      is_one_run<Source> && Shape::has_registers_for_run && !Logits::has_score && is_light<Mask>;
  template <class V> using PerStrip = V[std::size_t{strips}];
  using Tile = PerStrip<float[std::size_t{key_steps}][4]>;  // accumulators (rows of the warp, keys)
  using Rows = PerStrip<float[2]>;                          // a number for each of them
  using Fragments = PerStrip<std::uint32_t[4]>;             // A operands (rows of the warp, 16 deep)
  using Bits = std::conditional_t<(key_steps > 8), std::uint64_t, std::uint32_t>;
  using Pairs = PerStrip<Bits>;  // bit 4 n + e of pair (n, e) of a tile

  MHA_KERNEL ForwardRows(Machine& machine, const Call& call, RowBlocks::Place place)
      : m_(machine),
        logits_(call, place.b, place.h),
        first_(place.row_tile * Shape::rows),
        count_(logits_.queries - first_ < Shape::rows ? logits_.queries - first_ : Shape::rows),
        queries_(machine.shared()),
        keys_(queries_ + Shape::head_bytes),
        values_(keys_ + 2 * Shape::key_bytes) {
    if constexpr (keeps_run)
      if (count_ > 0) run_ = call.kv.run(logits_.b, call.kv_head(logits_.h), 0, logits_.keys);
  }

  MHA_KERNEL void clear() {
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int r = 0; r < 2; ++r) {
      top_[i][r] = Logits::hidden();
      sum_[i][r] = 0;
      MHA_UNROLL for (int d = 0; d < value_steps; ++d) out_[i][d][2 * r] = out_[i][d][2 * r + 1] = 0;
    }
  }
  /// The tiles of keys that some row of the block sees.
  MHA_KERNEL auto tiles() const {
    const auto seen = [this](Index begin, Index end) {
      return logits_.visibility(first_, first_ + count_, begin, end);
    };
    return KeyTiles<Shape::keys, decltype(seen)>(logits_.keys, seen);
  }

  // m_.thread() is asked anew in every phase: index arithmetic is cheaper than the registers that would hold it.
  MHA_KERNEL int lane() const { return m_.thread() & (warp_size - 1); }
  MHA_KERNEL int warp_row() const { return (m_.thread() >> 5) * 16 * strips; }

  /// What the rows of this warp see of a tile that some rows of the block see.
  MHA_KERNEL TileVisibility visibility(KeyTile tile) const {
    const Index first = first_ + warp_row(), end = first_ + count_;
    const Index last = first + 16 * strips < end ? first + 16 * strips : end;
    if (first >= end) return TileVisibility::none;
    if (!tile.partial) return TileVisibility::full;
    const auto seen = [&](Index from, Index to) { return logits_.visibility(first, last, from, to); };
    return KeyTiles<Shape::keys, decltype(seen)>(logits_.keys, seen).of(tile.index, tile.index);
  }

  /// Rows at one stride; those beyond the call are named, not read.
  struct Strided {
    const T* first;
    std::ptrdiff_t stride;
    MHA_KERNEL const T* operator()(int r) const { return first + r * stride; }
  };

  /// `count` rows into shared memory; beyond `valid` rows and `columns` columns are zeros. row(r) → its first element.
  template <class Layout, class Row>
  MHA_KERNEL void load_rows(Shared to, int count, Index valid, Index columns, std::ptrdiff_t stride,
                            const Row& row) const {
    constexpr int lowest = Layout::chunks & -Layout::chunks, wide = lowest < 16 ? lowest : 16;  // threads on a row
    constexpr int pass = Shape::threads / wide;
    const int part = m_.thread() & (wide - 1), first = m_.thread() >> __builtin_ctz(wide);
    to = Layout::address(to, first, part);
    if constexpr (Shape::layout == RowLayout::aligned) {
      const T* from = row(first) + part * 8;
      const auto copy_row = [&](int r, bool whole) {
        const bool here = whole || first + r < valid;
        MHA_UNROLL for (int c = 0; c < Layout::chunks; c += wide) {
          const bool read = whole || (here && (c + part) * 8 < columns);
          m_.cp_async16(Layout::beside(to, c) + r * Layout::bytes, from + c * 8, read);
        }
        if constexpr (std::is_same_v<Row, Strided>)
          from += row.stride * pass;
        else
          from = row(first + r + pass) + part * 8;
      };
      // Rows a multiple of 8 apart have one key.
      if constexpr (Shape::warpgroups > 0) {
        if (count <= valid && columns == Layout::chunks * 8)  // as a rule: nothing is asked of each chunk
          MHA_UNROLL for (int r = 0; r < count; r += pass) copy_row(r, true);
        else
          MHA_ROLL for (int r = 0; r < count; r += pass) copy_row(r, false);
      } else {
        MHA_UNROLL for (int r = 0; r < count; r += pass) copy_row(r, false);
      }
    } else {
      MHA_ROLL for (int r = 0; r < count; r += pass) {
        const bool here = first + r < valid;
        const T* const from = row(first + r);
        MHA_ROLL for (int c = 0; c < Layout::chunks; c += wide) {
          Chunk chunk{};
          MHA_UNROLL for (int e = 0; e < 8; ++e) {
            const int column = (c + part) * 8 + e;
            const std::uint32_t bits = here && column < columns ? from[column * stride].bits : 0u;
            chunk.word[e / 2] |= bits << 16 * (e % 2);
          }
          m_.store(Layout::beside(to, c) + r * Layout::bytes, chunk);
        }
      }
    }
  }
  MHA_KERNEL void load_queries() const {
    const Call& call = logits_.call;
    load_rows<Query>(queries_, Shape::rows, count_, call.head_dim, call.q.stride[3],
                     Strided{call.query(logits_.b, first_, logits_.h), call.q.stride[1]});
  }
  /// Rows of keys or of values, whichever members of KvRun are given.
  template <class Layout, class Data, class Stride>
  MHA_KERNEL void load_kv(Shared to, KeyTile tile, Index columns, Data data, Stride stride) const {
    const Call& call = logits_.call;
    const Index begin = tile.index * Shape::keys, g = call.kv_head(logits_.h), end = logits_.keys;
    if constexpr (keeps_run) {
      const std::ptrdiff_t step = run_.*stride;
      load_rows<Layout>(to, Shape::keys, end - begin, columns, 1, Strided{run_.*data + begin * step, step});
    } else if constexpr (is_one_run<Source>) {
      const auto run = call.kv.run(logits_.b, g, begin, end);
      load_rows<Layout>(to, Shape::keys, end - begin, columns, 1, Strided{run.*data, run.*stride});
    } else {
      load_rows<Layout>(to, Shape::keys, end - begin, columns, 1, [&](int r) {
        return call.kv.run(logits_.b, g, begin + r < end ? begin + r : begin, end).*data;
      });
    }
  }
  MHA_KERNEL void load_keys(KeyTile tile, int stage) const {
    load_kv<Key>(keys_ + stage * Shape::key_bytes, tile, logits_.call.head_dim, &KvRun<T>::key, &KvRun<T>::key_stride);
  }
  MHA_KERNEL void load_values(KeyTile tile, int stage) const {
    load_kv<Value>(values_ + stage * Shape::value_bytes, tile, logits_.call.value_dim, &KvRun<T>::value,
                   &KvRun<T>::value_stride);
  }

  /// From dot products to logits, −∞ and a bit in `hidden` where nothing is to be seen.
  MHA_KERNEL void finish_logits(Tile& s, Pairs& hidden, Index tile, bool partial) const {
    if (!partial && !Logits::has_score && logits_.scale == 1) return;
    const int l = lane();
    const Index row0 = first_ + warp_row() + Lanes::row(l, 0), key0 = tile * Shape::keys + Lanes::column(l, 0);
    const Index last = logits_.queries - 1;
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int n = 0; n < key_steps; ++n)
        MHA_UNROLL for (int e = 0; e < 4; ++e) {
      const Index row = row0 + 16 * i + Lanes::row(0, e), key = key0 + 8 * n + Lanes::column(0, e);
      float& x = s[i][n][e];
      x = partial ? logits_.visible_logit(x, row, key) : logits_.logit(x, row < last ? row : last, key);
      if (x == Logits::hidden()) hidden[i] |= Bits{1} << (4 * n + e);
    }
  }

  /// s = exp(s − shift), and what that means for the rows so far.
  ///
  /// A row's shift follows its maximum only when weights would pass 2⁸: as a rule after the first tile the rows so far
  /// stay as they are. Each row decides for itself, so that its bits do not depend on its neighbours.
  MHA_KERNEL void softmax(Tile& s) {
    Rows rescale;
    if (follow(s, rescale)) rescale_outputs(rescale);
    weigh(s);
  }
  /// The shifts follow the logits of a tile, the sums with them: whether some row of the warp needs its outputs
  /// rescaled.
  MHA_KERNEL bool follow(const Tile& s, Rows& rescale) {
    Rows top;
    bool any_grows = false;
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int r = 0; r < 2; ++r) {
      float highest = s[i][0][2 * r];
      MHA_UNROLL for (int n = 0; n < key_steps; ++n) highest =
          m_.max(highest, m_.max(s[i][n][2 * r], s[i][n][2 * r + 1]));
      highest = m_.max(highest, m_.shuffle_xor(highest, 1));
      highest = m_.max(highest, m_.shuffle_xor(highest, 2));
      const bool grows = logits_.outgrows(highest, top_[i][r]);
      top[i][r] = grows ? highest : top_[i][r];
      any_grows = any_grows || grows;
    }
    if (!m_.any(any_grows)) return false;
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int r = 0; r < 2; ++r) {
      const float change = m_.exp2(logits_.exponent(m_, top_[i][r], logits_.shift(top[i][r])));
      rescale[i][r] = top[i][r] == top_[i][r] ? 1.f : change;
      top_[i][r] = top[i][r];
      sum_[i][r] *= rescale[i][r];
    }
    return true;
  }
  MHA_KERNEL void rescale_outputs(const Rows& rescale) {
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int d = 0; d < value_steps; ++d)
        MHA_UNROLL for (int e = 0; e < 4; ++e) out_[i][d][e] *= rescale[i][e / 2];
  }
  /// From logits to weights, which the sums take up.
  MHA_KERNEL void weigh(Tile& s) {
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int r = 0; r < 2; ++r) {
      const float shift = logits_.shift(top_[i][r]);
      MHA_UNROLL for (int n = 0; n < key_steps; ++n) MHA_UNROLL for (int e = 2 * r; e < 2 * r + 2; ++e) {
        s[i][n][e] = m_.exp2(logits_.exponent(m_, s[i][n][e], shift));
        sum_[i][r] += s[i][n][e];
      }
    }
  }

  /// The weights of keys 16 k … 16 k + 15: accumulators of s are the A operand of the next product.
  MHA_KERNEL void pack_weights(Fragments& a, const Tile& s, int k) const {
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int e = 0; e < 4; ++e) {
      const float(&pair)[4] = s[i][2 * k + e / 2];
      a[i][e] = m_.template pack<T>(pair[e % 2 * 2], pair[e % 2 * 2 + 1]);
    }
  }

  MHA_KERNEL static bool some(const Pairs& pairs) {
    Bits all = 0;
    MHA_UNROLL for (int i = 0; i < strips; ++i) all |= pairs[i];
    return all != 0;
  }

  MHA_KERNEL Shared value_lane(int stage) const {
    return Value::address(values_ + stage * Shape::value_bytes, Lanes::a_row(lane()), Lanes::a_chunk(lane()));
  }
  /// out += weights · v over visible pairs, by products of a warp; weights(a, k) are those of keys 16 k … 16 k + 15.
  template <class Weights>
  MHA_KERNEL void multiply_visible_values(const Weights& weights, const Pairs& hidden, int stage) {
    const Shared value = value_lane(stage);
    MHA_ROLL for (int k = 0; k < key_depth; ++k) {
      Fragments a, seen;
      MHA_UNROLL for (int j = 0; j < key_depth; ++j) if (j == k) weights(a, j);
      MHA_UNROLL for (int i = 0; i < strips; ++i) {
        MHA_UNROLL for (int e = 0; e < 4; ++e) {
          const auto pair = static_cast<std::uint32_t>(hidden[i] >> (8 * k + e / 2 * 4 + e % 2 * 2));
          seen[i][e] = PairBits<T>::ones((pair & 1u) == 0, (pair & 2u) == 0);
        }
      }
      MHA_UNROLL for (int d = 0; d < value_steps; d += 2) {
        std::uint32_t b[4];
        m_.sync_warp();  // one step after another, for want of registers
        m_.ldmatrix_x4_trans(b, Value::beside(value, d) + k * 16 * Value::bytes);
        MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int c = 0; c < 2; ++c)
            multiply_seen<T>(m_, out_[i][d + c], a[i], seen[i], b[2 * c], b[2 * c + 1]);
      }
    }
  }

  /// Rows divided by their sums, through shared memory where they leave in whole chunks.
  MHA_KERNEL void write() const {
    const Call& call = logits_.call;
    const int l = lane();
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int r = 0; r < 2; ++r) {
      float sum = sum_[i][r];
      sum += m_.shuffle_xor(sum, 1);
      sum += m_.shuffle_xor(sum, 2);
      const float top = top_[i][r];
      const float inverse = Logits::empty(top, sum) ? 0.f : 1 / logits_.denominator(m_, top, sum);
      const int row = warp_row() + 16 * i + Lanes::row(l, 2 * r);
      if (call.log_sum_exp.data != nullptr && l % 4 == 0 && row < count_)
        m_.store_global(&call.row_log_sum_exp(logits_.b, logits_.h, first_ + row), logits_.log_sum_exp(m_, top, sum));
      if constexpr (Shape::layout == RowLayout::aligned) {
        const Shared to = Output::address(queries_, row, 0) + l % 4 * 4;
        MHA_UNROLL for (int d = 0; d < value_steps; ++d) m_.store(
            Output::beside(to, d), m_.template pack<T>(out_[i][d][2 * r] * inverse, out_[i][d][2 * r + 1] * inverse));
      } else if (row < count_) {
        T* const to = call.output(logits_.b, first_ + row, logits_.h);
        MHA_UNROLL for (int d = 0; d < value_steps; ++d) MHA_UNROLL for (int e = 0; e < 2; ++e) {
          const int column = 8 * d + Lanes::column(l, e);
          if (column < call.value_dim)
            m_.store_global(to + column * call.out.stride[3], T(out_[i][d][2 * r + e] * inverse));
        }
      }
    }
    if constexpr (Shape::layout == RowLayout::aligned) {
      m_.sync_warp();
      for (int i = l; i < 16 * strips * Output::chunks; i += warp_size) {
        const int row = warp_row() + i / Output::chunks, c = i % Output::chunks;
        if (row < count_ && c * 8 < call.value_dim)
          m_.store_global(reinterpret_cast<Chunk*>(call.output(logits_.b, first_ + row, logits_.h) + c * 8),
                          m_.template load<Chunk>(Output::address(queries_, row, c)));
      }
    }
    if constexpr (records<Call>) record();
  }

  /// The states of the rows: after write(), when the registers of its sums are free.
  MHA_KERNEL void record() const {
    MHA_UNROLL for (int i = 0; i < strips; ++i) MHA_UNROLL for (int r = 0; r < 2; ++r) {
      float sum = sum_[i][r];
      sum += m_.shuffle_xor(sum, 1);
      sum += m_.shuffle_xor(sum, 2);
      const float top = top_[i][r];
      const int l = lane(), row = warp_row() + 16 * i + Lanes::row(l, 2 * r);
      if (l % 4 == 0 && row < count_)
        record_row(m_, logits_.call, logits_.b, logits_.h, first_ + row, logits_.level(top),
                   logits_.level_sum(m_, top, sum));
    }
  }

  Machine& m_;
  const Logits logits_;
  const Index first_, count_;  // rows of the call
  KvRun<T> run_;               // of the head, if it is kept
  const Shared queries_, keys_, values_;
  PerStrip<float[std::size_t{value_steps}][4]> out_;
  Rows top_, sum_;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
