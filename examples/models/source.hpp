// SPDX-License-Identifier: Apache-2.0
// Where a decoder's weights are, and how it keeps its matrices.
#pragma once

#include <memory>

namespace models {

/// The matrices that products read, those of the logits among them: as the checkpoint stores them, or rounded to 8
/// bits, which takes about a byte for a number on Cpu. Norms, biases and the tables are never rounded.
enum class Matrices { as_stored, in_8_bits };

struct Source {
  std::shared_ptr<const void> file;  // keeps the weights
  Matrices matrices = Matrices::as_stored;

  /// The part (an attention layer, a FeedForward or a Linear) computes with the weights from now on.
  template <class Part, class Weights> void give(Part& part, const Weights& weights) const {
    if (matrices == Matrices::in_8_bits)
      part.quantize(weights);
    else
      part.borrow(weights, file);
  }
};

}  // namespace models
