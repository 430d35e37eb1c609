// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "items.hpp"
#include "scalar.hpp"
#include "view.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// to = from, element by element, whatever the strides: Items whose rows are those of the last axis.
///
/// On the host blocks go through a buffer where an element's neighbours along the rows are nearer in memory than those
/// along the columns, as in a column-major matrix: each line of the caches is then read and written once.
template <class T> struct CopyElements {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const T, 4> from;
  TensorView<T, 4> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const {
    const std::ptrdiff_t c = row % from.extent[2], rest = row / from.extent[2];
    const std::ptrdiff_t a = rest / from.extent[1], b = rest % from.extent[1];
    to(a, b, c, column) = from(a, b, c, column);
  }

  void run_rows(std::ptrdiff_t begin, std::ptrdiff_t end) const {
    const bool in_blocks = std::is_trivially_copyable_v<T> && (turns(from) || turns(to));
    for (std::ptrdiff_t row = begin, n; row < end; row += n) {
      const std::ptrdiff_t c = row % from.extent[2], rest = row / from.extent[2];
      const std::ptrdiff_t a = rest / from.extent[1], b = rest % from.extent[1];
      n = in_blocks ? std::min({std::ptrdiff_t{side}, end - row, from.extent[2] - c}) : 1;
      if constexpr (std::is_trivially_copyable_v<T>)
        if (in_blocks) {
          for (Index d = 0; d < columns; d += side)
            copy_block(from.pointer(a, b, c, d), to.pointer(a, b, c, d), n, std::min(side, columns - d));
          continue;
        }
      const T* x = from.pointer(a, b, c, 0);
      T* y = to.pointer(a, b, c, 0);
      for (Index d = 0; d < columns; ++d) y[d * to.stride[3]] = x[d * from.stride[3]];
    }
  }

 private:
  static constexpr Index side = sizeof(T) <= 4 ? 64 : 32;

  template <class View> static bool turns(const View& v) { return std::abs(v.stride[2]) < std::abs(v.stride[3]); }

  /// An n × m block: in lines as one view has them, out in lines of the other.
  void copy_block(const T* x, T* y, std::ptrdiff_t n, std::ptrdiff_t m) const {
    const bool turned = turns(from);
    const std::ptrdiff_t lines = turned ? m : n, length = turned ? n : m;
    const std::ptrdiff_t line = from.stride[turned ? 3 : 2], step = from.stride[turned ? 2 : 3];
    if (turned == turns(to)) {
      for (std::ptrdiff_t i = 0; i < lines; ++i)
        copy_line(x + i * line, step, y + i * to.stride[turned ? 3 : 2], to.stride[turned ? 2 : 3], length);
      return;
    }
    T block[std::size_t{side}][std::size_t{side}];
    for (std::ptrdiff_t i = 0; i < lines; ++i) copy_line(x + i * line, step, block[i], 1, length);
    const std::ptrdiff_t to_line = to.stride[turned ? 2 : 3], to_step = to.stride[turned ? 3 : 2];
    for (std::ptrdiff_t j = 0; j < length; ++j, y += to_line)
      if (to_step == 1)
        for (std::ptrdiff_t i = 0; i < lines; ++i) y[i] = block[i][j];
      else
        for (std::ptrdiff_t i = 0; i < lines; ++i) y[i * to_step] = block[i][j];
  }

  static void copy_line(const T* x, std::ptrdiff_t x_step, T* y, std::ptrdiff_t y_step, std::ptrdiff_t n) {
    if (x_step == 1 && y_step == 1)
      std::memcpy(static_cast<void*>(y), x, static_cast<std::size_t>(n) * sizeof(T));
    else
      for (std::ptrdiff_t i = 0; i < n; ++i) y[i * y_step] = x[i * x_step];
  }
};

/// Two views of the same extents, the axes of extent 1 in front, so that rows which follow each other are neighbours.
template <class T> void squeeze(TensorView<const T, 4>& from, TensorView<T, 4>& to) {
  for (int round = 0; round < 2; ++round)
    for (int a = 2; a > 0; --a)
      if (from.extent[a] == 1) {
        std::swap(from.extent[a], from.extent[a - 1]);
        std::swap(from.stride[a], from.stride[a - 1]);
        std::swap(to.extent[a], to.extent[a - 1]);
        std::swap(to.stride[a], to.stride[a - 1]);
      }
}

/// Row-major memory of a frame with the extents of v.
template <class T, class View, class Frame> TensorView<T, View::rank> take_like(Frame& frame, const View& v) {
  auto like = row_major<View::rank>(static_cast<T*>(nullptr), v.extent);
  like.data = frame.template take<T>(static_cast<std::size_t>(like.size()));
  return like;
}

/// The items that copy `from` to `to`, which has the same extents.
template <class T, int Rank>
CopyElements<T> copy_items(const TensorView<const T, Rank>& from, const TensorView<T, Rank>& to) {
  auto source = four_axes(from);
  auto target = four_axes(to);
  squeeze(source, target);
  return {std::ptrdiff_t{source.extent[0]} * source.extent[1] * source.extent[2], source.extent[3], 1, source, target};
}

/// to = from in another scalar, or to += from.
///
/// Shapes    (M, N)
template <class From, class To, bool adds = false> struct ConvertItems {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const From, 2> from;
  TensorView<To, 2> to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t i, Index j) const { put(from(i, j), to(i, j)); }

  void run_rows(std::ptrdiff_t begin, std::ptrdiff_t end) const {
    const bool in_rows = from.stride[1] == 1 && to.stride[1] == 1;
    // Of a transposed matrix so many rows at a time that each line of the caches is read once.
    const std::ptrdiff_t block = std::abs(from.stride[0]) < std::abs(from.stride[1]) ? 16 : 1;
    for (std::ptrdiff_t i = begin, n; i < end; i += n) {
      n = std::min(block, end - i);
      const From* const x = from.data + i * from.stride[0];
      To* const y = to.data + i * to.stride[0];
      if (in_rows && n == 1)
        for (Index j = 0; j < columns; ++j) put(x[j], y[j]);
      else
        for (Index j = 0; j < columns; ++j)
          for (std::ptrdiff_t r = 0; r < n; ++r)
            put(x[r * from.stride[0] + j * from.stride[1]], y[r * to.stride[0] + j * to.stride[1]]);
    }
  }

 private:
  MHA_HOST_DEVICE static void put(const From& x, To& y) {
    using A = Accumulator<To>;
    if constexpr (adds)
      y = To(A(y) + A(x));
    else
      y = To(A(x));
  }
};
template <bool adds, class From, class To>
ConvertItems<From, To, adds> convert_items(const TensorView<const From, 2>& from, const TensorView<To, 2>& to) {
  return {to.extent[0], to.extent[1], 1, from, to};
}

/// Elements one after another that become 0.
template <class T> struct ZeroElements {
  std::ptrdiff_t rows;
  Index columns, cost;
  T* to;
  MHA_HOST_DEVICE void operator()(std::ptrdiff_t i, Index) const { to[i] = T(0); }
};
template <class T> ZeroElements<T> zero_items(T* to, std::ptrdiff_t n) { return {n, 1, 1, to}; }

}  // namespace mha::inline MHA_NAMESPACE::detail
