// SPDX-License-Identifier: Apache-2.0
// Where a decoder's weights are, and how it keeps its matrices.
#pragma once

#include <memory>

#include <mha/block.hpp>

namespace models {

/// The matrices that products read, those of the logits among them: as the checkpoint stores them, or rounded to 8 or 4
/// bits, which take about 1.02 and 0.56 bytes a number on Cpu. Norms, biases and the tables are never rounded.
enum class Matrices { as_stored, in_8_bits, in_4_bits };

struct Source {
  std::shared_ptr<const void> file;  // keeps the weights
  Matrices matrices = Matrices::as_stored;

  /// The part (an attention layer, a FeedForward or a Linear) computes with the weights from now on.
  template <class Part, class Weights> void give(Part& part, const Weights& weights) const {
    if (matrices == Matrices::in_8_bits)
      part.template quantize<mha::scaled_int8>(weights);
    else if (matrices == Matrices::in_4_bits)
      part.template quantize<mha::scaled_int4>(weights);
    else
      part.borrow(weights, file);
  }
};

}  // namespace models
