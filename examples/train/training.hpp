// SPDX-License-Identifier: Apache-2.0
// The loop: guess, measure, go back, step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "adamw.hpp"
#include "model.hpp"
#include "text.hpp"

namespace train {

struct TrainingOptions {
  int steps = 1500;
  std::uint64_t seed = 1;       ///< of the windows that are drawn
  double rate = 3e-3;           ///< the largest
  double largest_gradient = 1;  ///< the gradient of all weights together is made this long if it is longer
  AdamWOptions adamw{};
};

/// The loss of a step, or of a text after so many steps, in nats per character.
struct Point {
  int step;
  double loss;
};

struct Course {
  std::vector<double> losses;   // of every step
  std::vector<Point> held_out;  // before the first step, on the way and after the last
  double seconds = 0;
};

/// Trains the model for a number of steps. Nothing depends on the time or on the number of threads.
///
/// watch(step, loss) is called after each step with a loss that is smoothed over some steps.
Course train_model(Model<float>& model, const Text& text, const TrainingOptions& options,
                   const std::function<void(int, double)>& watch);

/// One step's loss; the gradients are those of this batch alone.
double learn(Model<float>& model, const Batch& batch);

/// The mean loss over the text, cut into windows that are read each for itself.
double loss_of(Model<float>& model, std::span<const int> tokens);

}  // namespace train
