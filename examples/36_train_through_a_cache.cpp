// SPDX-License-Identifier: Apache-2.0
// 36: train through a cache
//
// You learn   one prompt and several answers to it, as in preference optimisation: the prompt is computed once, and its
//             gradients are those of all answers; keys and values that are constants; a memory that is projected once
// The maths   the gradient of a key that several calls read is the sum of theirs:
//             dK[p] = Σ over calls of their dK[p];  then W_K ← dK as ever, once
// Symbols     P = 12 tokens of the prompt, A = 5 of each answer, E = 16: x (P, E), (A, E); d: dK, dV (1, P + A, H, ·)
// Output      four lines that end in "yes"
// Next        37_positions_of_your_own.cpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <Eigen/Core>
#include <vector>

#include <mha/mha.hpp>

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Layer = mha::MultiHeadAttention<double, mha::Cpu, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>>;
constexpr int P = 12, A = 5, E = 16;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

Matrix waves(int rows, double pitch) {
  Matrix x(rows, E);
  for (int i = 0; i < rows; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(pitch * (i + 1) * (e + 2));
  return x;
}
bool near(const Matrix& a, const Matrix& b) { return (a - b).norm() < 1e-12 * (1 + b.norm()); }
bool near(const mha::LayerGradients<double>& a, const mha::LayerGradients<double>& b) {
  double difference = 0;
  for (std::size_t i = 0; i < a.flat().size(); ++i)
    difference = std::max(difference, std::abs(a.flat()[i] - b.flat()[i]));
  return difference < 1e-12;
}

int main() {
  Layer layer({.d_model = E, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 1});
  const Matrix prompt = waves(P, 0.3), answers[] = {waves(A, 0.7), waves(A, 1.1)};
  const Matrix d_answers[] = {waves(A, 0.2), waves(A, 0.5)};  // of the loss, by each answer's rows
  const Matrix d_prompt = Matrix::Zero(P, E);                 // the loss is of the answers alone

  // The prompt once, then each answer in a fork of it.
  auto gradients = layer.gradients();
  auto cache = mha::make_cache(layer, mha::Paged{.pages = 8, .length = 64, .page = 16}, {.sequences = 3});
  const mha::SequenceId shared = cache.add();
  auto prompt_tape = layer.tape();
  auto step = cache.step(shared, P);
  static_cast<void>(layer(prompt, step[0], prompt_tape));
  step.commit();
  std::vector<Layer::Tape> tapes(2);
  for (std::size_t i = 0; i < 2; ++i) {
    auto of_answer = cache.step(cache.fork(shared), A);
    static_cast<void>(layer(answers[i], of_answer[0], tapes[i]));
    of_answer.commit();
  }

  // The last calls first: each adds to d its gradients of the prompt's keys and values, and the prompt's own backward
  // pass takes these on to its rows and to the weights.
  auto d = layer.key_value_gradients(1, P + A);  // of one sequence, all 0
  Matrix dx[2];
  for (std::size_t i = 0; i < 2; ++i) dx[i] = layer.backward(d_answers[i], tapes[i], gradients, d);
  const Matrix dx_prompt = layer.backward(d_prompt, prompt_tape, gradients, d);

  // The same by two whole texts, which compute the prompt twice.
  auto expected = layer.gradients();
  Matrix expected_prompt = Matrix::Zero(P, E);
  bool rows = true;
  for (std::size_t i = 0; i < 2; ++i) {
    Matrix text(P + A, E), d_text(P + A, E);
    text << prompt, answers[i];
    d_text << d_prompt, d_answers[i];
    auto tape = layer.tape();
    static_cast<void>(layer(text, tape));
    const Matrix dx_text = layer.backward(d_text, tape, expected);
    expected_prompt += dx_text.topRows(P);
    rows = rows && near(dx[i], dx_text.bottomRows(A));
  }
  check("the answers' rows have the gradients of whole texts", rows);
  check("so have the prompt's rows and the weights", near(dx_prompt, expected_prompt) && near(gradients, expected));

  // If the prompt is a constant, gradients stop there: less work, and no gradient for the prompt.
  auto constant = layer.gradients();
  const Matrix alone = layer.backward(d_answers[0], tapes[0], constant, mha::StopGradient{});
  check("with StopGradient the answer's rows have the same gradient", near(alone, dx[0]));

  // A memory that several calls attend to: projected once, forward and backward.
  auto once = layer.gradients(), each = layer.gradients();
  auto memory_tape = layer.memory_tape();
  const auto memory = layer.project_memory(prompt, memory_tape);
  auto d_memory = layer.key_value_gradients(1, P);
  Matrix by_each = Matrix::Zero(P, E), d_rows(P, E);
  for (std::size_t i = 0; i < 2; ++i) {
    static_cast<void>(layer(answers[i], memory, tapes[i]));
    static_cast<void>(layer.backward(d_answers[i], tapes[i], once, d_memory));
    static_cast<void>(layer(answers[i], prompt, tapes[i]));  // projects it again
    static_cast<void>(layer.backward(d_answers[i], tapes[i], each, mha::memory_into(mha::add_to(by_each))));
  }
  layer.backward(d_memory, memory_tape, once, mha::into(d_rows));
  check("a memory has the gradients of all calls, projected back once", near(d_rows, by_each) && near(once, each));
  return failures == 0 ? 0 : 1;
}
