// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// x ← 2^x, close enough beside products of bfloat16: how much of the earlier sums a new maximum leaves.
///
/// Formula   2^⌊x⌋ · p(x − ⌊x⌋), p of degree 3 with p(0) = 1
/// Numerics  relative error below 1e-4; 2^0 = 1 exactly; −∞ and what lies far below the normal range → 0; 128 and above
///           → ∞; NaN stays NaN
template <class Isa> MHA_ALWAYS_INLINE void exp2_coarse_in_place(vector_t<float, Isa>& x) {
  using V = vector_t<float, Isa>;
  constexpr float c1 = 0.695116786f, c2 = 0.227644991f, c3 = 0.077067042f;
#if MHA_WIDE_ASM
  if constexpr (Isa::register_bytes == 64) {
    V fraction, r;
    asm("vreduceps $9, %1, %0" : "=v"(fraction) : "v"(x));  // x − ⌊x⌋, 0 for an infinity
    V p = c3 * fraction + c2;
    p = p * fraction + c1;
    p = p * fraction + 1.f;
    asm("vscalefps %2, %1, %0" : "=v"(r) : "v"(p), "v"(x));  // p · 2^⌊x⌋, at both ends of the range too
    x = r;
    return;
  }
#endif
  using I = typename Vector<float, Isa>::int_type;
  constexpr float round_to_int = 12582912.f;  // 1.5 · 2^23: adding it leaves the integer in the low bits
  const V zero{}, low = x < -126.f ? -126.f - zero : x;
  const V clamped = low > 128.f ? 128.f - zero : low;
  V shifted = clamped + round_to_int;
  const V nearest = shifted - round_to_int;
  shifted = nearest > clamped ? shifted - 1.f : shifted;
  const V fraction = clamped - (shifted - round_to_int);
  V p = c3 * fraction + c2;
  p = p * fraction + c1;
  p = p * fraction + 1.f;
  const I power = (I(shifted) << 23) + (127u << 23);
  const V r = p * V(power);
  x = x < -126.f ? zero : r;
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
