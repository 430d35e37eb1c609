// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <mha/core/view.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace support {

/// How a matrix lies in memory; one that overlaps is a window sliding over one row.
enum class Layout { rows, columns, gaps, every_second, reversed, overlapping };
inline constexpr Layout layouts[] = {Layout::rows,         Layout::columns,  Layout::gaps,
                                     Layout::every_second, Layout::reversed, Layout::overlapping};

/// An n × m matrix in memory that is poisoned around it.
template <class T> struct StridedMatrix {
  std::vector<T> memory;
  mha::TensorView<T, 2> view;

  StridedMatrix(Layout layout, mha::Index n, mha::Index m)
      : memory(static_cast<std::size_t>((n + 2) * (2 * m + 5) + 4)) {
    poison_all(memory);
    T* const p = memory.data() + 1;
    switch (layout) {
      case Layout::rows:
        view = {p, {n, m}, {m, 1}};
        break;
      case Layout::columns:
        view = {p, {n, m}, {1, n}};
        break;
      case Layout::gaps:
        view = {p, {n, m}, {m + 3, 1}};
        break;
      case Layout::every_second:
        view = {p, {n, m}, {2 * m + 1, 2}};
        break;
      case Layout::reversed:
        view = {p + (n > 0 ? (n - 1) * std::ptrdiff_t{m} : 0), {n, m}, {-m, 1}};
        break;
      case Layout::overlapping:
        view = {p, {n, m}, {1, 1}};
        break;
    }
  }
  void fill(Random& random) {
    for (mha::Index i = 0; i < view.extent[0]; ++i)
      for (mha::Index j = 0; j < view.extent[1]; ++j) view(i, j) = random.rounded<T>(random.normal());
  }
};

}  // namespace support
