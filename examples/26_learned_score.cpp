// SPDX-License-Identifier: Apache-2.0
// 26: a score that learns
//
// You learn   to train a score of your own: the gradients of its numbers have their names, and you write no derivative
// The maths   t_ij = s_ij − slope · |i − j|,  O = softmax(t) V,  loss = ½ ‖O − target‖²
//             slope ← slope − rate · ∂loss/∂slope
// Symbols     L = 48 tokens of H = 2 heads, D = 16: Q, K, V, O, target (L, H, D)
// Output      the gradient beside a difference quotient; then the slope that made the target, 0.3, is found again:
//               gradient -824.4067, difference quotient -822.9978
//               step  0: slope 0.0000
//               step 10: slope 0.3000
//               step 20: slope 0.3000
//             and a table with a number for each distance, which sums up its own gradients, does nearly as well:
//               table: 0.4 % of the loss is left
// Next        27_train_a_layer.cpp, a layer that learns
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <span>

#include <mha/mha.hpp>

constexpr int L = 48, H = 2, D = 16;
using Tensor = mha::Tensor<float, 3>;

// A class template over its scalar whose members are all of that scalar: the backward pass puts dual numbers there.
template <class T = float> struct Distance {
  T slope;
  template <class S> auto operator()(S s, int, int, int q, int k) const { return s - slope * float(mha::abs(q - k)); }
};

// Many numbers, of which a pair needs one: the score itself adds a pair's contribution to their gradients.
struct ByDistance {
  std::array<float, 48> table{};  // what is added at a distance of 0, 1, … 46, and from 47 on
  std::span<float> numbers() { return table; }
  std::span<const float> numbers() const { return table; }
  template <class S> S operator()(S s, int, int, int q, int k) const { return s + table[at(q, k)]; }
  template <class G, class S> void accumulate(G gradient, S dt, S, int, int, int q, int k) const {
    gradient[at(q, k)] += dt;
  }
  static std::size_t at(int q, int k) { return static_cast<std::size_t>(std::min(mha::abs(q - k), 47)); }
};

int main() {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  Tensor q(L, H, D), k(L, H, D), v(L, H, D), error(L, H, D);
  for (Tensor* x : {&q, &k, &v})
    for (float& e : *x) e = normal(generator);
  const Tensor target = mha::attention(q, k, v, Distance<>{0.3f});

  // error ← O − target, the gradient of the loss with respect to O.
  const auto loss = [&](const Tensor& out) {
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      error.data()[i] = out.data()[i] - target.data()[i];
      sum += 0.5 * double(error.data()[i]) * double(error.data()[i]);
    }
    return sum;
  };

  mha::AttentionTape<float> tape;
  Distance<> score{0.f};
  bool right = true;
  for (int step = 0; step <= 20; ++step) {
    const Tensor out = mha::attention(q, k, v, score, mha::record(tape));
    loss(out);
    const auto g = mha::attention_backward(error, q, k, v, out, tape, score);
    // g.score is a Distance, and its slope the gradient of the slope.
    if (step == 0) {
      const float h = 0.01f;
      const double quotient =
          (loss(mha::attention(q, k, v, Distance<>{h})) - loss(mha::attention(q, k, v, Distance<>{-h}))) /
          (2 * double(h));
      std::printf("gradient %.4f, difference quotient %.4f\n", double(g.score.slope), quotient);
      right = std::abs(double(g.score.slope) - quotient) < 1e-2 * std::abs(quotient);
    }
    if (step % 10 == 0) std::printf("step %2d: slope %.4f\n", step, double(score.slope));
    score.slope -= 1e-3f * g.score.slope;
  }

  ByDistance by;
  const double first = loss(mha::attention(q, k, v, by));
  double last = first;
  for (int step = 0; step < 300; ++step) {
    const Tensor out = mha::attention(q, k, v, by, mha::record(tape));
    last = loss(out);
    const auto g = mha::attention_backward(error, q, k, v, out, tape, by);
    for (std::size_t i = 0; i < by.table.size(); ++i) by.table[i] -= 0.03f * g.score.table[i];
  }
  std::printf("table: %.1f %% of the loss is left\n", 100 * last / first);
  return right && std::abs(score.slope - 0.3f) < 1e-3f && last < 0.01 * first ? 0 : 1;
}
