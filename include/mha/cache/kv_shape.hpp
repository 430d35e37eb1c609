// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "../config.hpp"
#include "../core/stored_row.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Heads and head sizes of the keys and values that a cache stores.
struct KvShape {
  Index heads = 0, dim = 0, value_dim = 0;
  /// Whether the value of a head is the first value_dim numbers of its key, as of latent attention, and not stored.
  bool values_in_keys = false;

  /// Numbers of a head's value that are stored beside its key.
  Index own_value_dim() const { return values_in_keys ? 0 : value_dim; }
  std::size_t key_elements() const { return static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim); }
  std::size_t value_elements() const {
    return static_cast<std::size_t>(heads) * static_cast<std::size_t>(own_value_dim());
  }
  /// Numbers that a position takes in a layer.
  std::size_t row_elements() const { return key_elements() + value_elements(); }
};

namespace detail {

/// Elements of F that the rows of a position take in a layer: of its keys, and of its keys and values.
template <class F> std::size_t stored_keys(const KvShape& shape) {
  return static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(row_elements<F>(shape.dim));
}
template <class F> std::size_t stored_position(const KvShape& shape) {
  return stored_keys<F>(shape) +
         static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(row_elements<F>(shape.own_value_dim()));
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
