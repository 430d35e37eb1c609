// SPDX-License-Identifier: Apache-2.0
// The same causal layer computed by units of a program; every unit has a layer type of its own.
#pragma once

#include <algorithm>
#include <vector>

#include <mha/mha.hpp>

inline constexpr int length = 33, width = 32, heads = 4;

/// x and y (length, width); weights as many as the layer has, all exact in bfloat16.
using Numbers = std::vector<float>;

Numbers in_bfloat16(const Numbers& x, const Numbers& weights);
Numbers on_matrix_unit(const Numbers& x, const Numbers& weights);

/// What the layer makes of x.
template <class T, class Layer> Numbers run(Layer& layer, const Numbers& x, const Numbers& weights) {
  layer.update(
      [&](auto& p) { std::transform(weights.begin(), weights.end(), p.flat().begin(), [](float w) { return T(w); }); });
  mha::Tensor<T, 2> in(length, width);
  std::transform(x.begin(), x.end(), in.begin(), [](float value) { return T(value); });
  const auto out = layer(in);
  Numbers y;
  for (const T value : out) y.push_back(static_cast<float>(value));
  return y;
}
