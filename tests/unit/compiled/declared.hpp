// SPDX-License-Identifier: Apache-2.0
// A layer whose kernels are only declared here, against the formula in double.
#pragma once

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace declared {

/// Self- and cross-attention and the weights of a layer of T on B, all of whose numbers fit into T's digits.
template <class T, class B> void expect_right(double bound) {
  using mha::Tensor;
  support::Random random(testing::UnitTest::GetInstance()->current_test_info()->name());
  const mha::Config config{.d_model = 48, .num_heads = 6, .num_kv_heads = 2, .bias = true};
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Causal> layer(config);
  mha::MultiHeadAttention<double, mha::Reference, mha::GroupedQuery<mha::Dynamic>, mha::Causal> exact(config);
  std::vector<T> weights(static_cast<std::size_t>(layer.parameter_count()));
  for (T& w : weights) w = support::Random::rounded<T>(random.uniform(-0.3, 0.3));
  layer.update([&](auto& p) { std::copy(weights.begin(), weights.end(), p.flat().begin()); });
  exact.update(
      [&](auto& p) { std::transform(weights.begin(), weights.end(), p.flat().begin(), support::to_double<T>); });
  const int queries = 1 + random.below(90), keys = queries + random.below(50);
  Tensor<T, 3> x(2, queries, 48), memory(2, keys, 48);
  random.fill(x);
  random.fill(memory);
  const auto wide = [](const Tensor<T, 3>& from) {
    Tensor<double, 3> to(from.extent(0), from.extent(1), from.extent(2));
    std::transform(from.begin(), from.end(), to.begin(), support::to_double<T>);
    return to;
  };
  EXPECT_LE(support::largest_difference(layer(x), exact(wide(x))), bound) << queries;
  EXPECT_LE(support::largest_difference(layer(x, memory), exact(wide(x), wide(memory))), bound)
      << queries << " " << keys;
  EXPECT_LE(support::largest_difference(layer.attention_weights(x), exact.attention_weights(wide(x))), bound)
      << queries;
}

}  // namespace declared
