// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../core/overlap.hpp"
#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Rows that keys and values are still to be projected from.
///
/// Shapes    keys (B, Lk, E_kv)  values (B, Lk, E_v)
template <class T> struct MemoryRows {
  TensorView<const T, 3> keys{}, values{};

  /// Whether both are made from the same rows.
  bool same() const { return same_view(keys, values); }
};

}  // namespace mha::inline MHA_NAMESPACE::detail
