// SPDX-License-Identifier: Apache-2.0
#include "adamw.hpp"

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace {

/// Algorithm 2 of the paper for one number, line by line.
struct Plain {
  double w, m = 0, v = 0;
  void step(int t, double g, double rate, double decay) {
    m = 0.9 * m + 0.1 * g;
    v = 0.99 * v + 0.01 * g * g;
    const double mean = m / (1 - std::pow(0.9, t)), square = v / (1 - std::pow(0.99, t));
    w = w - rate * (mean / (std::sqrt(square) + 1e-8) + decay * w);
  }
};

TEST(AdamW, IsTheAlgorithm) {
  std::mt19937 draw(3);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> weights{std::vector<double>(5), std::vector<double>(3)};
  std::vector<std::vector<Plain>> plain(2);
  for (std::size_t part = 0; part < 2; ++part)
    for (double& w : weights[part]) plain[part].push_back({.w = w = normal(draw)});

  train::AdamW<double> adamw({.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .decay = 0.2});
  for (int t = 1; t <= 20; ++t) {
    const double rate = 0.01 / t, scale = 0.5;
    adamw.begin(rate);
    for (std::size_t part = 0; part < 2; ++part) {
      const bool decays = part == 0;
      std::vector<double> gradients;
      for (Plain& p : plain[part]) {
        gradients.push_back(normal(draw));
        p.step(t, scale * gradients.back(), rate, decays ? 0.2 : 0);
      }
      adamw(weights[part], gradients, scale, decays);
      for (std::size_t i = 0; i < weights[part].size(); ++i) EXPECT_NEAR(weights[part][i], plain[part][i].w, 1e-12);
    }
  }
}

TEST(Schedule, WarmsUpAndGoesDown) {
  const train::Schedule rate{.peak = 2, .warm_up = 4, .steps = 24};
  EXPECT_DOUBLE_EQ(rate(0), 0.5);
  EXPECT_DOUBLE_EQ(rate(3), 2);
  EXPECT_DOUBLE_EQ(rate(4), 2);
  EXPECT_DOUBLE_EQ(rate(14), 1.1);  // half way from 2 to 0.2
  EXPECT_NEAR(rate(24), 0.2, 1e-15);
  EXPECT_GT(rate(23), 0.2);
}

}  // namespace
