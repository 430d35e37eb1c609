// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "call_shape.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// One length in [0, Lk] per sequence, Lk its own if it is known; lengths in device memory are not checked.
inline void require_lengths(const char* policy, const Borrowed<Index>& lengths, const CallShape& s) {
  require(lengths.size == s.batch, policy, ": ", lengths.size, " lengths for a batch of ", s.batch);
  require(lengths.data != nullptr || lengths.size == 0, policy, ": the data of ", lengths.size, " lengths is null");
  if (lengths.memory != Memory::host) return;
  for (Index b = 0; b < lengths.size; ++b)
    require(lengths[b] >= 0 && lengths[b] <= s.keys_of(b), policy, ": length ", lengths[b], " of sequence ", b,
            " is outside [0, ", s.keys_of(b), "], the number of keys");
}

}  // namespace mha::inline MHA_NAMESPACE::detail
