// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>

#include "../../config.hpp"
#include "vector.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Constants of 2^f: minimax among polynomials with the constant term 1, so that exp2(0) is exactly 1 and a rescale by
/// it changes nothing. `nearest` is for f on [−½, ½], `floor` for f on [0, 1).
template <class T> struct Exp2Constants;
template <> struct Exp2Constants<float> {
  // 1.5 · 2^23 + 127: adding it leaves the integer in the low bits, with the bias of an exponent.
  static constexpr float round_to_exponent = 12583039.f;
  static constexpr int mantissa_bits = 23;
  static constexpr float lowest = -126.f;
  static constexpr float nearest[] = {0.00015353362068858489f,
                                      0.00133988743939813901f,
                                      0.00961843735695742056f,
                                      0.0555033247119085717f,
                                      0.240226479136368521f,
                                      0.693147202855031648f,
                                      1.f};
  static constexpr float floor[] = {0.00021794658054230653f,
                                    0.0012414924036846976f,
                                    0.0096811693511651426f,
                                    0.0554824863838802237f,
                                    0.2402298985347654996f,
                                    0.6931470038669499500f,
                                    1.f};
};
template <> struct Exp2Constants<double> {
  static constexpr double round_to_exponent = 6755399441056767.;  // 1.5 · 2^52 + 1023
  static constexpr int mantissa_bits = 52;
  static constexpr double lowest = -1022.;
  static constexpr double nearest[] = {4.43477129820037671e-10, 7.0737832485031333e-9,  1.0178199571842138e-7,
                                       1.3215435282308488e-6,   1.52527334931274893e-5, 0.000154035304571120909,
                                       0.00133335581467746205,  0.00961812910759412009, 0.0555041086648200832,
                                       0.240226506959101313,    0.693147180559945326,   1.};
  static constexpr double floor[] = {6.2946307631404572714e-10, 6.5425993898032626575e-9, 1.0257176645655549317e-7,
                                     1.3207843967924269635e-6,  1.5253217819355752172e-5, 0.00015403510074404329042,
                                     0.0013333558704132960037,  0.0096181290980151446281, 0.055504108665783569805,
                                     0.24022650695905272965,    0.69314718055994614121,   1.};
};

#if MHA_WIDE_ASM
/// exp2_in_place by the instructions of AVX-512: x − ⌊x⌋, and p · 2^⌊x⌋ where x is not below the range.
template <class V> MHA_ALWAYS_INLINE void wide_exp2_in_place(V& x, float) {
  using C = Exp2Constants<float>;
  constexpr int terms = static_cast<int>(std::size(C::floor));
  const V zero{};
  const V low = C::lowest - zero;
  V fraction, p = C::floor[0] - zero;
  std::uint16_t keep;
  asm("vreduceps $9, %1, %0" : "=v"(fraction) : "v"(x));
  MHA_UNROLL_16
  for (int i = 1; i < terms; ++i) {
    const V c = C::floor[i] - zero;
    asm("vfmadd213ps %2, %1, %0" : "+v"(p) : "v"(fraction), "v"(c));
  }
  asm("vcmpnltps %2, %1, %0" : "=Yk"(keep) : "v"(x), "v"(low));
  asm("vscalefps %2, %1, %0%{%3%}%{z%}" : "=v"(x) : "v"(p), "v"(x), "Yk"(keep));
}
template <class V> MHA_ALWAYS_INLINE void wide_exp2_in_place(V& x, double) {
  using C = Exp2Constants<double>;
  constexpr int terms = static_cast<int>(std::size(C::floor));
  const V zero{};
  const V low = C::lowest - zero;
  V fraction, p = C::floor[0] - zero;
  std::uint8_t keep;
  asm("vreducepd $9, %1, %0" : "=v"(fraction) : "v"(x));
  MHA_UNROLL_16
  for (int i = 1; i < terms; ++i) {
    const V c = C::floor[i] - zero;
    asm("vfmadd213pd %2, %1, %0" : "+v"(p) : "v"(fraction), "v"(c));
  }
  asm("vcmpnltpd %2, %1, %0" : "=Yk"(keep) : "v"(x), "v"(low));
  asm("vscalefpd %2, %1, %0%{%3%}%{z%}" : "=v"(x) : "v"(p), "v"(x), "Yk"(keep));
}
#endif

/// x ← 2^x for x ≤ 1 (the differences logit − max of a softmax).
///
/// Formula   2^n · p(x − n), n = round(x) or ⌊x⌋
/// Numerics  error below 1.5 ulp; 2^0 = 1 exactly; results below the smallest normal number, −∞ among them, are exactly
///           0; NaN stays NaN
template <class T, class Isa> MHA_ALWAYS_INLINE void exp2_in_place(vector_t<T, Isa>& x) {
  using V = vector_t<T, Isa>;
  using I = typename Vector<T, Isa>::int_type;
  using C = Exp2Constants<T>;
#if MHA_WIDE_ASM
  if constexpr (Isa::register_bytes == 64) {
    wide_exp2_in_place(x, T{});
    return;
  }
#endif
  constexpr int terms = static_cast<int>(std::size(C::nearest));
  const V shifted = x + C::round_to_exponent;
  const V fraction = x - (shifted - C::round_to_exponent);
  const V zero{};  // named: nvcc crashes on a literal beside a constant
  V p = C::nearest[0] - zero;
  MHA_UNROLL_16
  for (int i = 1; i < terms; ++i) p = p * fraction + C::nearest[i];
  // The product with 2^n, and not an addition to the exponent, keeps NaN a NaN.
  const V r = p * V(I(shifted) << C::mantissa_bits);
  x = x < C::lowest ? V{} : r;
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
