// SPDX-License-Identifier: Apache-2.0
// Gradients of a call's own score: of its bias, and of its numbers, on a backend of the host's memory.
#pragma once

#include <cmath>
#include <vector>

#include <mha/policy/score/additive_bias.hpp>

#include "backward_case.hpp"
#include "trained_scores.hpp"

namespace support {

/// A bias of the call's shape with 1 on the axes of this set, random.
template <class E> mha::Tensor<E, 4> repeated_bias(const std::string& stream, const BackwardSizes& n, int axes) {
  const int of[4] = {n.batch, n.heads, n.queries, n.keys};
  const auto extent = [&](int a) { return (axes >> a & 1) != 0 ? 1 : of[a]; };
  mha::Tensor<E, 4> bias(extent(0), extent(1), extent(2), extent(3));
  Random(stream).fill(bias);
  return bias;
}

/// The gradients of the numbers of a call's scores.
template <class B, class T, class... Extra>
std::vector<double> score_gradient(const BackwardCase<T>& c, const Extra&... extra) {
  return numbers_of(c.template gradients<B>(extra...).score);
}

/// Those of a bias, in E over poison, and of the numbers of all scores.
template <class E> struct ScoreGradients {
  mha::Tensor<E, 4> bias;
  std::vector<double> numbers;
};
template <class B, class E, class T, class Bias, class Score, class... Extra>
ScoreGradients<E> score_gradients(const BackwardCase<T>& c, const Bias& bias, const Score& score,
                                  const Extra&... extra) {
  ScoreGradients<E> g{mha::Tensor<E, 4>(bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3)), {}};
  poison_all(g.bias);
  mha::AttentionTape<T, B> tape;
  const mha::AdditiveBias added(bias);
  const auto out = mha::attention<B>(c.q, c.k, c.v, added, score, extra..., mha::record(tape));
  g.numbers = numbers_of(
      mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, added, score, extra..., mha::BiasGradient(g.bias))
          .score);
  return g;
}

/// Whether that of a bias that is added to a table of E is what stood there + the gradient.
template <class B, class E, class T, class Bias, class Score, class... Extra>
bool adds_bias_gradient(const BackwardCase<T>& c, const Bias& bias, const Score& score, const Extra&... extra) {
  using A = mha::Accumulator<T>;
  const auto gradient = score_gradients<B, A>(c, bias, score, extra...).bias;
  mha::Tensor<E, 4> sum(bias.extent(0), bias.extent(1), bias.extent(2), bias.extent(3));
  Random("added to").fill(sum);
  auto expected = sum;
  for (std::size_t i = 0; i < sum.size(); ++i)
    expected.data()[i] = static_cast<E>(static_cast<A>(sum.data()[i]) + gradient.data()[i]);
  mha::AttentionTape<T, B> tape;
  const mha::AdditiveBias added(bias);
  const auto out = mha::attention<B>(c.q, c.k, c.v, added, score, extra..., mha::record(tape));
  static_cast<void>(mha::attention_backward(c.d_out, c.q, c.k, c.v, out, tape, added, score, extra...,
                                            mha::BiasGradient(mha::add_to(sum))));
  return differing(sum, expected) == 0;
}

/// What gradients are beside, whose terms may cancel.
template <class T> double gradient_scale(const BackwardCase<T>& c) { return std::sqrt(inner(c.d_out, c.d_out)); }

}  // namespace support
