// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <utility>
#include <variant>

#include "../config.hpp"
#include "rotary_scaling.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// One of several scalings. A template, so that a file that names no AnyScaling compiles no visit of the variant.
template <class... Scalings> struct ScalingOf {
  using Variant = std::variant<Scalings...>;
  Variant one;

  ScalingOf() = default;
  template <class Scaling>
  requires(std::same_as<Scaling, Scalings> || ...) ScalingOf(Scaling scaling) : one(std::move(scaling)) {}

  double base(double base, Index turning) const {
    return std::visit([&](const auto& s) { return s.base(base, turning); }, one);
  }
  double frequency(const TurningPair& pair) const {
    return std::visit([&](const auto& s) { return s.frequency(pair); }, one);
  }
  double magnitude() const {
    return std::visit([](const auto& s) { return magnitude_of(s); }, one);
  }
  void check() const {
    std::visit([](const auto& s) { s.check(); }, one);
  }
  std::string in_words() const {
    return std::visit([](const auto& s) { return scaling_in_words(s); }, one);
  }
  friend bool operator==(const ScalingOf&, const ScalingOf&) = default;
};

}  // namespace detail

/// A scaling of Rotary that is chosen when the program runs, as by a checkpoint's config.json: one of those that
/// rotary_scaling.hpp has, whose results it gives bit for bit.
///
///   mha::Rotary<mha::Halves, mha::AnyScaling> rotary{.scaling = mha::YarnScaling{.factor = 4, .original_length =
///   32768}};
using AnyScaling = detail::ScalingOf<Unscaled, LinearScaling, NtkScaling, Llama3Scaling, YarnScaling, LongRopeScaling>;

}  // namespace mha::inline MHA_NAMESPACE
