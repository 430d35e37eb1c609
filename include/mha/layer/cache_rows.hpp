// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>

#include "../core/scalar.hpp"
#include "../core/view.hpp"

/// Work on the rows of a cache's memory, for whatever machine the memory is of.
namespace mha::inline MHA_NAMESPACE::detail {

/// Writes keys and values from rows to rows, converted: Items. Row i of `rows` goes from row from_row[i] to row
/// to_row[i]; null stands for i itself.
///
/// Shapes    key (B, n, Hkv, D)  value (B, n, Hkv, Dv), either as (1, B·n, Hkv, ·) too
///           to_key (R, Hkv, D)  to_value (R, Hkv, Dv)
template <class T, class F> struct MoveRows {
  std::ptrdiff_t rows;
  Index columns, cost;
  TensorView<const T, 4> key, value;
  TensorView<F, 3> to_key, to_value;
  const Index *from_row, *to_row;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index g) const {
    const std::ptrdiff_t from = from_row != nullptr ? from_row[row] : row;
    const Index to = to_row != nullptr ? to_row[row] : static_cast<Index>(row);
    move(at(key, from, g), key.stride[3], to_key.pointer(to, g, 0), key.dim());
    move(at(value, from, g), value.stride[3], to_value.pointer(to, g, 0), value.dim());
  }

 private:
  /// Either may have its rows in one sequence or in several.
  MHA_HOST_DEVICE static const T* at(const TensorView<const T, 4>& v, std::ptrdiff_t row, Index g) {
    return v.pointer(row / v.length(), row % v.length(), g, 0);
  }
  MHA_HOST_DEVICE static void move(const T* from, std::ptrdiff_t step, F* to, Index n) {
    for (Index i = 0; i < n; ++i) {
      if constexpr (std::same_as<T, F>)
        to[i] = from[i * step];
      else
        to[i] = F(Accumulator<F>(from[i * step]));
    }
  }
};

/// Copies rows [from, from + rows) of every layer and head to rows [to, to + rows), which are others: Items.
///
/// Shapes    key (layers, Hkv, blocks, rows, D)  value (layers, Hkv, blocks, rows, Dv), contiguous
template <class F> struct CopyRows {
  std::ptrdiff_t rows;
  Index columns, cost;  ///< layers · Hkv columns
  TensorView<F, 5> key, value;
  Index from, to;

  MHA_HOST_DEVICE void operator()(std::ptrdiff_t row, Index column) const {
    for (const TensorView<F, 5>* const v : {&key, &value}) {
      F* const of_head = v->data + column * v->stride[1];
      for (std::ptrdiff_t i = 0; i < v->stride[3]; ++i)
        of_head[(to + row) * v->stride[3] + i] = of_head[(from + row) * v->stride[3] + i];
    }
  }
  void run_rows(std::ptrdiff_t begin, std::ptrdiff_t end) const {
    for (Index column = 0; column < columns; ++column)
      for (const TensorView<F, 5>* const v : {&key, &value}) {
        F* const of_head = v->data + column * v->stride[1];
        std::copy_n(of_head + (from + begin) * v->stride[3], (end - begin) * v->stride[3],
                    of_head + (to + begin) * v->stride[3]);
      }
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail
