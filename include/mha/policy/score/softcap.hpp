// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <span>
#include <type_traits>

#include "../../core/check.hpp"
#include "../../core/math.hpp"
#include "../score.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Keeps logits inside (−cap, cap), nearly linear around 0.
///
/// Formula   cap · tanh(s / cap)
/// Numerics  the cap and its gradient are float in a double call too
/// Errors    ShapeError if cap is not a positive finite number, or if 1 / cap is not one
/// Source    Gemma 2 technical report 2024, §2
struct SoftCap {
  static constexpr Role role = Role::score;
  static constexpr const char* name = "SoftCap";
  Required<float> cap;

  template <class T> MHA_HOST_DEVICE T operator()(T s, Index, Index, Index, Index) const {
    using mha::tanh;
    if constexpr (MHA_ON_DEVICE || Arithmetic<T>)
      return cap.value * tanh(s * (T(1) / cap.value));  // one division for all logits of a tile or thread
    else
      return cap.value * tanh(s / cap.value);
  }

  // Its cap is trained where ScoreGradient asks for it: few train it, and it takes the dual numbers of two variables.
  static constexpr bool trained = true, trained_if_asked = true;
  static constexpr int parameters = 1;
  template <class D> struct Shifted {
    static constexpr Role role = Role::score;
    D cap;
    MHA_HOST_DEVICE D operator()(const D& s, Index, Index, Index, Index) const { return cap * mha::tanh(s / cap); }
  };
  template <class Duals> MHA_HOST_DEVICE auto shifted(const Duals& by) const {
    return Shifted<std::remove_cvref_t<decltype(by[0])>>{by[0] + cap.value};
  }
  template <class Sums> void add(const Sums& sums, int& slot, int&) {
    cap.value += static_cast<float>(sums.of(slot++));
  }
  std::span<float> numbers() { return {&cap.value, 1}; }
  std::span<const float> numbers() const { return {&cap.value, 1}; }

  void check(Index) const {
    detail::require_positive("SoftCap", "cap", static_cast<double>(cap.value));
    detail::require(std::isfinite(1 / cap.value), "SoftCap: cap is ", cap.value, ", which is too small: 1 / cap is ∞");
  }
  SoftCap prepared(const CallShape& s) const {
    check(s.heads);
    return *this;
  }
};

}  // namespace mha::inline MHA_NAMESPACE
