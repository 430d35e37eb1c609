// SPDX-License-Identifier: Apache-2.0
// 27: train a layer
//
// You learn   the backward pass of a whole layer: a tape, gradients, a step of descent; what is checked along the way
// The maths   L = ½ ‖Y − T‖², dL/dY = Y − T; layer.backward() goes back through W_O, attention, rotary and W_Q, W_K,
//             W_V to dL/dW of every weight and dL/dX; then W ← W − rate · dL/dW
// Symbols     L = 8 tokens, E = 16 numbers per token: X, Y, T (L, E); T is the result of other weights
// Output      a gradient beside the difference quotient of the loss, and the error as the layer learns:
//               dL/dW_Q(3, 2): they agree
//               dL/dcap: they agree
//               step   0: error 1.62
//               step 250: error 0.09
//               step 500: error 0.04
// Next        28_train_a_block.cpp
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <Eigen/Core>

#include <mha/mha.hpp>

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr int L = 8, E = 16;
constexpr double rate = 0.015;

int main() {
  using Layer = mha::MultiHeadAttention<double, mha::Cpu, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>>;
  Layer teacher({.d_model = E, .num_heads = 4}), layer({.d_model = E, .num_heads = 4, .bias = true});
  teacher.initialize(mha::XavierUniform{.seed = 1});
  layer.initialize(mha::XavierUniform{.seed = 2});

  Matrix x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3 * (i + 1) * (e + 2));
  const Matrix target = teacher(x);
  const auto loss = [&] { return 0.5 * (layer(x) - target).squaredNorm(); };

  auto tape = layer.tape();            // what a call leaves for its backward pass: x stays as it is until then
  auto gradients = layer.gradients();  // of every weight, by the names of layer.parameters(); all 0

  // One gradient, by the backward pass and as the slope of the loss.
  Matrix y = layer(x, tape);
  const Matrix dx = layer.backward(Matrix(y - target), tape, gradients);
  const auto move = [&](double by) { layer.update([&](auto& p) { p.query.matrix()(3, 2) += by; }); };
  constexpr double h = 1e-5;
  move(h);
  const double up = loss();
  move(-2 * h);
  const double slope = (up - loss()) / (2 * h);
  move(h);
  const bool agree = std::abs(slope - gradients.query.matrix()(3, 2)) < 1e-6;
  std::printf("dL/dW_Q(3, 2): %s\n", agree ? "they agree" : "they differ");

  // The score of a call has gradients too, if you ask for them: here that of a soft cap.
  const auto capped = [&](float cap) { return 0.5 * (layer(x, mha::SoftCap{cap}) - target).squaredNorm(); };
  mha::SoftCap d_cap{2.f};
  y = layer(x, tape, mha::SoftCap{2.f});
  static_cast<void>(layer.backward(Matrix(y - target), tape, gradients, mha::ScoreGradient(d_cap)));
  const double by_cap = (capped(2.125f) - capped(1.875f)) / 0.25;
  const bool cap_agrees = std::abs(by_cap - double(d_cap.cap)) < 0.02 * std::abs(by_cap);
  std::printf("dL/dcap: %s\n", cap_agrees ? "they agree" : "they differ");

  // Descent: every call of backward() adds to the gradients, so a step begins with clear(). With into() and a
  // workspace nothing is allocated after the first step.
  mha::Workspace workspace;
  Matrix d_y(L, E), d_x(L, E);
  double error = 0;
  for (int step = 0; step <= 500; ++step) {
    gradients.clear();
    layer(x, tape, mha::into(y), workspace);
    d_y = y - target;
    error = d_y.norm() / target.norm();
    if (step % 250 == 0) std::printf("step %3d: error %.2f\n", step, error);
    layer.backward(d_y, tape, gradients, mha::into(d_x), workspace);
    layer.update([&](auto& p) {
      p.for_each(gradients, [&](auto numbers, auto of_numbers) {  // two spans: weights, and what else is trained
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= rate * of_numbers[i];
      });
    });
  }
  return agree && cap_agrees && dx.allFinite() && error < 0.1 ? 0 : 1;
}
