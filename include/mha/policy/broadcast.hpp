// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../core/check.hpp"
#include "../core/view.hpp"
#include "role.hpp"

namespace mha::inline v0::detail {

/// A (Lq, Lk), (H, Lq, Lk) or (B, H, Lq, Lk) table as four axes; absent ones have extent 1.
template <class T, int Rank> constexpr TensorView<const T, 4> as_pair_table(const TensorView<T, Rank>& v) {
  static_assert(Rank >= 2 && Rank <= 4, "mha: a table over (query, key) pairs has 2 to 4 axes");
  TensorView<const T, 4> r{v.data, {1, 1, 1, 1}, {}};
  for (int a = 0; a < Rank; ++a) {
    r.extent[4 - Rank + a] = v.extent[a];
    r.stride[4 - Rank + a] = v.stride[a];
  }
  return r;
}

/// The table for one call: axes of extent 1 are repeated (stride 0), all others must have the call's size.
template <class T>
TensorView<const T, 4> broadcast_to_call(TensorView<const T, 4> v, const CallShape& s, const char* policy) {
  const Index expected[4] = {s.batch, s.heads, s.queries, s.keys};
  const char* const axis[4] = {"batch", "heads", "queries", "keys"};
  require_data(policy, "the table", v);
  for (int a = 0; a < 4; ++a) {
    require(v.extent[a] == expected[a] || v.extent[a] == 1, policy, ": the table has ", v.extent[a], " ", axis[a],
            " but the call has ", expected[a]);
    if (v.extent[a] == 1) v.stride[a] = 0;
  }
  return v;
}

}  // namespace mha::inline v0::detail
