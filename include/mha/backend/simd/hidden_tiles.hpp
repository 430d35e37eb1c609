// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "../../policy/mask.hpp"
#include "../../policy/mask/dense.hpp"
#include "../../policy/score.hpp"
#include "../../policy/score/additive_bias.hpp"
#include "tile_lanes.hpp"

/// What tables say of a tile: the processor reads their elements, which takes little beside computing the pairs.
namespace mha::inline MHA_NAMESPACE::detail::simd {

/// The elements of a table for queries × keys [begin, end), an axis that repeats one element once; the axis along which
/// they lie together, if there is one, is the columns'.
template <class X> struct TableTile {
  const X* corner;
  Index rows, columns;
  std::ptrdiff_t by_row, by_column;

  TableTile(const TensorView<const X, 4>& table, const Origins& origin, const TileQueries& of, Index begin, Index end)
      : corner(&table(of.b, of.h, of.begin - origin[of.b], begin)),
        rows(table.stride[2] == 0 ? std::min(of.count, Index{1}) : of.count),
        columns(table.stride[3] == 0 ? std::min(end - begin, Index{1}) : end - begin),
        by_row(table.stride[2]),
        by_column(table.stride[3]) {
    if (by_column != 1 && by_row == 1) std::swap(rows, columns), std::swap(by_row, by_column);
  }
  bool empty() const { return rows <= 0 || columns <= 0; }
  bool together() const { return by_column == 1 || columns == 1; }
  const X* row(Index r) const { return corner + r * by_row; }
  /// Whether the elements of a row, which lie together, are all the same: each is the one before it.
  bool same(Index r) const {
    return std::memcmp(row(r), row(r) + 1, static_cast<std::size_t>(columns - 1) * sizeof(X)) == 0;
  }
};

// ---- tables of booleans ----

/// What the mask says of queries × keys [begin, end). The bytes of a table are compared, which takes little beside
/// computing the pairs; a mask's own tile(), which a GPU calls too, reads none.
template <class M> TileVisibility tile_on_host(const M& mask, const TileQueries& of, Index begin, Index end) {
  return tile(mask, of.b, of.h, of.begin, of.begin + of.count, begin, end);
}
inline TileVisibility tile_on_host(const Dense& mask, const TileQueries& of, Index begin, Index end) {
  const TableTile<bool> table(mask.visible, mask.origin, of, begin, end);
  if (table.empty()) return TileVisibility::none;
  if (!table.together()) return TileVisibility::partial;
  const bool seen = *table.corner;
  for (Index r = 0; r < table.rows; ++r)
    if (*table.row(r) != seen || !table.same(r)) return TileVisibility::partial;
  return seen ? TileVisibility::full : TileVisibility::none;
}
template <class X, class Y>
requires(contains_table<And<X, Y>>) TileVisibility
    tile_on_host(const And<X, Y>& mask, const TileQueries& of, Index begin, Index end) {
  const TileVisibility x = tile_on_host(mask.a, of, begin, end);
  return x == TileVisibility::none ? x : std::min(x, tile_on_host(mask.b, of, begin, end));
}
template <class X, class Y>
requires(contains_table<Or<X, Y>>) TileVisibility
    tile_on_host(const Or<X, Y>& mask, const TileQueries& of, Index begin, Index end) {
  const TileVisibility x = tile_on_host(mask.a, of, begin, end);
  return x == TileVisibility::full ? x : std::max(x, tile_on_host(mask.b, of, begin, end));
}
template <class X>
requires(contains_table<X>) TileVisibility
    tile_on_host(const Not<X>& mask, const TileQueries& of, Index begin, Index end) {
  const TileVisibility x = tile_on_host(mask.a, of, begin, end);
  return x == TileVisibility::none ? TileVisibility::full : x == TileVisibility::full ? TileVisibility::none : x;
}

// ---- tables of numbers ----

/// Whether the last of the scores is a table of numbers that have an infinity, which hides a pair whose number is −∞,
/// whatever its logit; and that table.
template <class S> struct LastTable { static constexpr bool exists = false; };
template <class B> struct LastTable<AdditiveBias<B>> {
  static constexpr bool exists = std::numeric_limits<Accumulator<B>>::has_infinity;
  static const AdditiveBias<B>& of(const AdditiveBias<B>& score) { return score; }
};
template <class X, class Y> struct LastTable<Chain<X, Y>> {
  static constexpr bool exists = LastTable<Y>::exists;
  static const auto& of(const Chain<X, Y>& score) { return LastTable<Y>::of(score.second); }
};

/// Whether all numbers of a table for queries × keys [begin, end) are −∞. Most often the first one tells that they are
/// not.
template <class B> bool hides_all(const AdditiveBias<B>& score, const TileQueries& of, Index begin, Index end) {
  using A = Accumulator<B>;
  const TableTile<B> table(score.bias, score.origin, of, begin, end);
  if (table.empty()) return true;
  const auto hides = [](const B& number) { return static_cast<A>(number) == minus_infinity<A>(); };
  for (Index r = 0; r < table.rows; ++r) {
    if (!hides(*table.row(r)) || (table.together() && !table.same(r))) return false;
    for (Index k = 1; !table.together() && k < table.columns; ++k)
      if (!hides(table.row(r)[k * table.by_column])) return false;
  }
  return true;
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
