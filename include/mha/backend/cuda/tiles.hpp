// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../policy/mask.hpp"
#include "machine.hpp"

/// The index arithmetic of tensor-core bodies: where elements lie in shared memory and in registers, and which key
/// tiles a row tile meets.
namespace mha::inline MHA_NAMESPACE::cuda {

/// Rows of Columns 2-byte elements in shared memory, in chunks of 16 bytes that are permuted within groups, so that
/// eight consecutive rows of one column of chunks lie in different banks.
///
/// Shapes    row r at r · bytes; chunk c of it in place c ^ key(r), which exchanges chunks of one group only
template <int Columns> struct SharedRows {
  static_assert(Columns % 32 == 0);
  static constexpr int chunks = Columns / 8;
  static constexpr Shared bytes = Columns * 2;
  static constexpr int group = chunks % 8 == 0 ? 8 : 4;

  MHA_KERNEL static constexpr int key(int row) { return group == 8 ? row & 7 : row >> 1 & 3; }
  /// Where chunk c of a row begins.
  MHA_KERNEL static constexpr Shared address(Shared rows, int row, int c) {
    return rows + row * bytes + (c ^ key(row)) * 16;
  }
  /// From address(rows, row, c) to address(rows, row, c + x), if c + x = c ^ x: for c = 0 or 1 and even x, or x a
  /// multiple of `group`.
  MHA_KERNEL static constexpr Shared beside(Shared at, int x) {
    return (at ^ (x % group) * 16) + (x / group * group) * 16;
  }
};

/// The same for the products of warpgroups: panels of 64 columns, each of `Rows` rows of 128 bytes.
///
/// Shapes    row r of panel p at p · panel_bytes + r · bytes; its chunk c, of 8, in place c ^ key(r)
template <int Columns, int Rows> struct SharedPanels {
  static_assert(Columns % 64 == 0 && Rows % 8 == 0);
  static constexpr int chunks = Columns / 8, group = 8;
  static constexpr Shared bytes = 128, panel_bytes = Rows * bytes, all_bytes = Columns / 64 * panel_bytes;

  MHA_KERNEL static constexpr int key(int row) { return row & 7; }
  MHA_KERNEL static constexpr Shared address(Shared rows, int row, int c) {
    return rows + c / group * panel_bytes + row * bytes + (c % group ^ key(row)) * 16;
  }
  MHA_KERNEL static constexpr Shared beside(Shared at, int x) {
    return (at ^ (x % group) * 16) + x / group * panel_bytes;
  }
};

/// Who holds what of the operands of mma.m16n8k16, by lane. Shifts, because the compiler does not know that no lane is
/// negative.
struct Lanes {
  /// Of an accumulator (16, 8), element e: two rows of two columns.
  MHA_KERNEL static constexpr int row(int lane, int e) { return (lane >> 2) + e / 2 * 8; }
  MHA_KERNEL static constexpr int column(int lane, int e) { return (lane & 3) * 2 + e % 2; }

  // Which row and chunk a lane names to ldmatrix_x4.
  /// For the A operand, (16 rows, 16 deep), and transposed for a B operand, (16 deep, 16 columns), read by rows.
  MHA_KERNEL static constexpr int a_row(int lane) { return lane & 15; }
  MHA_KERNEL static constexpr int a_chunk(int lane) { return lane >> 4; }
  /// For two B operands side by side that are read by columns, (16 columns, 16 deep).
  MHA_KERNEL static constexpr int b_row(int lane) { return (lane & 7) + (lane >> 4) * 8; }
  MHA_KERNEL static constexpr int b_chunk(int lane) { return lane >> 3 & 1; }
};

/// A tile of keys to be taken, and whether its pairs must be looked at one by one.
struct KeyTile {
  Index index = -1;  ///< negative: there is none
  bool partial = false;

  MHA_KERNEL explicit constexpr operator bool() const { return index >= 0; }
};

/// The tiles of `Keys` keys that a row tile meets, the last one first: those that the mask hides are left out. A
/// tile that reaches past the last key is partial.
///
/// visibility(key_begin, key_end) → TileVisibility, of keys inside the call. It is asked of whole ranges too, so that a
/// long hidden stretch costs the logarithm of its length.
template <int Keys, class Visibility> class KeyTiles {
 public:
  MHA_KERNEL constexpr KeyTiles(Index keys, Visibility visibility) : keys_(keys), visibility_(visibility) {}

  MHA_KERNEL constexpr KeyTile first() const { return from(keys_ > 0 ? (keys_ - 1) / Keys : -1); }
  MHA_KERNEL constexpr KeyTile after(KeyTile tile) const { return from(tile.index - 1); }

  /// What is to be seen of tiles first … last.
  MHA_KERNEL constexpr TileVisibility of(Index first, Index last) const {
    const Index begin = first * Keys, end = (last + 1) * Keys;
    if (end <= keys_) return visibility_(begin, end);
    const TileVisibility seen = visibility_(begin, keys_);
    return seen == TileVisibility::full ? TileVisibility::partial : seen;
  }

 private:
  MHA_KERNEL constexpr KeyTile from(Index t) const {
    while (t >= 0) {
      const TileVisibility seen = of(t, t);
      if (seen != TileVisibility::none) return {t, seen == TileVisibility::partial};
      Index n = 1;
      while (t + 1 >= 2 * n && of(t + 1 - 2 * n, t) == TileVisibility::none) n *= 2;
      t -= n;
    }
    return {};
  }

  Index keys_;
  Visibility visibility_;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
