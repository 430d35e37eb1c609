// SPDX-License-Identifier: Apache-2.0
// The choice of the next token from its logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace generate {

/// How a token is drawn; the cuts come in this order, as in Hugging Face's generate().
struct Sampling {
  double temperature = 1;  ///< logits are divided by it; 0: always the likeliest token, the first of equal ones
  int top_k = 0;           ///< only the k likeliest, and those as likely as the last of them; 0: all
  double top_p = 1;        ///< only the likeliest that together reach this probability, one at least
  std::uint64_t seed = 0;
};

/// A token that may be drawn.
struct Candidate {
  int id;
  double probability;
};

/// The tokens that the cuts leave, and their probabilities, which sum to 1: a temperature of 0 leaves one. Sorted by
/// id; of equal tokens at the edge of top_p the first are kept.
///
/// Errors    std::runtime_error if a logit is NaN or +∞, or all are −∞
std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& how);

/// Draws tokens, for each of which it takes one number of std::mt19937_64, whose bits the standard fixes: equal seeds
/// and logits give equal tokens on every machine, as far as its exp() agrees to the last digit.
class Sampler {
 public:
  /// Errors    std::runtime_error if a number of `how` is out of range
  explicit Sampler(const Sampling& how);

  int operator()(std::span<const float> logits);

 private:
  Sampling how_;
  std::mt19937_64 draw_;
};

}  // namespace generate
