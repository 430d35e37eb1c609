// SPDX-License-Identifier: Apache-2.0
// How wrong a guess of the next token is, and in which direction the logits should move.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include <mha/mha.hpp>

namespace train {

/// The cross-entropy of rows of logits, and its gradient in their place.
///
/// Formula   loss = mean over rows of log Σ_v exp(l_v) − l_target;  dl_v = (softmax(l)_v − [v = target]) / rows
/// Shapes    logits (N, V)  →  their gradient (N, V)  targets (N), each in [0, V)  losses (N), in nats
/// Returns   the mean of the losses, summed in the order of the rows: its bits do not depend on the threads
template <class T>
double cross_entropy(const mha::TensorView<T, 2>& logits, std::span<const int> targets, std::span<double> losses,
                     const mha::ThreadPool& threads) {
  const int rows = logits.extent[0], vocabulary = logits.extent[1];
  constexpr int chunk = 64;  // rows of a task
  threads.run((rows + chunk - 1) / chunk, [&](int task, int) {
    for (int i = task * chunk; i < std::min(rows, (task + 1) * chunk); ++i) {
      T* const l = &logits(i, 0);
      const int target = targets[static_cast<std::size_t>(i)];
      const T largest = *std::max_element(l, l + vocabulary), wanted = l[target];
      T sum = 0;
      for (int v = 0; v < vocabulary; ++v) sum += l[v] = std::exp(l[v] - largest);
      losses[static_cast<std::size_t>(i)] = std::log(double(sum)) + double(largest) - double(wanted);
      const T share = T(1) / (sum * T(rows));
      for (int v = 0; v < vocabulary; ++v) l[v] *= share;
      l[target] -= T(1) / T(rows);
    }
  });
  double total = 0;
  for (const double loss : losses) total += loss;
  return total / rows;
}

}  // namespace train
