// SPDX-License-Identifier: Apache-2.0
// Rows and matrices in 8 bits, and the numbers that they store.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <mha/core/stored_row.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/view.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace support {

inline mha::scaled_int8 eight_bits(int integer) {
  mha::scaled_int8 x;
  x.integer = static_cast<std::int8_t>(integer);
  return x;
}

/// Random rows of `dim` numbers, poison before, between and behind them; `gap` elements from a row to the next one's
/// scale.
struct EightBitRows {
  mha::Index count, dim;
  std::ptrdiff_t stride;
  std::vector<mha::scaled_int8> memory;
  std::vector<float> numbers;  ///< (count, dim)

  EightBitRows(Random& random, mha::Index rows, mha::Index size, mha::Index gap = 0)
      : count(rows),
        dim(size),
        stride(mha::row_elements<mha::scaled_int8>(size) + gap),
        memory(static_cast<std::size_t>(1 + rows * stride)),
        numbers(static_cast<std::size_t>(rows) * static_cast<std::size_t>(size)) {
    poison_all(memory);
    random.fill(numbers);
    for (mha::Index i = 0; i < rows; ++i) {
      float* const row = numbers.data() + std::ptrdiff_t{i} * size;
      mha::scaled_int8* const to = memory.data() + 1 + i * stride + mha::row_lead<mha::scaled_int8>;
      mha::quantize_row(row, size, to);
      mha::read_row(to, size, row);
    }
    // The last row ends where the memory does.
    memory.resize(memory.size() - static_cast<std::size_t>(rows > 0 ? gap : 0));
    memory.shrink_to_fit();
  }
  const mha::scaled_int8* row(mha::Index i) const {
    return memory.data() + 1 + i * stride + mha::row_lead<mha::scaled_int8>;
  }
};

/// Rows (B, L, H, D) in 8 bits, (B, L, H, D + 4) with their scales. The numbers become those that are stored.
template <class T> mha::Tensor<mha::scaled_int8, 4> in_eight_bits(mha::Tensor<T, 4>& numbers) {
  const mha::Index dim = numbers.extent(3), width = mha::row_elements<mha::scaled_int8>(dim);
  mha::Tensor<mha::scaled_int8, 4> to(numbers.extent(0), numbers.extent(1), numbers.extent(2), width);
  const std::ptrdiff_t rows = dim == 0 ? 0 : static_cast<std::ptrdiff_t>(numbers.size()) / dim;
  for (std::ptrdiff_t i = 0; i < rows; ++i) {
    T* const row = numbers.data() + i * dim;
    mha::scaled_int8* const stored = to.data() + i * width + mha::row_lead<mha::scaled_int8>;
    mha::quantize_row(row, dim, stored);
    for (mha::Index d = 0; d < dim; ++d) row[d] = static_cast<T>(mha::detail::stored_number<float>(stored, d));
  }
  return to;
}
/// The numbers of such rows, or of rows of another scalar, as a source takes them.
template <class F> mha::TensorView<const F, 4> numbers_of(const mha::Tensor<F, 4>& rows) {
  mha::TensorView<const F, 4> numbers = rows.view();
  numbers.data += mha::row_lead<F>;
  numbers.extent[3] -= mha::row_lead<F>;
  return numbers;
}

/// The numbers in T that quantize() makes of a matrix (in, out): of each column, 256 at a time, x becomes
/// scale · integer, where scale = max |x| / 127 and integer = x / scale, rounded to nearest even.
template <class T, class W> mha::Tensor<T, 2> rounded_to_eight_bits(const mha::TensorView<const W, 2>& m) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  mha::Tensor<T, 2> to(m.extent[0], m.extent[1]);
  for (mha::Index i = 0; i < m.extent[0]; ++i)
    for (mha::Index j = 0; j < m.extent[1]; ++j) {
      double largest = 0;
      for (mha::Index k = i / 256 * 256; k < std::min(m.extent[0], i / 256 * 256 + 256); ++k) {
        const double size = std::abs(to_double(static_cast<float>(m(k, j))));
        largest = size < infinity ? std::max(largest, size) : infinity;
      }
      if (largest == infinity) {
        to(i, j) = std::numeric_limits<T>::quiet_NaN();
      } else if (largest >= 1e-30f) {
        const auto most = static_cast<float>(std::min<double>(largest, 3.4e38f));
        const double integer = std::nearbyint(to_double(static_cast<float>(m(i, j))) * to_double(127.0f / most));
        to(i, j) = static_cast<float>(static_cast<int>(std::clamp(integer, -127.0, 127.0))) * (most / 127.0f);
      }
    }
  return to;
}

}  // namespace support
