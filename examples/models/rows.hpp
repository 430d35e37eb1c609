// SPDX-License-Identifier: Apache-2.0
// What every model begins with: rows of numbers, memory to work in, and the rows that tokens stand for.
#pragma once

#include <Eigen/Core>
#include <span>
#include <stdexcept>
#include <string>
#include <variant>

#include <mha/mha.hpp>

namespace models {

/// Rows that lie one after another, as the kernels read them.
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The memory that a call works in. Kept from call to call it allocates nothing once it has seen the call's sizes.
struct Work {
  Rows x, h, r;  // (n, E)
  Rows logits;   // (n, V), or those of some rows alone
  mha::Workspace workspace;
};

/// A tensor of a checkpoint as an Eigen matrix, in place.
inline Eigen::Map<const Rows> matrix(const mha::TensorView<const float, 2>& t) {
  return {t.data, t.extent[0], t.extent[1]};
}

/// A table of rows (N, E) in the scalar that the checkpoint has; 16 bits become float where a row is read.
using Table = std::variant<mha::TensorView<const float, 2>, mha::TensorView<const mha::bfloat16, 2>,
                           mha::TensorView<const mha::half, 2>>;

/// x ← the rows of the table (V, E) that the ids (L) name: (L, E).
///
/// called    what an id is
/// Errors    std::invalid_argument if an id is not one of the V
inline void embed_into(Rows& x, const Table& table, std::span<const int> ids, const char* called = "token") {
  std::visit(
      [&](const auto& rows) {
        x.resize(static_cast<Eigen::Index>(ids.size()), rows.extent[1]);
        for (int i = 0; i < x.rows(); ++i) {
          const int id = ids[static_cast<std::size_t>(i)];
          if (id < 0 || id >= rows.extent[0])
            throw std::invalid_argument(std::string(called) + ' ' + std::to_string(id) +
                                        " is outside the vocabulary of " + std::to_string(rows.extent[0]));
          for (int j = 0; j < x.cols(); ++j) x(i, j) = rows(id, j);
        }
      },
      table);
}

/// x (L, E) += the rows of a table of positions (P, E) from `first` on.
///
/// Errors    std::invalid_argument if it has fewer
inline void add_positions(Eigen::Ref<Rows> x, const Table& table, int first = 0) {
  std::visit(
      [&](const auto& rows) {
        if (first + x.rows() > rows.extent[0])
          throw std::invalid_argument("a text has " + std::to_string(first + x.rows()) +
                                      " tokens, the model has positions for " + std::to_string(rows.extent[0]));
        for (int i = 0; i < x.rows(); ++i)
          for (int j = 0; j < x.cols(); ++j) x(i, j) += rows(first + i, j);
      },
      table);
}

}  // namespace models
