// SPDX-License-Identifier: Apache-2.0
// The optimiser: how far each number moves along its gradient.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <numbers>
#include <span>
#include <vector>

namespace train {

/// The learning rate of a step: a line up during the warm-up, then half a cosine down to a tenth.
struct Schedule {
  double peak = 0;
  int warm_up = 0, steps = 0;

  double operator()(int step) const {
    if (step < warm_up) return peak * (step + 1) / warm_up;
    const double done = double(step - warm_up) / std::max(1, steps - warm_up);
    return peak * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * done)));
  }
};

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.99;  ///< how much the averages of gradients and of their squares keep
  double eps = 1e-8;
  double decay = 0.1;  ///< of weights towards 0; norms and the embedding are spared
};

/// Adam with decoupled weight decay.
///
/// Formula   m ← β₁m + (1 − β₁)g   v ← β₂v + (1 − β₂)g²   w ← w − rate·(m̂ / (√v̂ + ε) + decay·w)
///           m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ) in step t = 1, 2, …
/// Source    Loshchilov & Hutter 2019, Decoupled weight decay regularization, algorithm 2
template <class T> class AdamW {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}

  /// Begins a step; the parts of the model follow, in the same order in every step.
  void begin(double rate) {
    rate_ = rate;
    ++step_;
    next_ = 0;
  }

  /// Moves one part. Gradients are multiplied by `scale` first.
  void operator()(std::span<T> weights, std::span<const T> gradients, double scale, bool decays) {
    if (next_ == moments_.size()) moments_.push_back({std::vector<T>(weights.size()), std::vector<T>(weights.size())});
    Moments& moments = moments_[next_++];
    const T beta1 = T(options_.beta1), beta2 = T(options_.beta2), factor = T(scale);
    const T keep = T(1 - (decays ? rate_ * options_.decay : 0));
    const T by1 = T(rate_ / (1 - std::pow(options_.beta1, step_)));
    const T by2 = T(1 / (1 - std::pow(options_.beta2, step_)));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const T g = factor * gradients[i];
      T &m = moments.mean[i], &v = moments.square[i];
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * g * g;
      weights[i] = keep * weights[i] - by1 * m / (std::sqrt(by2 * v) + T(options_.eps));
    }
  }

 private:
  struct Moments {
    std::vector<T> mean, square;
  };
  AdamWOptions options_;
  std::deque<Moments> moments_;  // of each part
  double rate_ = 0;
  int step_ = 0;
  std::size_t next_ = 0;
};

}  // namespace train
