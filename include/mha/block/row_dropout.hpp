// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <type_traits>

#include "../backend/backend.hpp"
#include "../call.hpp"
#include "../core/check.hpp"
#include "../core/copy.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../policy/dropout.hpp"
#include "rows.hpp"

/// Dropout of the results of a Linear or a FeedForward.
namespace mha::inline MHA_NAMESPACE::detail {

/// to = from with what is dropped 0 and the others scaled, + residual: a row each.
///
/// Shapes    (B, L, E), residual null data for none; to may be from or residual
/// Numerics  element (b, l, j) is dropped as the weight of key j is for query l of the only head of sequence b
template <class T> struct RowDropItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  DropoutDraws draws;
  TensorView<const T, 3> from, residual;
  TensorView<T, 3> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index) const {
    const Index b = static_cast<Index>(row / from.extent[1]), l = static_cast<Index>(row % from.extent[1]);
    Index j = 0;
    for (; j + 4 <= from.extent[2]; j += 4) {  // whose random numbers are made together
      const PhiloxWords four = draws.words(static_cast<std::uint32_t>(b), l, j / 4);
      put(b, l, j, four.word[0] >= draws.threshold);
      put(b, l, j + 1, four.word[1] >= draws.threshold);
      put(b, l, j + 2, four.word[2] >= draws.threshold);
      put(b, l, j + 3, four.word[3] >= draws.threshold);
    }
    for (; j < from.extent[2]; ++j) put(b, l, j, draws.factor(static_cast<std::uint32_t>(b), l, j) != 0);
  }

 private:
  MHA_HOST_DEVICE void put(Index b, Index l, Index j, bool keeps) const {
    using A = Accumulator<T>;
    A y = keeps ? A(A(from(b, l, j)) * A(draws.scale)) : A(0);
    if (residual.data != nullptr) y += A(residual(b, l, j));
    to(b, l, j) = T(y);
  }
};
template <class T>
RowDropItems<T> row_drop_items(const DropoutDraws& draws, const TensorView<const T, 3>& from,
                               const TensorView<const T, 3>& residual, const TensorView<T, 3>& to) {
  constexpr Index cost = 8;  // of a random number, in numbers read
  return {std::ptrdiff_t{to.extent[0]} * to.extent[1],
          1,
          static_cast<Index>(std::min<std::ptrdiff_t>(std::ptrdiff_t{cost} * to.extent[2], 1 << 28)),
          draws,
          from,
          residual,
          to};
}

/// The Dropout among a constructor's values.
inline std::optional<Dropout> given_dropout() { return {}; }
template <class V, class... Rest> std::optional<Dropout> given_dropout(const V& first, const Rest&... rest) {
  if constexpr (std::is_same_v<V, Dropout>) {
    require_probability("dropout", probability(first));
    return first;
  } else {
    return given_dropout(rest...);
  }
}

/// A line of explain(), none without Dropout.
inline std::string dropout_in_words(const std::optional<Dropout>& dropout) {
  if (!dropout) return {};
  char p[16];
  std::snprintf(p, sizeof p, "%g", probability(*dropout));
  return std::string("dropout:     ") + p + " in calls with a DropoutSeed, in a pass of its own\n";
}

/// The draws of a call with these arguments; none without a DropoutSeed.
template <class... Extra>
DropoutDraws draws_of(const char* call, const std::optional<Dropout>& dropout, const Extra&... extra) {
  std::optional<DropoutSeed> seed;
  [[maybe_unused]] const auto look = [&](const auto& e) {
    if constexpr (DropoutSeedArgument<decltype(e)>) seed = e;
  };
  (look(extra), ...);
  require(!seed || dropout, call, ": a DropoutSeed is given, expected a Dropout{.p} in the constructor too");
  return dropout ? dropout_draws(probability(*dropout), seed) : DropoutDraws{};
}

/// run(y, residual) where nothing is dropped, else run(rows, none) into rows that y is made from.
template <class B, class T, class Run>
void run_dropped(const DropoutDraws& draws, const TensorView<T, 3>& y, const TensorView<const T, 3>& residual,
                 const ItemsOn<B>& items, const Run& run) {
  if (!draws.exist()) return run(y, residual);
  auto frame = items.workspace.frame();
  const TensorView<T, 3> rows = take_like<T>(frame, y);
  run(rows, TensorView<const T, 3>{});
  TensorView<const T, 3> added = residual;
  if (residual.data != nullptr && may_overlap(residual, y) && !same_view(residual, TensorView<const T, 3>(y))) {
    const auto copy = take_like<T>(frame, residual);
    items(copy_items(residual, copy));
    added = copy;
  }
  items(row_drop_items<T>(draws, rows, added, y));
}

/// The gradient of what was dropped, from that of the result: dy itself where nothing is dropped.
template <class B, class T, class Frame>
TensorView<const T, 3> dropped_gradient(const DropoutDraws& draws, const TensorView<const T, 3>& dy, Frame& frame,
                                        const ItemsOn<B>& items) {
  if (!draws.exist() || dy.size() == 0) return dy;
  const TensorView<T, 3> d = take_like<T>(frame, dy);
  items(row_drop_items<T>(draws, dy, TensorView<const T, 3>{}, d));
  return d;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
