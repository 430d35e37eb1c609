// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "../mask.hpp"
#include "first_keys.hpp"
#include "padding.hpp"
#include "positional.hpp"
#include "prefix.hpp"

/// How many pairs are visible under positional masks and their compositions, in closed form.
namespace mha::inline MHA_NAMESPACE::detail {

/// The pairs (q, k) with first <= k − q <= last and k < end, counted `sign` times.
struct Band {
  static constexpr std::int64_t far = std::int64_t{1} << 40;  ///< beyond every position
  std::int64_t first = -far, last = far, end = far;
  int sign = 1;

  /// The pairs in both, counted the product of both times.
  friend constexpr Band operator*(const Band& a, const Band& b) {
    return {std::max(a.first, b.first), std::min(a.last, b.last), std::min(a.end, b.end), a.sign * b.sign};
  }

  /// How many of them are in the rectangle [q_begin, q_end) × [k_begin, k_end), without the sign.
  constexpr std::int64_t pairs(std::int64_t q_begin, std::int64_t q_end, std::int64_t k_begin,
                               std::int64_t k_end) const {
    k_end = std::min(k_end, end);
    if (q_begin >= q_end || k_begin >= k_end || first > last) return 0;
    return up_to(last, q_begin, q_end, k_begin, k_end) - up_to(first - 1, q_begin, q_end, k_begin, k_end);
  }

 private:
  /// The pairs of a rectangle with k − q <= c: the sum over q of clamp(q + c − k_begin + 1, 0, keys).
  static constexpr std::int64_t up_to(std::int64_t c, std::int64_t q_begin, std::int64_t q_end, std::int64_t k_begin,
                                      std::int64_t k_end) {
    const std::int64_t keys = k_end - k_begin;
    c = std::clamp(c, k_begin - q_end, k_end - 1 - q_begin);
    const auto sum = [keys](std::int64_t m) {  // of clamp(i, 0, keys) over all i <= m
      if (m <= 0) return std::int64_t{0};
      return m <= keys ? m * (m + 1) / 2 : keys * (keys + 1) / 2 + (m - keys) * keys;
    };
    const std::int64_t shift = c - k_begin;
    return sum(q_end + shift) - sum(q_begin + shift);
  }
};

/// A mask as a sum of bands: a pair is visible if its count is 1, and hidden if it is 0.
template <int Count> struct Bands {
  static constexpr int count = Count;
  Band band[std::size_t{Count}];

  /// How many pairs of the rectangle are visible. Single terms may wrap around, their sum does not.
  constexpr std::int64_t pairs(std::int64_t q_begin, std::int64_t q_end, std::int64_t k_begin,
                               std::int64_t k_end) const {
    std::uint64_t sum = 0;
    for (const Band& b : band)
      sum += static_cast<std::uint64_t>(b.sign) * static_cast<std::uint64_t>(b.pairs(q_begin, q_end, k_begin, k_end));
    return static_cast<std::int64_t>(sum);
  }
};

/// Visible in both: the product of the sums.
template <int CountA, int CountB>
constexpr Bands<CountA * CountB> product(const Bands<CountA>& a, const Bands<CountB>& b) {
  Bands<CountA * CountB> r{};
  for (int i = 0; i < CountA; ++i)
    for (int j = 0; j < CountB; ++j) r.band[i * CountB + j] = a.band[i] * b.band[j];
  return r;
}
/// One sum after the other, the second with this sign.
template <int CountA, int CountB>
constexpr Bands<CountA + CountB> sum(const Bands<CountA>& a, const Bands<CountB>& b, int sign) {
  Bands<CountA + CountB> r{};
  for (int i = 0; i < CountA; ++i) r.band[i] = a.band[i];
  for (int j = 0; j < CountB; ++j) {
    r.band[CountA + j] = b.band[j];
    r.band[CountA + j].sign *= sign;
  }
  return r;
}
/// Visible in one of them: a + b − a·b.
template <int CountA, int CountB> constexpr auto either(const Bands<CountA>& a, const Bands<CountB>& b) {
  return sum(sum(a, b, 1), product(a, b), -1);
}

/// of(mask, b) for a mask whose pairs are a sum of bands; a type without it is no such mask.
template <class M> struct BandsOf {};
template <class M>
concept Banded = requires(const M& mask, Index b) {
  BandsOf<M>::of(mask, b);
};

template <> struct BandsOf<Full> {
  static constexpr Bands<1> of(const Full&, Index) { return {{Band{}}}; }
};
template <> struct BandsOf<Causal> {
  static constexpr Bands<1> of(const Causal&, Index) { return {{Band{.last = 0}}}; }
};
template <> struct BandsOf<CausalTopLeft> {
  static constexpr Bands<1> of(const CausalTopLeft& m, Index b) { return {{Band{.last = -std::int64_t{m.origin[b]}}}}; }
};
template <> struct BandsOf<SlidingWindow> {
  static constexpr Bands<1> of(const SlidingWindow& m, Index) {
    return {{Band{.first = -std::int64_t{m.left.value}, .last = m.right}}};
  }
};
template <> struct BandsOf<Padding> {
  static constexpr Bands<1> of(const Padding& m, Index b) { return {{Band{.end = m.lengths[b]}}}; }
};
template <> struct BandsOf<FirstKeys> {
  static constexpr Bands<1> of(const FirstKeys& m, Index) { return {{Band{.end = m.count.value}}}; }
};
template <> struct BandsOf<LeftPadding> {
  static constexpr auto of(const LeftPadding& m, Index b) {
    return sum(Bands<1>{{Band{}}}, Bands<1>{{Band{.end = std::int64_t{m.keys} - m.lengths[b]}}}, -1);
  }
};
template <> struct BandsOf<Prefix> {
  static constexpr auto of(const Prefix& m, Index b) {
    return either(BandsOf<Padding>::of({m.lengths}, b), BandsOf<Causal>::of({}, b));
  }
};
template <Banded A, Banded B> struct BandsOf<And<A, B>> {
  static constexpr auto of(const And<A, B>& m, Index b) {
    return product(BandsOf<A>::of(m.a, b), BandsOf<B>::of(m.b, b));
  }
};
template <Banded A, Banded B> struct BandsOf<Or<A, B>> {
  static constexpr auto of(const Or<A, B>& m, Index b) {
    return either(BandsOf<A>::of(m.a, b), BandsOf<B>::of(m.b, b));
  }
};
template <Banded A> struct BandsOf<Not<A>> {
  static constexpr auto of(const Not<A>& m, Index b) {
    return sum(BandsOf<Full>::of({}, b), BandsOf<A>::of(m.a, b), -1);
  }
};

}  // namespace mha::inline MHA_NAMESPACE::detail
