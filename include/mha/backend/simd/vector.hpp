// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "../../config.hpp"

namespace mha::inline MHA_NAMESPACE::detail::simd {

/// Compiler vector types of one register. Values travel through references and plain operators: a vector passed by
/// value between functions of different instruction sets has no agreed calling convention.
template <class T, class Isa> struct Vector {
  static constexpr int width = Isa::register_bytes / static_cast<int>(sizeof(T));
  using Int = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  typedef T type __attribute__((vector_size(Isa::register_bytes)));
  typedef Int int_type __attribute__((vector_size(Isa::register_bytes)));
};

template <class T, class Isa> using vector_t = typename Vector<T, Isa>::type;

template <class V, class T> MHA_ALWAYS_INLINE void load(V& v, const T* p) {
  typedef T unaligned __attribute__((vector_size(sizeof(V)), aligned(alignof(T)), may_alias));
  v = *reinterpret_cast<const unaligned*>(p);
}

template <class V, class T> MHA_ALWAYS_INLINE void store(T* p, const V& v) {
  typedef T unaligned __attribute__((vector_size(sizeof(V)), aligned(alignof(T)), may_alias));
  *reinterpret_cast<unaligned*>(p) = v;
}

/// Every lane the same.
template <class V, class T> MHA_ALWAYS_INLINE void broadcast(V& v, const T& x) {
#if MHA_WIDE_ASM
  // g++ lowers {x, x, …} before it knows that its caller has the wide registers, to an insertion per lane.
  if constexpr (sizeof(V) > 16) {
    if constexpr (sizeof(T) == 4)
      asm("vbroadcastss %1, %0" : "=v"(v) : "m"(x));
    else
      asm("vbroadcastsd %1, %0" : "=v"(v) : "m"(x));
    return;
  }
#endif
  v = x - V{};  // not x + 0, which would turn −0 into 0
}

/// x is rounded here: without it a product may be fused with an addition that follows, or not, as the compiler likes.
template <class V> MHA_ALWAYS_INLINE void round_here([[maybe_unused]] V& x) {
#ifdef MHA_VECTOR_REGISTER
  asm("" : "+" MHA_VECTOR_REGISTER(x));
#endif
}

/// x is computed here: where branches follow, g++ moves a chain of additions behind the last of them, and keeps in
/// memory what it waits to add.
template <class V> MHA_ALWAYS_INLINE void compute_here([[maybe_unused]] V& x) {
#ifdef MHA_VECTOR_REGISTER
  asm volatile("" : "+" MHA_VECTOR_REGISTER(x));
#endif
}

/// What a body has of an object of the caller's, so that the compiler knows that nothing else writes it: a copy, unless
/// copying may cost something.
template <class F> using LocalCopy = std::conditional_t<std::is_trivially_copyable_v<F>, const F, const F&>;

#if MHA_WIDE_ASM || MHA_NEON_ASM
/// Whether sums of V are named instructions: fused whatever the compiler is told of optimization and contraction, so
/// that those that take a factor from memory have the bits of the others.
template <class V> inline constexpr bool fused_by_name = sizeof(V) > 16 || MHA_NEON_ASM;
#endif

/// sum ← a · b + sum, rounded once wherever the instruction set can. A chain alone between two branches is named,
/// because g++ leaves it unfused under -mtune=znver…, and a row's bits would depend on how many are computed beside it.
template <bool Alone, class V> MHA_ALWAYS_INLINE void multiply_add(V& sum, const V& a, const V& b) {
#if MHA_WIDE_ASM
  if constexpr (fused_by_name<V>) {
    if constexpr (sizeof(sum[0]) == 4)
      asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
    else
      asm("vfmadd231pd %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
    return;
  }
#elif MHA_NEON_ASM
  if constexpr (fused_by_name<V>) {
    if constexpr (sizeof(sum[0]) == 4)
      asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
    else
      asm("fmla %0.2d, %1.2d, %2.2d" : "+w"(sum) : "w"(a), "w"(b));
    return;
  }
#endif
  if constexpr (Alone) round_here(sum);
  sum = a * b + sum;
}

/// sum[j] ← x · v[j] + sum[j] with x in every lane. At most FromMemory registers take x straight from memory where the
/// instruction set can: a load more for each, and a register and an instruction fewer for x.
template <bool Alone, int FromMemory = 1, class V, class T, std::size_t N>
MHA_ALWAYS_INLINE void multiply_add_all(V (&sum)[N], const T& x, const V (&v)[N]) {
#if MHA_WIDE_ASM
  if constexpr (N <= FromMemory && sizeof(V) == 64) {
    MHA_UNROLL_8
    for (std::size_t j = 0; j < N; ++j) {
      if constexpr (sizeof(T) == 4)
        asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum[j]) : "v"(v[j]), "m"(x));
      else
        asm("vfmadd231pd %2%{1to8%}, %1, %0" : "+v"(sum[j]) : "v"(v[j]), "m"(x));
    }
    return;
  }
#elif MHA_NEON_ASM
  // From a lane of a register: loading x into every lane may take the time of a multiply-add besides.
  if constexpr (fused_by_name<V>) {
    const T factor = x;
    MHA_UNROLL_8
    for (std::size_t j = 0; j < N; ++j) {
      if constexpr (sizeof(T) == 4)
        asm("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(sum[j]) : "w"(v[j]), "w"(factor));
      else
        asm("fmla %0.2d, %1.2d, %2.d[0]" : "+w"(sum[j]) : "w"(v[j]), "w"(factor));
    }
    return;
  }
#endif
  V all;
  broadcast(all, x);
  MHA_UNROLL_8
  for (std::size_t j = 0; j < N; ++j) multiply_add<Alone>(sum[j], all, v[j]);
}

/// highest ← the larger of both; a NaN in x is left out.
template <class T, class V> MHA_ALWAYS_INLINE void raise(V& highest, const V& x) {
#if MHA_WIDE_ASM
  // g++ makes a comparison and a blend of it. With a NaN the instruction gives its last operand.
  if constexpr (sizeof(V) > 16) {
    if constexpr (sizeof(T) == 4)
      asm("vmaxps %1, %2, %0" : "=v"(highest) : "v"(highest), "v"(x));
    else
      asm("vmaxpd %1, %2, %0" : "=v"(highest) : "v"(highest), "v"(x));
    return;
  }
#endif
  highest = x > highest ? x : highest;
}

/// The elements of (a, b) at these places.
template <int... Places, class V> MHA_ALWAYS_INLINE void shuffle(V& to, const V& a, const V& b) {
#if !MHA_NVCC  // which loses the expansion of the pack on its way to the host's compiler
  to = __builtin_shufflevector(a, b, Places...);
#else
  constexpr int width = sizeof...(Places);
  const auto at = [&](int i) { return i < width ? a[i] : b[i - width]; };
  to = V{at(Places)...};
#endif
}

}  // namespace mha::inline MHA_NAMESPACE::detail::simd
