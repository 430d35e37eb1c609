// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "config.hpp"
#include "core/borrowed.hpp"
#include "core/check.hpp"

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

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
