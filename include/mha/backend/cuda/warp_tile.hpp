// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../core/scalar.hpp"
#include "../../policy/dropout.hpp"
#include "../../policy/score.hpp"
#include "machine.hpp"

/// Attention of a few rows over a few keys by the 32 lanes of one warp, on plain multiply-adds.
namespace mha::inline MHA_NAMESPACE::cuda {

/// The numbers of 16 bytes.
template <class A> struct alignas(16) Pack {
  static constexpr int width = 16 / int{sizeof(A)};
  A x[std::size_t{16 / sizeof(A)}];
};

/// The weight of a hidden key: no exponential is −0, and times a finite value it adds nothing.
template <class A> MHA_HOST_DEVICE constexpr A hidden_weight() { return -A(0); }
template <class A> MHA_KERNEL bool is_hidden_weight(A w) {
  using Bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  return __builtin_bit_cast(Bits, w) == Bits{1} << (sizeof(A) * 8 - 1);
}

/// A row of queries: which one it is, if any.
struct TileRow {
  Index h, i, position;
  bool inside;
};

/// From dot products to logits: s ← score(scale · s), −∞ where hidden, for rows row(i) and keys key(j). Policies are
/// asked only for pairs of the call, the mask only where `test`; score(i) is the score of row i's head.
template <class A, std::size_t Rows, std::size_t Keys, class Call, class Row, class Key, class HeadScore>
MHA_KERNEL void apply_policies(A (&s)[Rows][Keys], const Call& call, Index b, Index keys_end, bool test, const Row& row,
                               const Key& key, const HeadScore& score) {
  constexpr bool scored = !std::is_same_v<std::remove_cvref_t<decltype(call.score)>, NoScore>;
  MHA_UNROLL for (int i = 0; i < int{Rows}; ++i) {
    const TileRow at = row(i);
    const auto& head_score = score(i);
    MHA_UNROLL for (int j = 0; j < int{Keys}; ++j) {
      A x = call.scale * s[i][j];
      if (scored || test) {
        const Index k = key(j);
        const bool seen = at.inside && k < keys_end && (!test || call.mask(b, at.h, at.position, k));
        if constexpr (scored)
          if (seen) x = static_cast<A>(head_score(x, b, at.h, at.position, k));
        if (!seen) x = minus_infinity<A>();
      }
      s[i][j] = x;
    }
  }
}

/// One row's step of the running softmax over the keys of `Lanes` neighbouring lanes: logits become weights. Returns by
/// what the row's values so far are multiplied.
///
/// Numerics  the logit minus the maximum is rounded once more by log2(e): a weight w is off by 2·|log w| half units in
///           the last place, beside what exp2 is off by, 2 units in float
template <int Lanes, class A, std::size_t Keys, class Machine>
MHA_KERNEL A weigh_row(Machine& m, A (&s)[Keys], A& max, A& sum, bool& hidden) {
  A top = max;
  MHA_UNROLL for (int j = 0; j < int{Keys}; ++j) top = m.max(top, s[j]);
  MHA_UNROLL for (int other = 1; other < Lanes; other *= 2) top = m.max(top, m.shuffle_xor(top, other));
  const A shift = top == minus_infinity<A>() ? A(0) : top;
  const A rescale = m.exp2((max - shift) * log2e<A>());
  max = top;
  sum *= rescale;
  MHA_UNROLL for (int j = 0; j < int{Keys}; ++j) {
    const bool none = s[j] == minus_infinity<A>();
    s[j] = none ? hidden_weight<A>() : m.exp2((s[j] - shift) * log2e<A>());
    hidden = hidden || none;
    sum += s[j];
  }
  return rescale;
}

/// Rectangles of a warp: 4 groups of rows × 8 lanes. A lane owns rows group + 4·i, keys lane + 8·j and, of the values,
/// the 16-byte packs lane + 8·c, so that 8 neighbouring lanes read 8 neighbouring rows or packs of shared memory.
///
/// Formula   o ← o · exp(max − max′) + exp(s − max′) · V, the running softmax of core/online_softmax.hpp
/// Shapes    logits (4 · Rows, 8 · Keys)  o (4 · Rows, 8 · Packs · 16 bytes)
/// Numerics  logits are natural, a hidden one is −∞; its weight is −0 and its value row is not touched where `Guarded`
template <class A, int Rows, int Keys, int Packs> struct WarpTile {
  static constexpr int groups = 4, lanes = 8, width = Pack<A>::width;
  static constexpr int rows = groups * Rows, keys = lanes * Keys, values = lanes * Packs * width;
  static constexpr int rows_per_lane = Rows, keys_per_lane = Keys, packs_per_lane = Packs;
  /// The sums fill so many registers that loops are rolled, to leave some.
  static constexpr bool wide = Rows * Packs * 16 > 96 * 4;
  static constexpr Shared weights_pitch = (keys + width) * int{sizeof(A)};  // an odd number of packs

  struct Logits {
    A s[std::size_t{Rows}][std::size_t{Keys}];
  };
  struct State {
    A max[std::size_t{Rows}], sum[std::size_t{Rows}];  // sum: of this lane's keys until reduce()
    A o[std::size_t{Rows}][std::size_t{Packs}][std::size_t{width}];
  };

  template <class Machine> MHA_KERNEL static int group(Machine& m) { return m.thread() % warp_size / lanes; }
  template <class Machine> MHA_KERNEL static int lane(Machine& m) { return m.thread() % lanes; }

  MHA_KERNEL static void clear(State& state) {
    MHA_UNROLL for (int i = 0; i < Rows; ++i) {
      state.max[i] = minus_infinity<A>();
      state.sum[i] = A(0);
      MHA_UNROLL for (int c = 0; c < Packs; ++c) MHA_UNROLL for (int e = 0; e < width; ++e) state.o[i][c][e] = A(0);
    }
  }
  MHA_KERNEL static void clear(Logits& logits) {
    MHA_UNROLL for (int i = 0; i < Rows; ++i) MHA_UNROLL for (int j = 0; j < Keys; ++j) logits.s[i][j] = A(0);
  }

  /// s += q (rows, depth) · k (keys, depth)ᵀ for `packs` packs of depth.
  template <class Machine>
  MHA_KERNEL static void dots(Machine& m, Logits& logits, Shared q, Shared q_pitch, Shared k, Shared k_pitch,
                              int packs) {
    q += group(m) * q_pitch;
    k += lane(m) * k_pitch;
    const auto step = [&] {
      Pack<A> key[std::size_t{Keys}];
      MHA_UNROLL for (int j = 0; j < Keys; ++j) key[j] = m.template load<Pack<A>>(k + j * lanes * k_pitch);
      MHA_UNROLL for (int i = 0; i < Rows; ++i) {
        const Pack<A> query = m.template load<Pack<A>>(q + i * groups * q_pitch);
        MHA_UNROLL for (int e = 0; e < width; ++e) MHA_UNROLL for (int j = 0; j < Keys; ++j) logits.s[i][j] =
            m.fma(query.x[e], key[j].x[e], logits.s[i][j]);
      }
      q += 16;
      k += 16;
    };
    if constexpr (wide)
      MHA_ROLL for (int d = 0; d < packs; ++d) step();
    else
      for (int d = 0; d < packs; ++d) step();
  }

  /// From dot products to logits of keys first_key, …: see apply_policies().
  template <class Machine, class Call, class Row, class HeadScore>
  MHA_KERNEL static void apply(Machine& m, Logits& logits, const Call& call, Index b, Index first_key, Index keys_end,
                               bool test, const Row& row, const HeadScore& score) {
    const Index k0 = first_key + lane(m);
    apply_policies(
        logits.s, call, b, keys_end, test, row, [&](int j) { return k0 + j * lanes; }, score);
  }

  /// One step of the running softmax; the weights go to this warp's rows of shared memory at `to`. Returns whether some
  /// key of this lane is hidden.
  template <class Machine> MHA_KERNEL static bool weigh(Machine& m, Logits& logits, State& state, Shared to) {
    to += group(m) * weights_pitch + lane(m) * int{sizeof(A)};
    bool hidden = false;
    MHA_UNROLL for (int i = 0; i < Rows; ++i) {
      const A rescale = weigh_row<lanes>(m, logits.s[i], state.max[i], state.sum[i], hidden);
      MHA_UNROLL for (int j = 0; j < Keys; ++j)
          m.store(to + i * groups * weights_pitch + j * lanes * int{sizeof(A)}, logits.s[i][j]);
      MHA_UNROLL for (int c = 0; c < Packs; ++c) MHA_UNROLL for (int e = 0; e < width; ++e) state.o[i][c][e] *= rescale;
    }
    return hidden;
  }

  /// The weights at `to` that weigh() has stored, of keys first_key, …, times the factors of dropout. A hidden one
  /// stays one: −0 times a factor is −0.
  template <class Machine, class Row>
  MHA_KERNEL static void drop(Machine& m, const DropoutDraws& draws, const CallShape& shape, Index b, Index first_key,
                              Shared to, const Row& row) {
    to += group(m) * weights_pitch + lane(m) * int{sizeof(A)};
    MHA_ROLL for (int at = 0; at < Rows * Keys; ++at) {
      const int i = at / Keys, j = at % Keys;
      const TileRow query = row(i);
      const Shared place = to + i * groups * weights_pitch + j * lanes * int{sizeof(A)};
      const auto factor = static_cast<A>(
          draws.factor(mha::detail::dropout_row(shape, b, query.h), query.position, first_key + lane(m) + j * lanes));
      m.store(place, m.template load<A>(place) * factor);
    }
  }

  /// o += weights (rows, count) · v (count, values); count is a multiple of `width`.
  template <bool Guarded, class Machine>
  MHA_KERNEL static void values_of(Machine& m, State& state, Shared weights, Shared v, Shared v_pitch, int count) {
    weights += group(m) * weights_pitch;
    v += lane(m) * 16;
    const auto step = [&] {
      Pack<A> weight[std::size_t{Rows}];
      MHA_UNROLL for (int i = 0; i < Rows; ++i) weight[i] =
          m.template load<Pack<A>>(weights + i * groups * weights_pitch);
      MHA_UNROLL for (int e = 0; e < width; ++e) {
        MHA_UNROLL for (int c = 0; c < Packs; ++c) {
          const Pack<A> value = m.template load<Pack<A>>(v + c * lanes * 16);
          MHA_UNROLL for (int i = 0; i < Rows; ++i) if (!Guarded || !is_hidden_weight(weight[i].x[e]))
              MHA_UNROLL for (int x = 0; x < width; ++x)
                  state.o[i][c][x] = m.fma(weight[i].x[e], value.x[x], state.o[i][c][x]);
        }
        v += v_pitch;
      }
      weights += 16;
    };
    if constexpr (wide || Guarded)
      MHA_ROLL for (int k = 0; k < count; k += width) step();
    else
      for (int k = 0; k < count; k += width) step();
  }
  template <class Machine>
  MHA_KERNEL static void accumulate(Machine& m, State& state, Shared weights, Shared v, Shared v_pitch, int count,
                                    bool guarded) {
    if (guarded)
      values_of<true>(m, state, weights, v, v_pitch, count);
    else
      values_of<false>(m, state, weights, v, v_pitch, count);
  }

  /// The sums of whole rows.
  template <class Machine> MHA_KERNEL static void reduce(Machine& m, State& state) {
    MHA_UNROLL for (int i = 0; i < Rows; ++i) MHA_UNROLL for (int other = 1; other < lanes; other *= 2) state.sum[i] +=
        m.shuffle_xor(state.sum[i], other);
  }
};

/// What a row's sums are multiplied by at the end, and its log-sum-exp: 0 and −∞ of a row that has seen nothing.
template <class A> struct RowEnd { A inverse, log_sum_exp; };

/// Formula   1 / (sum + exp(sink − max)),  max + log(sum)
template <class A, class Machine, class Call>
MHA_KERNEL RowEnd<A> end_of_row(Machine& m, const Call& call, Index h, A max, A sum) {
  if (max == minus_infinity<A>() && sum == A(0)) return {A(0), minus_infinity<A>()};
  A denominator = sum;
  if (call.sink.size > 0) denominator += m.exp2((static_cast<A>(call.sink.data[h]) - max) * log2e<A>());
  return {A(1) / denominator, max + m.log(sum)};
}

/// Columns first, … of an output row, its sums of values times `inverse`. Where `wide` the row is whole packs at a
/// multiple of 16 bytes.
template <class A, class T, class Machine>
MHA_KERNEL void store_values(Machine& m, T* out, std::ptrdiff_t stride, Index first, Index end,
                             const A (&sums)[std::size_t{16 / sizeof(A)}], A inverse, bool wide) {
  constexpr int width = Pack<A>::width;
  if (wide) {
    if (first >= end) return;
    if constexpr (std::is_same_v<T, A>) {
      Pack<A> x;
      MHA_UNROLL for (int e = 0; e < width; ++e) x.x[e] = sums[e] * inverse;
      m.store_global(reinterpret_cast<Pack<A>*>(out + first), x);
    } else {
      struct alignas(8) Pairs {
        std::uint32_t of[2];
      };
      const Pairs x{{m.template pack<T>(sums[0] * inverse, sums[1] * inverse),
                     m.template pack<T>(sums[2] * inverse, sums[3] * inverse)}};
      m.store_global(reinterpret_cast<Pairs*>(out + first), x);
    }
    return;
  }
  MHA_UNROLL for (int e = 0; e < width; ++e) if (first + e < end)
      m.store_global(out + (first + e) * stride, static_cast<T>(sums[e] * inverse));
}

/// Rows [0, rows) of `Packs` packs into shared memory, pack c of row r to place(r, c), by `workers` threads; rows from
/// `valid` on and what lies beyond `elements` of a row as zeros. row(r) points at element 0 of a row whose elements are
/// `stride` apart. Where `aligned`, rows are whole 16-byte packs and arrive with the copies of the asking thread.
template <class A, int Packs, class Machine, class Place, class Row>
MHA_KERNEL void stage_rows(Machine& m, int worker, int workers, int rows, Index valid, Index first, Index elements,
                           std::ptrdiff_t stride, bool aligned, const Place& place, const Row& row) {
  using T = std::remove_cvref_t<decltype(*row(0))>;
  constexpr int width = Pack<A>::width;
  if constexpr (std::is_same_v<T, A>)
    if (aligned) {
      const T* const somewhere = row(0);
      const auto copy = [&](int i) {
        const int r = i / Packs, c = i % Packs;
        const Index begin = first + c * width;
        const bool inside = r < valid && begin < elements;
        m.cp_async16(place(r, c), inside ? row(r) + begin : somewhere, inside);
      };
      if constexpr (Packs >= 32)  // wide rows belong to wide sums, which leave few registers
        MHA_ROLL for (int i = worker; i < rows * Packs; i += workers) copy(i);
      else
        for (int i = worker; i < rows * Packs; i += workers) copy(i);
      return;
    }
  MHA_ROLL for (int i = worker; i < rows * Packs; i += workers) {
    const int r = i / Packs, c = i % Packs;
    const Index begin = first + c * width;
    Pack<A> x;
    MHA_UNROLL for (int e = 0; e < width; ++e) x.x[e] =
        r < valid && begin + e < elements ? static_cast<A>(row(r)[(begin + e) * stride]) : A(0);
    m.store(place(r, c), x);
  }
}

/// Row after row at `to`, `pitch` bytes apart.
MHA_KERNEL auto rows_at(Shared to, Shared pitch) {
  return [to, pitch](int r, int c) { return to + r * pitch + c * 16; };
}

}  // namespace mha::inline MHA_NAMESPACE::cuda
