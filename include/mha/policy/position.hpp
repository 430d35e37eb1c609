// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <numbers>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "role.hpp"

namespace mha::inline v0 {

/// How a row's position enters q and k: `void apply(TensorView<T, 4> x, const Origins& first) const`, in place, row l
/// of sequence b at position first[b] + l.
template <class P>
concept Position = plays<P, Role::position>;

/// Positions do not enter.
struct NoPosition {
  static constexpr Role role = Role::position;
  static constexpr const char* name = "NoPosition";
};

/// Which two coordinates turn together, of the r that turn at all.
struct Halves {  ///< (d, d + r/2): GPT-NeoX, Hugging Face LLaMA
  static constexpr Index first(Index pair, Index) { return pair; }
  static constexpr Index second(Index pair, Index r) { return pair + r / 2; }
};
struct Interleaved {  ///< (2d, 2d + 1): GPT-J, Meta LLaMA
  static constexpr Index first(Index pair, Index) { return 2 * pair; }
  static constexpr Index second(Index pair, Index) { return 2 * pair + 1; }
};

/// Frequencies as they were trained.
struct Unscaled {
  double base(double base, Index) const { return base; }
  double frequency(double f) const { return f; }
  void check() const {}
};

/// Positions divided by a factor: position interpolation.
///
/// Source    Chen et al. 2023
struct LinearScaling {
  Required<double> factor;
  double base(double base, Index) const { return base; }
  double frequency(double f) const { return f / factor.value; }
  void check() const {
    detail::require(factor.value > 0 && std::isfinite(factor.value), "LinearScaling: factor is ", factor.value,
                    ", it must be a positive finite number");
  }
};

/// The base grows so that the slowest pair is stretched by the factor and the fastest stays.
///
/// Formula   base · factor^(r / (r − 2))
struct NtkScaling {
  Required<double> factor;
  double base(double base, Index r) const { return r > 2 ? base * std::pow(factor.value, double(r) / (r - 2)) : base; }
  double frequency(double f) const { return f; }
  void check() const {
    detail::require(factor.value > 0 && std::isfinite(factor.value), "NtkScaling: factor is ", factor.value,
                    ", it must be a positive finite number");
  }
};

/// Llama 3.1: wavelengths beyond original_length / low_frequency are stretched by the factor, those below
/// original_length / high_frequency stay, between them the frequency is interpolated.
///
/// Source    Llama 3 herd of models 2024, §3.4.3, and the published checkpoints' rope_scaling
struct Llama3Scaling {
  double factor = 8, low_frequency = 1, high_frequency = 4;
  double original_length = 8192;
  double base(double base, Index) const { return base; }
  double frequency(double f) const {
    const double turns = original_length * f / (2 * std::numbers::pi);  // full turns within the original length
    if (turns < low_frequency) return f / factor;
    if (turns > high_frequency) return f;
    const double smooth = (turns - low_frequency) / (high_frequency - low_frequency);
    return (1 - smooth) * f / factor + smooth * f;
  }
  void check() const {
    detail::require(factor > 0 && std::isfinite(factor), "Llama3Scaling: factor is ", factor,
                    ", it must be a positive finite number");
    detail::require(original_length > 0 && std::isfinite(original_length), "Llama3Scaling: original_length is ",
                    original_length, ", it must be a positive finite number");
    detail::require(low_frequency >= 0, "Llama3Scaling: low_frequency is ", low_frequency, ", the least is 0");
    detail::require(low_frequency < high_frequency && std::isfinite(high_frequency), "Llama3Scaling: low_frequency ",
                    low_frequency, " is not below a finite high_frequency, which is ", high_frequency);
  }
};

/// Rotary position embedding: pairs of coordinates turn by position · frequency, so that q·k depends on distance.
///
/// Formula   (x, y) → (x cos a − y sin a, x sin a + y cos a),  a = position · base^(−2i/r) for pair i
/// Shapes    (B, L, H, D) in place; the first r = dims coordinates turn (all of D if 0), the rest stay
/// Numerics  angles in double precision, their sine and cosine rounded to the accumulator
/// Errors    ShapeError if dims is odd, negative or larger than D, or base or the scaling is out of range
/// Source    Su et al. 2021, eq. 34
template <class Pairing = Halves, class Scaling = Unscaled> struct Rotary {
  static constexpr Role role = Role::position;
  static constexpr const char* name = std::same_as<Pairing, Halves> ? "Rotary<Halves>" : "Rotary<Interleaved>";
  double base = 10000;
  Index dims = 0;
  Scaling scaling{};

  /// Checks the values against the head size.
  void check(Index head_dim) const {
    detail::require(dims >= 0 && dims <= head_dim, "Rotary: dims is ", dims, " but the head size is ", head_dim);
    detail::require(turning(head_dim) % 2 == 0, "Rotary: ", turning(head_dim), " coordinates of ", head_dim,
                    " would turn, an even number is wanted");
    detail::require(base > 0 && std::isfinite(base), "Rotary: base is ", base, ", it must be a positive finite number");
    scaling.check();
    const double scaled = scaling.base(base, turning(head_dim));
    detail::require(scaled > 0 && std::isfinite(scaled), "Rotary: base ", base, " is scaled to ", scaled,
                    ", it must stay a positive finite number");
  }

  template <class T> void apply(const TensorView<T, 4>& x, const Origins& first) const {
    using A = Accumulator<T>;
    const Index r = turning(x.dim());
    const double scaled_base = scaling.base(base, r);
    // Pairs are taken so many at a time that their frequencies need no memory of their own.
    constexpr Index most = 64;
    std::array<double, most> frequency{};
    for (Index begin = 0; begin < r / 2; begin += most) {
      const Index end = std::min(begin + most, r / 2);
      for (Index i = begin; i < end; ++i)
        frequency[static_cast<std::size_t>(i - begin)] = scaling.frequency(std::pow(scaled_base, -2.0 * double(i) / r));
      for (Index b = 0; b < x.batch(); ++b)
        for (Index l = 0; l < x.length(); ++l)
          for (Index i = begin; i < end; ++i) {
            const double angle = (double(first[b]) + l) * frequency[static_cast<std::size_t>(i - begin)];
            const A c = static_cast<A>(std::cos(angle)), s = static_cast<A>(std::sin(angle));
            for (Index h = 0; h < x.heads(); ++h) {
              T& even = x(b, l, h, Pairing::first(i, r));
              T& odd = x(b, l, h, Pairing::second(i, r));
              const A u(even), v(odd);
              even = T(u * c - v * s);
              odd = T(u * s + v * c);
            }
          }
    }
  }

 private:
  Index turning(Index head_dim) const { return dims == 0 ? head_dim : dims; }
};

}  // namespace mha::inline v0
