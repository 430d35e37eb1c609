// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../../config.hpp"

/// How many bfloat16 products stand for one product of floats, named as on TPUs. An operand x is split into bfloat16
/// parts x₀ = round(x), x₁ = round(x − x₀), x₂ = round(x − x₀ − x₁); the products of parts are added, small ones first.
///
/// Numerics  relative error of one operand: 2⁻⁸ or less with one part, 2⁻¹⁷ with two, 2⁻²⁵ with three.
///           With more than one part of both, an infinite operand gives NaN (∞ · 0), and so does one that rounds to
///           infinity
namespace mha::inline MHA_NAMESPACE {

/// Part `a` of the activations times part `b` of the weights.
struct PartProduct {
  Index a, b;
};

/// x₀y₀: one product of bfloat16.
struct DefaultPrecision {
  static constexpr const char* name = "default";
  static constexpr Index parts = 1;
  static constexpr PartProduct products[] = {{0, 0}};
};

/// x₁y₀ + x₀y₁ + x₀y₀: three products, about 2⁻¹⁶ per product.
struct HighPrecision {
  static constexpr const char* name = "high";
  static constexpr Index parts = 2;
  static constexpr PartProduct products[] = {{1, 0}, {0, 1}, {0, 0}};
};

/// All six products down to 2⁻²⁴: what float32 itself gives.
struct HighestPrecision {
  static constexpr const char* name = "highest";
  static constexpr Index parts = 3;
  static constexpr PartProduct products[] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
};

}  // namespace mha::inline MHA_NAMESPACE
