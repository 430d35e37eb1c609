// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../config.hpp"
#include "../simd/key_chunks.hpp"

namespace mha::inline MHA_NAMESPACE::detail::cpu {

/// Keys per step of the online softmax. Steps start at absolute multiples of it, so that a row's bits do not depend on
/// which other rows or keys are in the call.
inline constexpr Index key_block = 128;

using simd::key_chunk;
static_assert(key_chunk % key_block == 0 && simd::long_chunk % key_block == 0, "a chunk ends with a block");

/// Hidden keys in the middle of a block that are worth leaving out.
inline constexpr Index smallest_gap = 32;

}  // namespace mha::inline MHA_NAMESPACE::detail::cpu
