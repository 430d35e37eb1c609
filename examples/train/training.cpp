// SPDX-License-Identifier: Apache-2.0
#include "training.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "loss.hpp"

namespace train {
namespace {

/// Of all gradients together.
double length_of_gradient(Model<float>& model) {
  double sum = 0;
  model.for_each([&](auto&, auto& gradients, bool) {
    for (const float g : gradients.flat()) sum += double(g) * double(g);
  });
  return std::sqrt(sum);
}

/// The mean loss of a batch; the logits become their gradients.
double measure(Model<float>& model, const Batch& batch, const Model<float>::Rows& logits) {
  std::vector<double> losses(batch.targets.size());
  return cross_entropy(mha::view(logits.data, logits.extent[0] * logits.extent[1], logits.extent[2]), batch.targets,
                       losses, model.threads());
}

}  // namespace

double learn(Model<float>& model, const Batch& batch) {
  const auto logits = model.forward(batch.ids, static_cast<int>(batch.ids.size()) / model.config().context);
  const double loss = measure(model, batch, logits);
  model.clear_gradients();
  model.backward(logits);
  return loss;
}

double loss_of(Model<float>& model, std::span<const int> tokens) {
  const auto context = static_cast<std::size_t>(model.config().context);
  const std::size_t windows = (tokens.size() - 1) / context;
  double sum = 0;
  Batch batch;
  for (std::size_t first = 0; first < windows;) {
    const std::size_t count = std::min(windows - first, static_cast<std::size_t>(model.config().batch));
    batch.clear();
    for (std::size_t i = 0; i < count; ++i) batch.add(tokens, (first + i) * context, model.config().context);
    sum += measure(model, batch, model.forward(batch.ids, static_cast<int>(count))) * static_cast<double>(count);
    first += count;
  }
  return sum / static_cast<double>(windows);
}

Course train_model(Model<float>& model, const Text& text, const TrainingOptions& options,
                   const std::function<void(int, double)>& watch) {
  const ModelConfig& c = model.config();
  Batches batches(text.learned, c.batch, c.context, options.seed);
  AdamW<float> adamw(options.adamw);
  const Schedule rate{.peak = options.rate, .warm_up = std::min(100, options.steps / 10), .steps = options.steps};
  Course course;
  course.held_out.push_back({0, loss_of(model, text.held_out)});
  const auto start = std::chrono::steady_clock::now();
  double smooth = 0;
  for (int step = 0; step < options.steps; ++step) {
    const double loss = learn(model, batches.next());
    const double scale = std::min(1.0, options.largest_gradient / length_of_gradient(model));
    adamw.begin(rate(step));
    model.for_each([&](auto& part, auto& gradients, bool decays) {
      part.update([&](auto& p) { adamw(p.flat(), gradients.flat(), scale, decays); });
    });

    course.losses.push_back(loss);
    smooth += (loss - smooth) / std::min(step + 1, 30);
    watch(step + 1, smooth);
    // Ten times on the way, and at the end.
    if (step + 1 == options.steps || (step + 1) % std::max(50, options.steps / 10) == 0)
      course.held_out.push_back({step + 1, loss_of(model, text.held_out)});
  }
  course.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return course;
}

}  // namespace train
