// SPDX-License-Identifier: Apache-2.0
// The training of examples/train as a shared library, for train_torch.py.
#include <random>
#include <string>

#include <mha/mha.hpp>

#include "../../examples/train/training.hpp"
#include "../measure.hpp"
#include "peer.hpp"

namespace {

struct Training {
  train::Model<float> model;
  train::Text text;

  explicit Training(int threads) : model(train::ModelConfig{}, 1, mha::ThreadPool(threads)) {
    std::mt19937 gen(1);
    std::uniform_int_distribution<int> byte(0, model.config().vocabulary - 1);
    for (int i = 0; i < 100000; ++i) text.learned.push_back(byte(gen));
    // Two, because none is judged in less: a window would be as much time as a third of a step.
    text.held_out = {0, 0};
  }
};

}  // namespace

MHA_PEER const char* peer_training_machine() {
  static const std::string text = bench::machine();
  return text.c_str();
}
MHA_PEER Training* peer_training_begin(int threads) { return new Training(threads); }
MHA_PEER int peer_training_parameters(Training* training) {
  return static_cast<int>(training->model.parameter_count());
}
/// So many steps of forward pass, backward pass and AdamW; the loss of the last.
MHA_PEER double peer_training_steps(Training* training, int steps) {
  return train::train_model(training->model, training->text, {.steps = steps}, [](int, double) {}).losses.back();
}
MHA_PEER void peer_training_end(Training* training) { delete training; }
