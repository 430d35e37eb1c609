// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "../../core/dual.hpp"
#include "../../core/view.hpp"
#include "../../policy/score_gradient.hpp"
#include "../backend.hpp"
#include "machine.hpp"
#include "row_blocks.hpp"
#include "tiles.hpp"

/// What the kernels of a backward pass get, and which rows meet in them.
namespace mha::inline MHA_NAMESPACE::cuda {

/// What a backward pass must know of a query row of a head. The level is −∞ of no row: +∞ is that of a row that sees
/// nothing.
///
/// Formula   p = exp(t − level) · inverse,  dt = p (dP − slope)
///           inverse = 1 / (sum + exp(sink − level))
///           slope = d_out · out − d_log_sum_exp / (inverse · sum),  sink = −p_sink (d_out · out)
template <class A> struct alignas(16) RowFacts { A level, inverse, slope, sink; };

template <class A> MHA_KERNEL constexpr A level_of_nothing() { return -minus_infinity<A>(); }

/// A gradient's rows in global memory.
template <class T> struct GradientRows {
  using A = Accumulator<T>;
  void* data = nullptr;  ///< null: not wanted
  std::ptrdiff_t stride[4] = {};
  bool wide = false;  ///< its numbers are A's
  bool adds = false;
  const Index* offsets = nullptr;  ///< of a ragged batch

  GradientRows() = default;
  /// Of a GradientTo<T>.
  template <class To>
  GradientRows(const To& to, const Index* ragged) : data(to.data()), wide(to.wide()), adds(to.adds()), offsets(ragged) {
    for (int a = 0; a < 4; ++a) stride[a] = to.axes().stride[a];
  }

  MHA_KERNEL std::ptrdiff_t row(Index b, Index i, Index h) const {
    const bool ragged = offsets != nullptr;
    return (ragged ? 0 : b * stride[0]) + std::ptrdiff_t{ragged ? offsets[b] + i : i} * stride[1] + h * stride[2];
  }
  /// Element d of a row ← x, or += x.
  template <class Machine> MHA_KERNEL void put(Machine& m, std::ptrdiff_t row, Index d, A x) const {
    const std::ptrdiff_t at = row + d * stride[3];
    if (wide)
      write(m, static_cast<A*>(data) + at, x);
    else
      write(m, static_cast<T*>(data) + at, x);
  }

 private:
  template <class Machine, class E> MHA_KERNEL void write(Machine& m, E* to, A x) const {
    m.store_global(to, static_cast<E>((adds ? static_cast<A>(*to) : A(0)) + x));
  }
};

/// How many blocks share the query heads that read a key/value head in the sums of dK and dV, by the sizes of their
/// sequence alone: its bits depend neither on its batch mates nor on the device.
struct HeadShares {
  Index group = 1;             ///< query heads of a key/value head
  Index least_queries = 2048;  ///< that a block meets of all its heads, if there is more than one share
  Index most = 1;              ///< of a sequence of the call

  MHA_HOST_DEVICE constexpr Index of(Index queries) const {
    if (queries < 1) return 1;
    const Index heads = least_queries / queries + (least_queries % queries > 0 ? 1 : 0);  // of a share, at least
    return group > heads ? group / heads : 1;
  }
  /// The first of a share's heads, from that of the group on; of share number `shares` the end.
  MHA_HOST_DEVICE constexpr Index first_head(Index share, Index shares) const {
    return static_cast<Index>(std::int64_t{group} * share / shares);
  }
};

/// Which gradient a kernel sums.
enum class GradientOf : unsigned char { query, key, value };

/// A backward pass and how the plan lays it out. The kernels run one after another: row_facts_body before all others.
///
/// Shapes    rows (B, Hq, Lq) as AttendCall::row_state() has them
template <class Call_> struct GradientParams {
  using Call = Call_;
  using T = typename Call::Scalar;
  using A = Accumulator<T>;

  Call call;  ///< of forward, without its outputs
  TensorView<const T, 4> out, d_out;
  TensorView<const A, 3> d_log_sum_exp;
  const A *level = nullptr, *sum = nullptr;
  RowFacts<A>* rows = nullptr;
  GradientRows<T> query, key, value;
  LongSum<A>* sink = nullptr;
  bool aligned = false;  ///< rows of q, k, v and d_out are contiguous and begin and end on 16 bytes
  HeadShares shares{};   ///< of dK and dV; where a head has more than one, `key` and `value` are their parts
  RowBlocks blocks{};    ///< of the rows of a launch; heads of dK and dV are key/value heads times shares.most
  Index parts = 1;       ///< blocks that share the columns of a gradient
  Index first_sequence = 0, first_row = 0;  ///< of the launch, and of `key` and `value`

  /// Row i of sequence b of out or d_out.
  MHA_KERNEL const T* row(const TensorView<const T, 4>& v, Index b, Index i, Index h) const {
    return call.q_offsets != nullptr ? v.pointer(0, call.q_offsets[b] + i, h, 0) : v.pointer(b, i, h, 0);
  }
  MHA_KERNEL A row_d_log_sum_exp(Index b, Index h, Index i) const {
    if (d_log_sum_exp.data == nullptr) return A(0);
    return call.q_offsets != nullptr ? d_log_sum_exp(0, h, call.q_offsets[b] + i) : d_log_sum_exp(b, h, i);
  }
};

/// A logit and its derivative by the scaled dot product.
template <class A> struct Logit { A value, slope; };

/// The score of one head, differentiated.
template <class Call> struct LiftedScore {
  using A = Accumulator<typename Call::Scalar>;
  using Score = std::remove_cvref_t<decltype(Call::score)>;
  static constexpr bool exists = !std::is_same_v<Score, NoScore>;
  using Lifted = decltype(mha::detail::lifted<NoScoreGradients, Dual<A>>(
      at_head(std::declval<const Score&>(), Index{}, Index{}), 0, 0));

  Lifted score;
  Index b, h;

  MHA_KERNEL LiftedScore(const Call& call, Index sequence, Index head)
      : score(mha::detail::lifted<NoScoreGradients, Dual<A>>(at_head(call.score, sequence, head), 0, 0)),
        b(sequence),
        h(head) {}
  MHA_KERNEL Logit<A> operator()(A s, Index position, Index k) const {
    if constexpr (exists) {
      const Dual<A> t = score(Dual<A>::variable(s), b, h, position, k);
      return {t.value, t.derivative[0]};
    } else {
      return {s, A(1)};
    }
  }
};

/// What a block of a gradient walks through: the rows of its own and, head after head, the tiles of `Others` rows on
/// the other side that meet them, of each head the last one first.
///
/// ByQuery: queries of one head of its own, the last ones in the first blocks, against keys. Else keys of one key/value
/// head, the first ones in the first blocks, against the queries of its share of the heads that read it. Under a causal
/// mask the first blocks are the longest.
template <bool ByQuery, int Own, int Others, class Call> class GradientWalk {
 public:
  struct Step {
    Index h;
    KeyTile tile;
    MHA_KERNEL explicit constexpr operator bool() const { return bool(tile); }
  };

  Index b, g;
  Index place;         ///< its head among those of the launch
  Index first, count;  ///< rows of its own; none: count ≤ 0
  Index own, others;   ///< lengths of the sequence on both sides

  MHA_KERNEL GradientWalk(const GradientParams<Call>& p, Index block) : call_(p.call) {
    const Call& c = p.call;
    const RowBlocks::Place at = p.blocks[block];
    b = p.first_sequence + at.b;
    place = at.h;
    own = ByQuery ? c.queries(b) : c.keys(b);
    if constexpr (ByQuery) {
      g = c.kv_head(place);
      first_head_ = place;
      end_head_ = place + 1;
      others = c.keys(b);
    } else {
      const Index share = place % p.shares.most, shares = p.shares.of(c.queries(b));
      g = place / p.shares.most;
      first_head_ = g * p.shares.group + p.shares.first_head(share, shares);
      end_head_ = g * p.shares.group + p.shares.first_head(share + 1, shares);
      others = p.shares.group > 0 ? c.queries(b) : 0;  // without heads, none
      if (share >= shares) own = 0;
    }
    first = p.first_row + (ByQuery ? at.row_tile : p.blocks.row_tiles - 1 - at.row_tile) * Own;
    count = own - first < Own ? own - first : Own;
  }

  MHA_KERNEL Step begin() const { return from(first_head_, tiles(first_head_).first()); }
  MHA_KERNEL Step after(Step step) const { return from(step.h, tiles(step.h).after(step.tile)); }

  /// Of row `own_row` and row `other_row`: which is the query, which the key.
  MHA_KERNEL static constexpr Index query(Index own_row, Index other_row) { return ByQuery ? own_row : other_row; }
  MHA_KERNEL static constexpr Index key(Index own_row, Index other_row) { return ByQuery ? other_row : own_row; }

 private:
  MHA_KERNEL auto tiles(Index h) const {
    const auto seen = [this, h](Index begin, Index end) {
      const Index q = ByQuery ? first : begin, q_end = ByQuery ? first + count : end;
      const Index k = ByQuery ? begin : first, k_end = ByQuery ? end : first + count;
      return mha::tile(call_.mask, b, h, call_.position(b, q), call_.position(b, q_end), k, k_end);
    };
    return KeyTiles<Others, decltype(seen)>(others, seen);
  }
  MHA_KERNEL Step from(Index h, KeyTile tile) const {
    while (!tile && h + 1 < end_head_) tile = tiles(++h).first();
    return {h, tile};
  }

  const Call& call_;
  Index first_head_, end_head_;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
