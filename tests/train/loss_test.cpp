// SPDX-License-Identifier: Apache-2.0
#include "loss.hpp"

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace {

using Logits = std::vector<double>;

/// The formula in one long double after another.
long double plain_loss(const Logits& logits, const std::vector<int>& targets, std::size_t vocabulary) {
  long double sum = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    long double weights = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) weights += std::exp((long double)logits[i * vocabulary + v]);
    sum += std::log(weights) - (long double)logits[i * vocabulary + static_cast<std::size_t>(targets[i])];
  }
  return sum / (long double)targets.size();
}

struct Case {
  int rows, vocabulary;
  Logits logits;
  std::vector<int> targets;
};

Case some_case(int rows, int vocabulary, unsigned seed) {
  std::mt19937 draw(seed);
  std::normal_distribution<double> normal(0, 3);
  Case c{rows, vocabulary, {}, {}};
  for (int i = 0; i < rows * vocabulary; ++i) c.logits.push_back(normal(draw));
  for (int i = 0; i < rows; ++i) c.targets.push_back(static_cast<int>(draw() % static_cast<unsigned>(vocabulary)));
  return c;
}

TEST(CrossEntropy, IsTheFormulaAndItsGradientTheSlope) {
  for (const auto& [rows, vocabulary] : {std::pair{1, 2}, {3, 7}, {65, 11}, {130, 5}}) {
    Case c = some_case(rows, vocabulary, 1);
    const auto width = static_cast<std::size_t>(vocabulary);
    const long double expected = plain_loss(c.logits, c.targets, width);
    Logits gradient = c.logits;
    std::vector<double> losses(c.targets.size());
    const auto view = mha::view(gradient.data(), rows, vocabulary);
    EXPECT_NEAR(train::cross_entropy(view, c.targets, losses, mha::ThreadPool(2)), double(expected), 1e-13);
    for (std::size_t i = 0; i < gradient.size(); i += 1 + gradient.size() / 40) {
      constexpr double h = 1e-5;
      Logits up = c.logits, down = c.logits;
      up[i] += h;
      down[i] -= h;
      const auto slope = (plain_loss(up, c.targets, width) - plain_loss(down, c.targets, width)) / (2 * h);
      EXPECT_NEAR(gradient[i], double(slope), 1e-9) << i;
    }
  }
}

TEST(CrossEntropy, StandsLogitsOfAnySize) {
  std::vector<float> logits{3e4f, 3e4f, -3e4f, -3e4f, 0, 0};  // (3, 2)
  std::vector<double> losses(3);
  const double loss = train::cross_entropy(mha::view(logits.data(), 3, 2), std::vector<int>{0, 1, 0}, losses, {});
  EXPECT_NEAR(loss, std::log(2.0), 1e-6);
  for (std::size_t i = 0; i < logits.size(); ++i)
    EXPECT_NEAR(logits[i], (i == 0 || i == 3 || i == 4 ? -0.5 : 0.5) / 3, 1e-6) << i;
}

TEST(CrossEntropy, HasTheSameBitsOnAnyThreads) {
  const auto run = [](int threads) {
    const Case c = some_case(300, 256, 2);
    std::vector<float> logits(c.logits.begin(), c.logits.end());
    std::vector<double> losses(300);
    const double loss =
        train::cross_entropy(mha::view(logits.data(), 300, 256), c.targets, losses, mha::ThreadPool(threads));
    return std::pair{loss, logits};
  };
  const auto alone = run(1);
  for (const int threads : {2, 3, 5}) EXPECT_EQ(run(threads), alone) << threads;
}

}  // namespace
