// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>

#include "../backend/backend.hpp"
#include "../core/scalar.hpp"
#include "cost.hpp"

namespace mha::inline v0::detail {

/// The facts of a layer's call, one a line.
template <class T, Backend B>
std::string explain_layer(const Config& c, const Cost& cost, const CallShape& shape, const std::string& weights,
                          std::initializer_list<const char*> policies) {
  const auto n = [](auto x) { return std::to_string(static_cast<long long>(x)); };
  const auto stage = [&](const char* name, double flop, double bytes) {
    return name + std::to_string(flop * 1e-9) + " GFLOP, " + n(bytes) + " bytes";
  };
  std::string list;
  for (const char* policy : policies) list += (list.empty() ? "" : ", ") + std::string(policy);
  return "heads:       " + n(c.num_heads) + " query, " + n(c.num_kv_heads) + " key/value, head_dim " + n(c.head_dim) +
         ", value_dim " + n(c.value_dim) +                                                                //
         "\nweights:     " + n(cost.parameters()) + " " + scalar_name<T>() + ", " + weights +             //
         "\npolicies:    " + list +                                                                       //
         stage("\nprojections: ", cost.projection.flop, cost.projection.bytes) +                          //
         stage("\nattention:   ", cost.attention_flop(), cost.score.bytes + cost.value.bytes) +           //
         "\nvisible:     " + n(cost.visible_pairs) + " of " +                                             //
         n(double(shape.batch) * shape.queries * shape.keys) + " pairs of each head" +                    //
         stage("\noutput:      ", cost.output.flop, cost.output.bytes) +                                  //
         "\nkernel:      " + B{}.template explain<T>({shape, c.num_kv_heads, c.head_dim, c.value_dim}) +  //
         "\nworkspace:   " + n(cost.activation_elements * sizeof(T)) + " bytes for Q, K, V and the heads\n";
}

}  // namespace mha::inline v0::detail
