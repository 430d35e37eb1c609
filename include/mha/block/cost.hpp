// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What one stage of a model costs. A multiplication with its addition counts as 2 FLOP; only products are counted.
struct StageCost {
  std::int64_t parameters = 0;  ///< numbers, biases included
  double flop = 0;
  double bytes = 0;  ///< its weights, what it reads and what it leaves, each once

  friend StageCost operator+(const StageCost& a, const StageCost& b) {
    return {a.parameters + b.parameters, a.flop + b.flop, a.bytes + b.bytes};
  }
};

}  // namespace mha::inline MHA_NAMESPACE
