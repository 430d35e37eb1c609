// SPDX-License-Identifier: Apache-2.0
// What every model begins with: rows of numbers, and the rows that tokens stand for.
#pragma once

#include <Eigen/Core>
#include <span>
#include <stdexcept>
#include <string>

#include <mha/mha.hpp>

namespace models {

/// Rows that lie one after another, as the kernels read them.
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A tensor of a checkpoint as an Eigen matrix, in place.
inline Eigen::Map<const Rows> matrix(const mha::TensorView<const float, 2>& t) {
  return {t.data, t.extent[0], t.extent[1]};
}

/// x ← the rows of the table (V, E) that the ids (L) name: (L, E).
///
/// Errors    std::invalid_argument if an id is not one of the V
inline void embed_into(Rows& x, const mha::TensorView<const float, 2>& table, std::span<const int> ids) {
  x.resize(static_cast<Eigen::Index>(ids.size()), table.extent[1]);
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    const int id = ids[static_cast<std::size_t>(i)];
    if (id < 0 || id >= table.extent[0])
      throw std::invalid_argument("token " + std::to_string(id) + " is outside the vocabulary of " +
                                  std::to_string(table.extent[0]));
    x.row(i) = matrix(table).row(id);
  }
}
inline Rows embed(const mha::TensorView<const float, 2>& table, std::span<const int> ids) {
  Rows x;
  embed_into(x, table, ids);
  return x;
}

/// The rows of a table of positions (P, E) from `first` on: (length, E).
///
/// Errors    std::invalid_argument if it has fewer
inline auto positions_from(const mha::TensorView<const float, 2>& table, Eigen::Index first, Eigen::Index length) {
  if (first + length > table.extent[0])
    throw std::invalid_argument("a text has " + std::to_string(first + length) +
                                " tokens, the model has positions for " + std::to_string(table.extent[0]));
  return Eigen::Map<const Rows>(table.data + first * table.stride[0], length, table.extent[1]);
}
inline auto first_positions(const mha::TensorView<const float, 2>& table, Eigen::Index length) {
  return positions_from(table, 0, length);
}

}  // namespace models
