// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <utility>
#include <variant>

#include "../config.hpp"
#include "rotary_scaling.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A scaling of Rotary that is chosen when the program runs, as by a checkpoint's config.json: one of those that
/// rotary_scaling.hpp has, whose results it gives bit for bit.
///
///   mha::Rotary<mha::Halves, mha::AnyScaling> rotary{.scaling = mha::YarnScaling{.factor = 4, .original_length =
///   32768}};
struct AnyScaling {
  using Variant = std::variant<Unscaled, LinearScaling, NtkScaling, Llama3Scaling, YarnScaling, LongRopeScaling>;
  Variant one;

  AnyScaling() = default;
  template <class Scaling>
  requires std::constructible_from<Variant, Scaling> &&(!std::same_as<Scaling, AnyScaling>)AnyScaling(Scaling scaling)
      : one(std::move(scaling)) {}

  double base(double base, Index turning) const {
    return std::visit([&](const auto& s) { return s.base(base, turning); }, one);
  }
  double frequency(const TurningPair& pair) const {
    return std::visit([&](const auto& s) { return s.frequency(pair); }, one);
  }
  double magnitude() const {
    return std::visit([](const auto& s) { return detail::magnitude_of(s); }, one);
  }
  void check() const {
    std::visit([](const auto& s) { s.check(); }, one);
  }
  std::string in_words() const {
    return std::visit([](const auto& s) { return detail::scaling_in_words(s); }, one);
  }
  friend bool operator==(const AnyScaling&, const AnyScaling&) = default;
};

}  // namespace mha::inline MHA_NAMESPACE
