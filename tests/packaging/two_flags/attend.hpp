// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <mha/mha.hpp>

#include "other.hpp"

/// Compiled in both units.
inline void attend(const Call& c) {
  const mha::TensorView<const float, 4> q = mha::view(c.q, 1, c.queries, c.heads, c.dim),
                                        k = mha::view(c.k, 1, c.keys, c.heads, c.dim),
                                        v = mha::view(c.v, 1, c.keys, c.heads, c.dim);
  const auto out = mha::view(c.out, 1, c.queries, c.heads, c.dim);
  const auto log_sum_exp = mha::view(c.log_sum_exp, 1, c.heads, c.queries);
  const mha::Sink sink(std::vector<float>(static_cast<std::size_t>(c.heads), 0.3f));
  mha::attention_into(out, q, k, v, mha::Causal{}, sink, mha::LogSumExp(log_sum_exp));
}
