// SPDX-License-Identifier: Apache-2.0
// 39: variants of your own
//
// You learn   attention without a softmax, and a learned bias for each key, built from calls of attention(): what goes
//             in, what is done with the results, and how the gradients go back
// The maths   sigmoid:     y_i = Σ_j σ(s_ij + b) v_j = exp(lse_i) · Σ_j softmax_j(log σ(s_ij + b)) v_j
//             forgetting:  Σ_j softmax_j(s_ij + c_i − c_j) v_j, where c_i = Σ_{l ≤ i} log f_l: c_i changes no softmax
// Symbols     L = 20 tokens of H = 2 heads, D = 8: Q, K, V, Y, dY (L, H, D); f = σ(gate), gate (L, H)
// Output      four lines that end in "yes"
// Next        40_latent_attention.cpp, DeepSeek's attention and its cache
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include <mha/mha.hpp>

constexpr int L = 20, H = 2, D = 8;
using Tensor = mha::Tensor<double, 3>;

double sigmoid(double t) { return 1 / (1 + std::exp(-t)); }
// log σ(t) = −log(1 + exp(−t)), of small exponents alone. A softmax's sum of exp(log σ) is the sum of σ.
struct LogSigmoid {
  double bias;
  template <class S> S operator()(S s, int, int, int, int) const {
    const S t = s + bias;
    return mha::min(t, S(0)) - mha::log(S(1) + mha::exp(-mha::abs(t)));
  }
};

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}
Tensor normal(unsigned seed) {
  Tensor x(L, H, D);
  std::mt19937 generator(seed);
  std::normal_distribution<double> numbers;
  for (double& e : x) e = numbers(generator);
  return x;
}
Tensor queries = normal(1), keys = normal(2), values = normal(3);
const Tensor dy = normal(4);  // the loss is ⟨dY, Y⟩

// Row i of Y is Σ_j weight(h, i, j, s_ij) v_j over the past, divided by the sum of the weights if it is a mean.
template <class F> Tensor loops(bool mean, F weight) {
  Tensor y(L, H, D);
  for (int h = 0; h < H; ++h)
    for (int i = 0; i < L; ++i) {
      double sum = 0;
      for (int j = 0; j <= i; ++j) {
        double s = 0;
        for (int d = 0; d < D; ++d) s += queries(i, h, d) * keys(j, h, d) / std::sqrt(double(D));
        const double w = weight(h, i, j, s);
        sum += w;
        for (int d = 0; d < D; ++d) y(i, h, d) += w * values(j, h, d);
      }
      for (int d = 0; d < D; ++d) y(i, h, d) /= mean ? sum : 1;
    }
  return y;
}
bool near(const Tensor& a, const Tensor& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) { return std::abs(x - y) < 1e-12; });
}
// Whether the loss of f() has this slope along x.
template <class F> bool is_slope(double slope, double& x, F f) {
  const double from = x, step = 1e-5;
  const auto loss_at = [&](double there) {
    x = there;
    const Tensor y = f();
    x = from;
    return std::inner_product(dy.begin(), dy.end(), y.begin(), 0.0);
  };
  return std::abs((loss_at(from + step) - loss_at(from - step)) / (2 * step) - slope) < 1e-6;
}

int main() {
  mha::AttentionTape<double> tape;
  const LogSigmoid score{-std::log(double(L))};  // a sum of up to L terms that is about as large as V
  Tensor lse(1, H, L), d_lse(1, H, L);
  const Tensor o = mha::attention(queries, keys, values, score, mha::Causal{}, mha::LogSumExp{lse}, mha::record(tape));
  Tensor y = o, d_o = dy;
  for (int i = 0; i < L; ++i)
    for (int h = 0; h < H; ++h)
      for (int d = 0; d < D; ++d) {
        y(i, h, d) *= std::exp(lse(0, h, i));
        d_o(i, h, d) *= std::exp(lse(0, h, i));
        d_lse(0, h, i) += dy(i, h, d) * y(i, h, d);  // Y = exp(lse) · O is differentiated by both
      }
  const auto g =
      mha::attention_backward(d_o, queries, keys, values, o, tape, score, mha::Causal{}, mha::LogSumExpGradient(d_lse));
  const auto by_loops = [&] { return loops(false, [&](int, int, int, double s) { return sigmoid(s + score.bias); }); };
  check("sigmoid attention has the numbers of its loops", near(y, by_loops()));
  check("its gradients are the slopes of the loss", is_slope(g.query(5, 1, 3), queries(5, 1, 3), by_loops) &&
                                                        is_slope(g.key(4, 0, 2), keys(4, 0, 2), by_loops) &&
                                                        is_slope(g.value(3, 1, 1), values(3, 1, 1), by_loops));

  Tensor gate = normal(5), bias(H, 1, L), d_bias(H, 1, L);  // of gate (l, h, 0) alone; the bias is −c, for all queries
  for (int h = 0; h < H; ++h)
    for (int j = 0; j < L; ++j) bias(h, 0, j) = (j > 0 ? bias(h, 0, j - 1) : 0) - std::log(sigmoid(gate(j, h, 0)));
  const mha::AdditiveBias forget{bias};
  const Tensor z = mha::attention(queries, keys, values, forget, mha::Causal{}, mha::record(tape));
  const auto of_z =
      mha::attention_backward(dy, queries, keys, values, z, tape, forget, mha::Causal{}, mha::BiasGradient(d_bias));
  const auto by_gates = [&] {
    return loops(true, [&](int h, int i, int j, double s) {
      for (int l = j + 1; l <= i; ++l) s += std::log(sigmoid(gate(l, h, 0)));
      return std::exp(s);
    });
  };
  check("so has forgetting attention", near(z, by_gates()));
  double d_gate = 0;  // token 6 is in the bias of every key from 6 on
  for (int j = 6; j < L; ++j) d_gate -= d_bias(1, 0, j) * (1 - sigmoid(gate(6, 1, 0)));
  check("a gate's gradient too, and that of a key",
        is_slope(d_gate, gate(6, 1, 0), by_gates) && is_slope(of_z.key(4, 0, 2), keys(4, 0, 2), by_gates));
  return failures == 0 ? 0 : 1;
}
