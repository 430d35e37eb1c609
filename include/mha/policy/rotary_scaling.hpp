// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "../config.hpp"
#include "../core/check.hpp"
#include "role.hpp"

/// Scalings of Rotary: how its frequencies change so that a model reads longer texts than it was trained on.
namespace mha::inline MHA_NAMESPACE {

/// Two coordinates that turn together, as a scaling meets them.
struct TurningPair {
  Index index, turning;    ///< which pair; how many coordinates turn
  double base, frequency;  ///< frequency = base^(−2 · index / turning)
};

/// Frequencies as they were trained.
struct Unscaled {
  double base(double base, Index) const { return base; }
  double frequency(const TurningPair& pair) const { return pair.frequency; }
  void check() const {}
  friend bool operator==(const Unscaled&, const Unscaled&) = default;
};

/// Positions divided by a factor: position interpolation.
///
/// Source    Chen et al. 2023
struct LinearScaling {
  static constexpr const char* name = "LinearScaling";
  Required<double> factor;
  double base(double base, Index) const { return base; }
  double frequency(const TurningPair& pair) const { return pair.frequency / factor.value; }
  void check() const { detail::require_positive("LinearScaling", "factor", factor.value); }
  friend bool operator==(const LinearScaling&, const LinearScaling&) = default;
};

/// The base grows so that the slowest pair is stretched by the factor and the fastest stays.
///
/// Hugging Face's rope_type "dynamic" changes it with the length of the text, which would turn keys anew that a cache
/// keeps turned. For texts of at most L tokens, trained for n: factor = 1 + f · (L / n − 1), f being the file's factor.
///
/// Formula   base · factor^(r / (r − 2))
struct NtkScaling {
  static constexpr const char* name = "NtkScaling";
  Required<double> factor;
  double base(double base, Index r) const { return r > 2 ? base * std::pow(factor.value, double(r) / (r - 2)) : base; }
  double frequency(const TurningPair& pair) const { return pair.frequency; }
  void check() const { detail::require_positive("NtkScaling", "factor", factor.value); }
  friend bool operator==(const NtkScaling&, const NtkScaling&) = default;
};

/// Llama 3.1: wavelengths beyond original_length / low_frequency are stretched by the factor, those below
/// original_length / high_frequency stay, between them the frequency is interpolated.
///
/// Source    Llama 3 herd of models 2024, §3.4.2, and the published checkpoints' rope_scaling
struct Llama3Scaling {
  static constexpr const char* name = "Llama3Scaling";
  double factor = 8, low_frequency = 1, high_frequency = 4;
  double original_length = 8192;
  double base(double base, Index) const { return base; }
  double frequency(const TurningPair& pair) const {
    const double f = pair.frequency;
    const double turns = original_length * f / (2 * std::numbers::pi);  // full turns within the original length
    if (turns < low_frequency) return f / factor;
    if (turns > high_frequency) return f;
    const double smooth = (turns - low_frequency) / (high_frequency - low_frequency);
    return (1 - smooth) * f / factor + smooth * f;
  }
  void check() const {
    detail::require_positive("Llama3Scaling", "factor", factor);
    detail::require_positive("Llama3Scaling", "original_length", original_length);
    detail::require(low_frequency >= 0, "Llama3Scaling: low_frequency is ", low_frequency, ", it must be at least 0");
    detail::require(low_frequency < high_frequency && std::isfinite(high_frequency), "Llama3Scaling: low_frequency ",
                    low_frequency, " is not below a finite high_frequency, which is ", high_frequency);
  }
  friend bool operator==(const Llama3Scaling&, const Llama3Scaling&) = default;
};

/// YaRN: pairs that turn more than `fast` times within the original length stay, those that turn less than `slow` times
/// are stretched by the factor, between them the share grows linearly with the number of the pair; q and k grow, which
/// makes the softmax sharper.
///
/// Formula   (1 − t) · f + t · f / factor,  t = clamp((i − i_fast) / (i_slow − i_fast), 0, 1) for pair i, where pair
///           i_n = r · ln(original_length / 2πn) / (2 · ln base) turns n times, i_fast at least 0 and i_slow at most
///           r − 1; x is multiplied by attention_factor
/// Errors    ShapeError as the others, and if base is not above 1
/// Source    Peng et al. 2023, §3.2 to 3.4, eqs. 17 to 22; the bounds of i_fast and i_slow, `rounded` and the factor as
///           in Hugging Face's transformers
struct YarnScaling {
  static constexpr const char* name = "YarnScaling";
  Required<double> factor, original_length;
  double fast = 32, slow = 1;                ///< beta_fast, beta_slow
  std::optional<double> attention_factor{};  ///< unless given, 0.1 · ln(factor) + 1, at least 1
  bool rounded = true;                       ///< i_fast down and i_slow up, to whole pairs: `truncate`

  double base(double base, Index) const {
    detail::require(base > 1, "YarnScaling: base is ", base, ", it must be above 1");
    return base;
  }
  double frequency(const TurningPair& pair) const {
    const auto pair_of = [&](double turns) {
      return pair.turning * std::log(original_length.value / (2 * std::numbers::pi * turns)) /
             (2 * std::log(pair.base));
    };
    double first = pair_of(fast), last = pair_of(slow);
    if (rounded) first = std::floor(first), last = std::ceil(last);
    first = std::max(first, 0.0), last = std::min(last, pair.turning - 1.0);
    if (first == last) last += 0.001;
    const double share = std::clamp((pair.index - first) / (last - first), 0.0, 1.0);
    return (1 - share) * pair.frequency + share * pair.frequency / factor.value;
  }
  double magnitude() const {
    return attention_factor.value_or(factor.value <= 1 ? 1 : 0.1 * std::log(factor.value) + 1);
  }
  void check() const {
    detail::require_positive("YarnScaling", "factor", factor.value);
    detail::require_positive("YarnScaling", "original_length", original_length.value);
    detail::require_positive("YarnScaling", "slow", slow);
    detail::require(slow < fast && std::isfinite(fast), "YarnScaling: slow ", slow,
                    " is not below a finite fast, which is ", fast);
    detail::require_positive("YarnScaling", "attention_factor", magnitude());
  }
  friend bool operator==(const YarnScaling&, const YarnScaling&) = default;
};

/// LongRoPE: every pair is stretched by a factor of its own, as found by a search; q and k grow.
///
/// Formula   f / factors[i] for pair i; x is multiplied by attention_factor
/// Shapes    factors (r / 2), one for each pair that turns
/// Errors    ShapeError as the others, and if there is not one factor for each pair
/// Source    Ding et al. 2024, §3.3; as in Phi-3's checkpoints, whose short and long factors are two such lists
struct LongRopeScaling {
  static constexpr const char* name = "LongRopeScaling";
  std::vector<double> factors;
  double attention_factor = 1;

  double base(double base, Index r) const {
    detail::require(factors.size() == static_cast<std::size_t>(r / 2), "LongRopeScaling: ", Index(factors.size()),
                    " factors for ", r / 2, " pairs that turn, expected one each");
    return base;
  }
  double frequency(const TurningPair& pair) const {
    return pair.frequency / factors[static_cast<std::size_t>(pair.index)];
  }
  double magnitude() const { return attention_factor; }
  void check() const {
    for (const double factor : factors) detail::require_positive("LongRopeScaling", "a factor", factor);
    detail::require_positive("LongRopeScaling", "attention_factor", attention_factor);
  }
  friend bool operator==(const LongRopeScaling&, const LongRopeScaling&) = default;
};

namespace detail {

/// What a scaling multiplies x by beside turning it.
template <class Scaling> double magnitude_of(const Scaling& scaling) {
  if constexpr (requires { scaling.magnitude(); })
    return scaling.magnitude();
  else
    return 1;
}

/// What explain() calls a scaling; nothing if there is none.
template <class Scaling> std::string scaling_in_words(const Scaling& scaling) {
  if constexpr (std::same_as<Scaling, Unscaled>)
    return "";
  else if constexpr (requires { scaling.in_words(); })
    return scaling.in_words();
  else
    return policy_name<Scaling>();
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
