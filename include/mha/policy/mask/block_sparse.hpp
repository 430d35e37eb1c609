// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../../core/borrowed.hpp"
#include "../../core/check.hpp"
#include "../mask.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// Division of positions by a number that stays: one multiplication each.
///
/// Formula   n / d = ⌊n · ⌈2^(31 + s) / d⌉ / 2^(31 + s)⌋ with s = ⌈log2 d⌉, for every n in [0, 2³¹)
/// Source    Granlund and Montgomery 1994, theorem 4.2
struct Divisor {
  std::uint64_t multiplier = 0;
  int shift = 31;

  MHA_HOST_DEVICE constexpr explicit Divisor(Index d) {
    const std::uint64_t by = d > 0 ? static_cast<std::uint64_t>(d) : 1;
    while ((std::uint64_t{1} << (shift - 31)) < by) ++shift;
    multiplier = ((std::uint64_t{1} << shift) + by - 1) / by;
  }
  MHA_HOST_DEVICE constexpr Index quotient(Index n) const {
    return static_cast<Index>(static_cast<std::uint64_t>(n) * multiplier >> shift);
  }
};

}  // namespace detail

/// A map of square blocks of positions: pair (q, k) is visible if bit (q / block, k / block) of its head is set.
///
/// Shapes    map (H, Nq, Nk), or (Nq, Nk) for all heads; row-major, non-zero = visible, N = ⌈positions / block⌉
/// Cost      a tile is classified by the few elements it touches
/// Errors    ShapeError if block is not positive, the map does not have H·Nq·Nk or Nq·Nk elements, or a query or a
///           key lies beyond the map
struct BlockSparseView {
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "BlockSparse";
  static constexpr bool borrows = true;
  Required<Index, "BlockSparse: block"> block;
  Required<Index, "BlockSparse: query_blocks"> query_blocks;  ///< Nq
  Required<Index, "BlockSparse: key_blocks"> key_blocks;      ///< Nk
  Borrowed<std::uint8_t> map;
  std::ptrdiff_t head_stride = 0;  ///< set by prepared()
  detail::Divisor by_block{block.value};

  MHA_HOST_DEVICE constexpr bool operator()(Index, Index h, Index q, Index k) const {
    return q >= 0 && bit(h, by_block.quotient(q), by_block.quotient(k));
  }
  MHA_HOST_DEVICE constexpr TileVisibility tile(Index, Index h, Index q_begin, Index q_end, Index k_begin,
                                                Index k_end) const {
    if (q_end <= 0) return TileVisibility::none;
    bool any = false, all = q_begin >= 0;
    const Index last_i = by_block.quotient(q_end - 1), last_j = by_block.quotient(k_end - 1);
    for (Index i = by_block.quotient(q_begin > 0 ? q_begin : 0); i <= last_i; ++i)
      for (Index j = by_block.quotient(k_begin); j <= last_j; ++j) {
        any = any || bit(h, i, j);
        all = all && bit(h, i, j);
        if (any && !all) return TileVisibility::partial;
      }
    return all ? TileVisibility::full : TileVisibility::none;
  }
  void check(Index heads) const {
    detail::require(block.value > 0, "BlockSparse: block is ", block.value, ", it must be at least 1");
    detail::require(query_blocks.value >= 0 && key_blocks.value >= 0, "BlockSparse: the map has ", query_blocks.value,
                    " x ", key_blocks.value, " blocks, both numbers must be at least 0");
    detail::checked_product("BlockSparse", "the map", {heads, query_blocks.value, key_blocks.value});
    const std::int64_t one = map_of_a_head(), all = one * heads;
    detail::require(map.size == one || map.size == all, "BlockSparse: the map has ", map.size, " elements for ",
                    query_blocks.value, " x ", key_blocks.value, " blocks and ", heads, " heads: give ", one, " or ",
                    all);
    detail::require(map.data != nullptr || map.size == 0, "BlockSparse: the data of ", map.size, " elements is null");
  }
  BlockSparseView prepared(const CallShape& s) const {
    check(s.heads);
    detail::require(std::int64_t{key_blocks.value} * block.value >= s.keys, "BlockSparse: the map covers ",
                    key_blocks.value, " blocks of ", block.value, " keys but the call has ", s.keys, " keys");
    for (Index b = 0; b < s.batch; ++b)
      detail::require(std::int64_t{query_blocks.value} * block.value >= s.queries_end(b),
                      "BlockSparse: the map covers ", query_blocks.value, " blocks of ", block.value,
                      " queries but the last query is at position ", s.queries_end(b) - 1);
    BlockSparseView ready = *this;
    ready.by_block = detail::Divisor(block.value);  // the block may have been set since
    const std::int64_t one = map_of_a_head();
    ready.head_stride = map.size == one ? 0 : static_cast<std::ptrdiff_t>(one);
    return ready;
  }
  template <class F> BlockSparseView with_data(F&& f) const {
    BlockSparseView moved = *this;
    moved.map = f(map);
    return moved;
  }

 private:
  std::int64_t map_of_a_head() const { return std::int64_t{query_blocks.value} * key_blocks.value; }
  MHA_HOST_DEVICE constexpr bool bit(Index h, Index i, Index j) const {
    return map.data[h * head_stride + std::ptrdiff_t{i} * key_blocks.value + j] != 0;
  }
};

/// BlockSparseView that owns its map, so that a layer can hold it. Copies share the map.
///
///   mha::BlockSparse({.block = 64, .query_blocks = 8, .key_blocks = 8}, map)
class BlockSparse {
 public:
  static constexpr Role role = Role::mask;
  static constexpr const char* name = "BlockSparse";

  struct Blocks {
    Required<Index, "BlockSparse: block"> block;
    Required<Index, "BlockSparse: query_blocks"> query_blocks;  ///< Nq
    Required<Index, "BlockSparse: key_blocks"> key_blocks;      ///< Nk
  };

  BlockSparse(const Blocks& blocks, std::vector<std::uint8_t> map)
      : map_(std::make_shared<const std::vector<std::uint8_t>>(std::move(map))),
        view_{blocks.block, blocks.query_blocks, blocks.key_blocks, Borrowed<std::uint8_t>(*map_)} {}

  bool operator()(Index b, Index h, Index q, Index k) const { return view_(b, h, q, k); }
  TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin, Index k_end) const {
    return view_.tile(b, h, q_begin, q_end, k_begin, k_end);
  }
  /// The same mask, pointing at this one's map.
  const BlockSparseView& view() const { return view_; }
  void check(Index heads) const { view_.check(heads); }
  /// What a kernel gets is the view; this mask, in the layer or at the caller's, holds the map during the call.
  BlockSparseView prepared(const CallShape& s) const { return view_.prepared(s); }

 private:
  std::shared_ptr<const std::vector<std::uint8_t>> map_;
  BlockSparseView view_;
};

}  // namespace mha::inline MHA_NAMESPACE
