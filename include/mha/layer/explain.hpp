// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "cost.hpp"

namespace mha::inline v0::detail {

/// The facts of a layer's call, one a line.
inline std::string explain_layer(const Config& c, const Cost& cost, const std::string& weights,
                                 const std::string& policies, const std::string& kernel, std::size_t scalar_bytes) {
  const auto n = [](auto x) { return std::to_string(x); };
  const auto gflop = [](double flop) { return std::to_string(flop * 1e-9) + " GFLOP"; };
  return "heads:       " + n(c.num_heads) + " query, " + n(c.num_kv_heads) + " key/value, head_dim " + n(c.head_dim) +
         ", value_dim " + n(c.value_dim) +                                                            //
         "\nweights:     " + weights +                                                                //
         "\npolicies:    " + policies +                                                               //
         "\nprojections: " + gflop(cost.projection_flop + cost.output_flop) + " in dense products" +  //
         "\nattention:   " + gflop(cost.attention_flop()) + " if every pair were visible" +           //
         "\nkernel:      " + kernel +                                                                 //
         "\nworkspace:   " +
         n(static_cast<long long>(cost.activation_elements) * static_cast<long long>(scalar_bytes)) +
         " bytes for Q, K, V and the heads\n";
}

}  // namespace mha::inline v0::detail
