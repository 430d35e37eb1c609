// SPDX-License-Identifier: Apache-2.0
// The table of rows that tokens stand for, which learns as the rest does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

#include <mha/mha.hpp>

namespace train {

/// Formula   x_i = table[ids_i];  dtable[ids_i] += dx_i, in the order of the rows
/// Shapes    table (V, E)  ids (N)  x, dx (N, E)
template <class T> class Embedding {
 public:
  Embedding(int vocabulary, int width) : table_(vocabulary, width) {}

  struct Gradients {
    mha::Tensor<T, 2> table;
    std::span<T> flat() { return {table.data(), table.size()}; }
  };
  struct Parameters {
    mha::TensorView<T, 2> table;
    std::span<T> all;
    std::span<T> flat() const { return all; }
  };

  mha::TensorView<const T, 2> table() const { return table_.view(); }
  Gradients gradients() const { return {mha::Tensor<T, 2>(table_.extent(0), table_.extent(1))}; }

  /// f(Parameters&), as the library's layers have it.
  template <class F> void update(F&& f) {
    Parameters all{table_.view(), {table_.data(), table_.size()}};
    f(all);
  }

  /// Numbers uniform in ±bound.
  void initialize(std::uint64_t seed, double bound) {
    std::mt19937_64 bits(seed);
    for (T& x : table_) x = T((2 * (static_cast<double>(bits() >> 11) * 0x1p-53) - 1) * bound);
  }

  void operator()(std::span<const int> ids, const mha::TensorView<T, 2>& x) const {
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::copy_n(&table_(ids[i], 0), table_.extent(1), &x(static_cast<int>(i), 0));
  }

  void backward(std::span<const int> ids, const mha::TensorView<const T, 2>& dx, Gradients& to) const {
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (int e = 0; e < table_.extent(1); ++e) to.table(ids[i], e) += dx(static_cast<int>(i), e);
  }

 private:
  mha::Tensor<T, 2> table_;
};

}  // namespace train
