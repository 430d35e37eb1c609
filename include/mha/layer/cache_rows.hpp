// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../core/scalar.hpp"
#include "../core/stored_row.hpp"
#include "../core/view.hpp"

/// Work on the rows of a cache's memory, for whatever machine the memory is of: by pieces, so that the threads of a
/// device, one an item, read and write memory side by side, and on the host by whole rows.
namespace mha::inline MHA_NAMESPACE::detail {

/// Elements that a thread moves at once: 16 bytes of the wider scalar, or 1 of a type that is not moved as bytes or
/// whose size is no power of two.
template <class T, class F>
inline constexpr Index piece_elements =
    std::is_trivially_copyable_v<T>&& std::is_trivially_copyable_v<F>&& std::has_single_bit(sizeof(T)) &&
            std::has_single_bit(sizeof(F))
        ? std::max<Index>(1, 16 / static_cast<Index>(std::max(sizeof(T), sizeof(F))))
        : 1;

template <class T, Index n> struct alignas(sizeof(T) * std::size_t(n)) Piece { T x[std::size_t(n)]; };

/// Whether every row along the last axis is contiguous and begins and ends at a multiple of n elements' size. Rows of
/// no elements, such as values that are not stored, do.
template <class T, int Rank> bool in_pieces(const TensorView<T, Rank>& v, Index n) {
  if (v.extent[Rank - 1] == 0) return true;
  bool fits = reinterpret_cast<std::uintptr_t>(v.data) % (sizeof(T) * static_cast<std::size_t>(n)) == 0 &&
              v.extent[Rank - 1] % n == 0 && (v.stride[Rank - 1] == 1 || v.extent[Rank - 1] <= 1);
  for (int a = 0; a + 1 < Rank; ++a) fits = fits && (v.extent[a] <= 1 || v.stride[a] % n == 0);
  return fits;
}

template <class T, class F> MHA_HOST_DEVICE F stored(const T& x) {
  if constexpr (std::same_as<T, F>)
    return x;
  else
    return F(Accumulator<F>(x));
}

/// n elements from `from` on, `piece` of which are moved at once: piece number i of them.
template <class T, class F>
MHA_HOST_DEVICE void move_piece(const T* from, std::ptrdiff_t step, F* to, Index i, Index piece) {
  constexpr Index n = piece_elements<T, F>;
  if constexpr (n > 1) {
    if (piece == n) {
      const auto read = *reinterpret_cast<const Piece<T, n>*>(from + i * n);
      Piece<F, n> written;
      for (Index e = 0; e < n; ++e) written.x[e] = stored<T, F>(read.x[e]);
      *reinterpret_cast<Piece<F, n>*>(to + i * n) = written;
      return;
    }
  }
  to[i] = stored<T, F>(from[i * step]);
}
/// A row of numbers, or of the same elements, with what leads it.
template <class T, class F> void move_row(const T* from, std::ptrdiff_t step, F* to, Index n) {
  if constexpr (std::same_as<F, scaled_int8> && !std::same_as<T, F>) {
    if (n > 0) quantize_row(from, n, to + row_lead<F>, step);
  } else {
    if constexpr (std::same_as<T, F>)
      if (step == 1) return static_cast<void>(std::copy_n(from, n, to));
    for (Index i = 0; i < n; ++i) to[i] = stored<T, F>(from[i * step]);
  }
}

/// Writes keys and values from rows to rows, converted: Items, whose rows are those of the heads, row after row, and
/// whose columns are the pieces of a key and then of its value. See move_rows().
template <class T, class F> struct MoveRows {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const T, 4> key, value;
  TensorView<F, 3> to_key, to_value;
  const Index *from_row, *to_row;
  Index key_pieces;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t item, Index column) const {
    const Ends e = ends(item);
    if (column < key_pieces)
      move_piece(at(key, e), key.stride[3], to_key.pointer(e.to, e.head, 0), column, cost);
    else
      move_piece(at(value, e), value.stride[3], to_value.pointer(e.to, e.head, 0), column - key_pieces, cost);
  }
  void run_rows(std::ptrdiff_t begin, std::ptrdiff_t end) const {
    const MoveRows local = *this;  // what is written cannot change it
    for (std::ptrdiff_t item = begin; item < end; ++item) {
      const Ends e = local.ends(item);
      move_row(at(local.key, e), local.key.stride[3], local.to_key.pointer(e.to, e.head, 0), local.key.dim());
      if (local.value.dim() > 0)  // else its data may be null
        move_row(at(local.value, e), local.value.stride[3], local.to_value.pointer(e.to, e.head, 0), local.value.dim());
    }
  }

 private:
  struct Ends {
    std::ptrdiff_t from;
    Index to, head;
  };
  MHA_HOST_DEVICE Ends ends(std::ptrdiff_t item) const {
    const std::ptrdiff_t row = item / key.heads();
    return {from_row != nullptr ? from_row[row] : row, to_row != nullptr ? to_row[row] : static_cast<Index>(row),
            static_cast<Index>(item - row * key.heads())};
  }
  /// Either may have its rows in one sequence or in several.
  MHA_HOST_DEVICE static const T* at(const TensorView<const T, 4>& v, const Ends& e) {
    return v.batch() == 1 ? v.pointer(0, e.from, e.head, 0)
                          : v.pointer(e.from / v.length(), e.from % v.length(), e.head, 0);
  }
};

/// Row i of `rows` goes from row from_row[i] to row to_row[i]; null stands for i itself.
///
/// Shapes    key (B, n, Hkv, D)  value (B, n, Hkv, Dv), either as (1, B·n, Hkv, ·) too; Dv may be 0
///           to_key (R, Hkv, D)  to_value (R, Hkv, Dv), of scaled_int8 row_elements() of them; from and to the same
///           scaled_int8 both have as many
template <class T, class F>
MoveRows<T, F> move_rows(std::ptrdiff_t rows, const TensorView<const T, 4>& key, const TensorView<const T, 4>& value,
                         const TensorView<F, 3>& to_key, const TensorView<F, 3>& to_value, const Index* from_row,
                         const Index* to_row) {
  constexpr Index n = piece_elements<T, F>;
  const bool whole = in_pieces(key, n) && in_pieces(value, n) && in_pieces(to_key, n) && in_pieces(to_value, n);
  const Index piece = whole ? n : 1, key_pieces = key.dim() / piece;
  return {rows * key.heads(), key_pieces + value.dim() / piece, piece, key, value, to_key, to_value, from_row, to_row,
          key_pieces};
}

/// Copies rows of every layer and head to others: Items as those of MoveRows, `count` rows of a head before the next
/// head's. See copy_rows().
template <class F> struct CopyRows {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<F, 5> key, value;
  Index from, to, count, key_pieces;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t item, Index column) const {
    const bool of_key = column < key_pieces;
    const TensorView<F, 5>& v = of_key ? key : value;
    const std::ptrdiff_t head = item / count, row = item - head * count;
    F* const of_head = v.data + head * v.stride[1];
    move_piece<F, F>(of_head + (from + row) * v.stride[3], 1, of_head + (to + row) * v.stride[3],
                     of_key ? column : column - key_pieces, cost);
  }
  void run_rows(std::ptrdiff_t begin, std::ptrdiff_t end) const {
    for (std::ptrdiff_t at = begin, next = 0; at < end; at = next) {
      const std::ptrdiff_t head = at / count, row = at - head * count;
      next = std::min(end, (head + 1) * count);
      for (const TensorView<F, 5>* const v : {&key, &value}) {
        if (v->extent[4] == 0) continue;
        F* const of_head = v->data + head * v->stride[1];
        std::copy_n(of_head + (from + row) * v->stride[3], (next - at) * v->extent[4],
                    of_head + (to + row) * v->stride[3]);
      }
    }
  }
};

/// Rows [from, from + count) to rows [to, to + count), which are others.
///
/// Shapes    key (layers, Hkv, blocks, rows, D)  value (layers, Hkv, blocks, rows, Dv), contiguous; Dv may be 0
template <class F>
CopyRows<F> copy_rows(Index count, const TensorView<F, 5>& key, const TensorView<F, 5>& value, Index from, Index to) {
  constexpr Index n = piece_elements<F, F>;
  const Index piece = in_pieces(key, n) && in_pieces(value, n) ? n : 1, key_pieces = key.extent[4] / piece;
  return {std::ptrdiff_t{key.extent[0]} * key.extent[1] * count,
          key_pieces + value.extent[4] / piece,
          piece,
          key,
          value,
          from,
          to,
          count,
          key_pieces};
}

}  // namespace mha::inline MHA_NAMESPACE::detail
