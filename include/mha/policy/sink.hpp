// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "role.hpp"
#include "shared_numbers.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A term of every row's denominator that has no value row: a query may attend to no key.
template <class P>
concept SinkPolicy = plays<P, Role::sink>;

/// Rows are normalised by what they see.
struct NoSink {
  static constexpr Role role = Role::sink;
  static constexpr const char* name = "none";
  constexpr Borrowed<float> logits(Index) const { return {}; }
};

/// One learned logit per query head joins the softmax as if it were a key with the value 0.
///
/// Formula   weight_k = exp(s_k − m) / (Σ exp(s_j − m) + exp(sink_h − m))
/// Shapes    logits (Hq)
/// Numerics  the logits and their gradients are float in a double call too; they are not part of the log-sum-exp; a
///           fully masked row stays 0
/// Errors    ShapeError if there is not one logit per head, or one is NaN or +∞
/// Source    Xiao et al. 2023; OpenAI gpt-oss 2025
class Sink {
 public:
  static constexpr Role role = Role::sink;
  static constexpr const char* name = "Sink";

  explicit Sink(std::vector<float> per_head) : logits_(std::move(per_head)) {}

  const std::vector<float>& per_head() const { return logits_.get(); }
  /// The logits, to write; copies keep those that they have.
  std::span<float> numbers() { return logits_.writable(); }
  std::span<const float> numbers() const { return logits_.get(); }

  /// The logits for a call with this many heads.
  Borrowed<float> logits(Index heads) const {
    const Borrowed<float> all(per_head());
    detail::require(all.size == heads, "Sink: ", all.size, " logits for ", heads, " heads");
    for (Index h = 0; h < all.size; ++h)
      detail::require(all[h] < std::numeric_limits<float>::infinity(), "Sink: the logit of head ", h, " is ", all[h],
                      ", it must be below infinity");
    return all;
  }

 private:
  detail::SharedNumbers logits_;
};

}  // namespace mha::inline MHA_NAMESPACE
