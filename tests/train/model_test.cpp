// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <cstddef>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "loss.hpp"

namespace {

using train::Model;
using train::ModelConfig;

constexpr ModelConfig kTiny{
    .vocabulary = 11, .width = 8, .hidden = 12, .heads = 2, .layers = 2, .context = 5, .batch = 3};

struct Example {
  std::vector<int> ids, targets;
};

Example some_example(const ModelConfig& c, int batch, int length, unsigned seed) {
  std::mt19937 draw(seed);
  Example e;
  for (int i = 0; i < batch * length; ++i) {
    e.ids.push_back(static_cast<int>(draw() % static_cast<unsigned>(c.vocabulary)));
    e.targets.push_back(static_cast<int>(draw() % static_cast<unsigned>(c.vocabulary)));
  }
  return e;
}

template <class T> double loss_of(Model<T>& model, const Example& e, int batch, bool back = false) {
  const auto logits = model.forward(e.ids, batch);
  std::vector<double> losses(e.targets.size());
  const double loss = train::cross_entropy(
      mha::view(logits.data, logits.extent[0] * logits.extent[1], logits.extent[2]), e.targets, losses, {});
  if (back) model.backward(logits);
  return loss;
}

/// Weights that a training might have: norms are not all 1, and no branch is small.
template <class T> void stir(Model<T>& model) {
  std::mt19937 draw(5);
  std::uniform_real_distribution<double> by(-0.3, 0.3);
  model.for_each([&](auto& part, auto&, bool) {
    part.update([&](auto& p) {
      for (T& w : p.flat()) w += T(by(draw));
    });
  });
}

TEST(TrainModel, GradientsAreTheSlopesOfTheLoss) {
  Model<double> model(kTiny, 1);
  stir(model);
  for (const auto& shape : {std::pair{3, 5}, {1, 4}}) {
    const int batch = shape.first;
    const Example e = some_example(kTiny, batch, shape.second, 7);
    model.clear_gradients();
    loss_of(model, e, batch, true);
    int parts = 0, checked = 0, moved = 0;
    model.for_each([&](auto& part, auto& gradients, bool) {
      ++parts;
      const std::size_t size = gradients.flat().size();
      for (std::size_t i = 0; i < size; i += 1 + size / 12) {
        constexpr double h = 1e-5;
        const auto move = [&](double by) { part.update([&](auto& p) { p.flat()[i] += by; }); };
        move(h);
        const double up = loss_of(model, e, batch);
        move(-2 * h);
        const double slope = (up - loss_of(model, e, batch)) / (2 * h);
        move(h);
        EXPECT_NEAR(gradients.flat()[i], slope, 1e-8) << "part " << parts << ", number " << i;
        ++checked;
        moved += slope > 1e-5 || slope < -1e-5;
      }
    });
    EXPECT_EQ(parts, 1 + 2 * 5 + 2);
    EXPECT_GT(checked, 100);
    EXPECT_GT(moved, checked / 2);
  }
}

TEST(TrainModel, BackwardAddsToTheGradients) {
  Model<double> model(kTiny, 1);
  const Example a = some_example(kTiny, 3, 5, 1), b = some_example(kTiny, 2, 5, 2);
  const auto gradients_of = [&](const std::vector<std::pair<const Example*, int>>& examples) {
    model.clear_gradients();
    for (const auto& [e, batch] : examples) loss_of(model, *e, batch, true);
    std::vector<double> all;
    model.for_each([&](auto&, auto& g, bool) { all.insert(all.end(), g.flat().begin(), g.flat().end()); });
    return all;
  };
  const auto of_a = gradients_of({{&a, 3}}), of_b = gradients_of({{&b, 2}}), of_both = gradients_of({{&a, 3}, {&b, 2}});
  ASSERT_EQ(of_both.size(), model.parameter_count());
  for (std::size_t i = 0; i < of_both.size(); ++i) EXPECT_NEAR(of_both[i], of_a[i] + of_b[i], 1e-12) << i;
}

TEST(TrainModel, SeesNothingOfTheFuture) {
  Model<float> model(kTiny, 1);
  stir(model);
  Example e = some_example(kTiny, 1, 5, 3);
  const auto rows = [&] {
    const auto logits = model.forward(e.ids, 1);
    return std::vector<float>(logits.data, logits.data + logits.size());
  };
  const auto before = rows();
  e.ids.back() = (e.ids.back() + 1) % kTiny.vocabulary;
  const auto after = rows();
  const std::size_t seen = before.size() * 4 / 5;
  for (std::size_t i = 0; i < seen; ++i) EXPECT_EQ(before[i], after[i]) << i;
  EXPECT_NE(before, after);
}

TEST(TrainModel, HasWeightsOfItsHeads) {
  Model<float> model(kTiny, 1);
  const Example e = some_example(kTiny, 1, 4, 3);
  model.forward(e.ids, 1);
  for (int i = 0; i < kTiny.layers; ++i) {
    const mha::Tensor<float, 4> weights = model.attention_weights(i);
    ASSERT_EQ(weights.size(), 2u * 4 * 4);
    for (int h = 0; h < 2; ++h)
      for (int q = 0; q < 4; ++q) {
        float sum = 0;
        for (int k = 0; k < 4; ++k) {
          sum += weights(0, h, q, k);
          if (k > q) {
            EXPECT_EQ(weights(0, h, q, k), 0.0f);
          }
        }
        EXPECT_NEAR(sum, 1.0f, 1e-6f);
      }
  }
}

TEST(TrainModel, IsAsLargeAsItSays) {
  // Embedding and head, and in each layer four matrices of attention, three of the feed-forward and two norms.
  EXPECT_EQ(Model<float>(ModelConfig{}, 1).parameter_count(),
            2u * 256 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64);
}

}  // namespace
