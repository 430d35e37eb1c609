// SPDX-License-Identifier: Apache-2.0
// The weights of a checkpoint in the scalar that it has:
//
//   models::with_stored<mha::Gpt2>(folder, [](const auto& weights) { models::Gpt2<> gpt2(weights); … });
#pragma once

#include <optional>

#include <mha/io.hpp>

namespace models {

/// The weights, if all that they are is stored as their scalar.
template <class Weights> std::optional<Weights> stored_as(const mha::Checkpoint& checkpoint) {
  try {
    return Weights(checkpoint);
  } catch (const mha::SafetensorsError&) {
    return std::nullopt;
  }
}

/// f(weights) with Family<bfloat16> or Family<half>, if every tensor that the family reads is stored so, else with
/// Family<float>, which widens those in 16 bits.
///
/// Errors    as Family<float>
template <template <class> class Family, class F> auto with_stored(const mha::Checkpoint& checkpoint, const F& f) {
  if (const auto weights = stored_as<Family<mha::bfloat16>>(checkpoint)) return f(*weights);
  if (const auto weights = stored_as<Family<mha::half>>(checkpoint)) return f(*weights);
  return f(Family<float>(checkpoint));
}

}  // namespace models
