// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include <mha/policy/any_scaling.hpp>

#include "golden.hpp"

namespace golden {

/// How a case stretches its positions.
inline mha::AnyScaling scaling_of(const Case& c) {
  if (!c.has("scaling")) return {};
  const std::string& scaling = c.text("scaling");
  if (scaling == "longrope")
    return mha::LongRopeScaling{.factors = c.tensor("factors").values, .attention_factor = c.real("attention_factor")};
  const double factor = c.real("factor");
  if (scaling == "linear") return mha::LinearScaling{factor};
  if (scaling == "ntk") return mha::NtkScaling{factor};
  if (scaling == "llama3")
    return mha::Llama3Scaling{factor, c.real("low_frequency"), c.real("high_frequency"), c.real("original_length")};
  if (scaling != "yarn") throw std::runtime_error(c.name + " has the scaling '" + scaling + "', which is not known");
  mha::YarnScaling yarn{.factor = factor, .original_length = c.real("original_length")};
  yarn.fast = c.real("fast");
  yarn.slow = c.real("slow");
  yarn.rounded = c.integer("rounded") != 0;
  if (c.has("attention_factor")) yarn.attention_factor = c.real("attention_factor");
  return yarn;
}

}  // namespace golden
