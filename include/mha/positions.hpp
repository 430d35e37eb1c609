// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "backend/backend.hpp"
#include "config.hpp"
#include "core/borrowed.hpp"
#include "core/check.hpp"
#include "core/view.hpp"
#include "policy/call_shape.hpp"
#include "policy/position.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The position of each row of x, for a layer with Rotary or another policy of positions: its query is turned to it,
/// and so is the key that is made from the row. For rows that are not one after another, such as a tree of drafts: the
/// nodes of one depth stand at one position, in rows of their own. Masks and scores count rows, as without.
///
/// Shapes    rows (B·L) in the order of x, (ΣL) of a Ragged or a step, on the host
struct Positions {
  Borrowed<Index> rows;
};

namespace detail {

template <class E>
concept PositionsArgument = std::same_as<std::remove_cvref_t<E>, Positions>;

/// Checks that there is one for each row of x.
inline void require_row_positions(const Borrowed<Index>& of, Index batch, Index length) {
  require(of.memory == Memory::host, "layer: Positions are in device memory, they are read and checked on the host");
  const std::int64_t rows = std::int64_t{batch} * length;
  require(of.size == rows, "layer: Positions has ", of.size, " numbers, but x has ", rows, " rows");
  require(of.data != nullptr || rows == 0, "layer: the data of Positions' ", rows, " numbers is null");
  for (Index i = 0; i < of.size; ++i)
    require(of[i] >= -longest_axis && of[i] < longest_axis, "layer: Positions puts row ", i, " at ", of[i],
            ", the limits are ", -longest_axis, " and ", longest_axis - 1);
}

inline const Positions& given_positions(const Positions& found, const auto&...) { return found; }
template <class Other, class... Rest> const Positions& given_positions(const Other&, const Rest&... rest) {
  return given_positions(rest...);
}
/// The positions of the rows of x among a call's arguments, checked; null data if there are none.
template <class Position, class T, class... Extra>
Borrowed<Index> find_row_positions([[maybe_unused]] const TensorView<const T, 3>& x, const Extra&... extra) {
  if constexpr ((PositionsArgument<Extra> || ...)) {
    static_assert(
        !std::same_as<Position, NoPosition>,
        "mha: Positions for a layer whose type names no policy of positions, such as mha::Rotary<>: masks and "
        "scores count rows (see mha/positions.hpp)");
    const Borrowed<Index>& of_rows = given_positions(extra...).rows;
    require_row_positions(of_rows, x.extent[0], x.extent[1]);
    return of_rows;
  } else {
    return {};
  }
}

/// Of lists none of which is in the memory of the backend's machine already.
struct NothingSent {
  const Index* operator()(const Index*) const { return nullptr; }
};

/// Where rows stand, as the backend's machine reads it: where sent(list) says, or, if that is null, in a copy for this
/// call. Lists are taken from the frame.
template <class B, class Frame, class Sent = NothingSent>
RowPositions staged_positions(RowPositions at, [[maybe_unused]] const B& backend, [[maybe_unused]] Frame& frame,
                              [[maybe_unused]] typename B::Workspace& workspace,
                              [[maybe_unused]] const Sent& sent = {}) {
  if constexpr (!computes_on_host<B>) {
    const auto there = [&](const Index* here, Index n) {
      const Index* const known = here != nullptr ? sent(here) : nullptr;
      return here == nullptr || known != nullptr ? known : backend.stage(here, n, frame, workspace);
    };
    at.first.each = there(at.first.each, at.sequences);
    at.offsets = there(at.offsets, at.sequences + 1);
  }
  return at;
}

/// Rows at positions of their own: each is then a sequence of its own.
template <class B, class Frame>
RowPositions each_row_at(const Borrowed<Index>& positions, const B& backend, Frame& frame,
                         typename B::Workspace& workspace) {
  const std::size_t rows = static_cast<std::size_t>(positions.size);
  Index* const each = frame.template take_host<Index>(rows + 1);
  std::iota(each, each + rows + 1, Index{0});
  return staged_positions(RowPositions{Origins(positions.data), each, positions.size, 1}, backend, frame, workspace);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
