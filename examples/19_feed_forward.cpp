// SPDX-License-Identifier: Apache-2.0
// 19: the feed-forward of a transformer block
//
// You learn   Linear and FeedForward: products whose bias, activation, gate and residual are computed with them
// The maths   GPT-2     y = x + Gelu(x W_up + b_up) W_down + b_down,  Gelu by tanh, as in GPT-2
//             LLaMA     y = x + (Silu(x W_gate) ∘ (x W_up)) W_down
// Symbols     E = 24 model width, H = 64 hidden width; x, y (L, E)  W_up, W_gate (E, H)  W_down (H, E)
// Output      six lines that end in "yes", and what a call costs
// Next        20_transformer_block.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>

#include <mha/block.hpp>

constexpr int E = 24, H = 64, L = 7;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

Eigen::MatrixXf waves(int rows, int columns, float step) {
  Eigen::MatrixXf m(rows, columns);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) m(i, j) = 0.3f * std::cos(step * float(i * columns + j + 1));
  return m;
}

// An activation of your own is a functor of one number. As a template with the maths of mha:: it runs as vector code.
struct SquaredRelu {
  template <class S> MHA_HOST_DEVICE S operator()(const S& x) const { return mha::max(x, 0) * mha::max(x, 0); }
};

int main() {
  const Eigen::MatrixXf x = waves(L, E, 0.9f);  // (L, E)

  // One product with its activation. Weights are borrowed as PyTorch stores them, (out, in): Eigen's transpose(), or
  // mha::transposed(view), is a view of them, so that nothing is copied.
  const Eigen::MatrixXf stored = waves(H, E, 0.7f);  // (H, E)
  const Eigen::VectorXf bias = waves(H, 1, 0.2f);
  mha::Linear<float, mha::Cpu, mha::GeluTanh> up({.inputs = E, .outputs = H});
  up.borrow({.weight = stored.transpose(), .bias = bias});
  const Eigen::MatrixXf hidden = up(x);  // (L, H)

  Eigen::MatrixXd expected = (x * stored.transpose()).cast<double>();
  for (int i = 0; i < L; ++i)
    for (int j = 0; j < H; ++j) {
      const double s = expected(i, j) + double(bias(j));
      expected(i, j) = s / 2 * (1 + std::tanh(0.7978845608028654 * (s + 0.044715 * s * s * s)));  // √(2/π)
    }
  check("a Linear is its product, bias and GELU", (hidden.cast<double>() - expected).norm() < 1e-5);

  // Both products of GPT-2's feed-forward, and the residual: what is added last, without a pass of its own.
  mha::FeedForward<float, mha::Cpu, mha::GeluTanh> gpt({.d_model = E, .d_hidden = H});
  gpt.up().borrow(up.parameters());
  gpt.down().initialize(mha::XavierUniform{.seed = 2});
  const Eigen::MatrixXf y = gpt(x, mha::residual(x));  // (L, E)

  Eigen::MatrixXd down(H, E);
  for (int i = 0; i < H; ++i)
    for (int j = 0; j < E; ++j) down(i, j) = double(gpt.down().parameters().weight(i, j));  // the biases are 0
  check("two of them and a residual are GPT-2's feed-forward",
        (y.cast<double>() - (expected * down + x.cast<double>())).norm() < 1e-5);

  // LLaMA's has a gate: a third matrix, multiplied in the same product as W_up.
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> llama({.d_model = E, .d_hidden = H, .bias = false});
  llama.initialize(mha::XavierUniform{.seed = 3});
  // A call may write over its x: rows = rows + llama(rows). The workspace keeps the hidden rows for the next call.
  Eigen::MatrixXf rows = x;
  mha::Workspace workspace;
  llama(rows, mha::residual(rows), mha::into(rows), workspace);

  const auto p = llama.up().parameters();
  const auto w_down = llama.down().parameters().weight;
  double worst = 0;
  for (int i = 0; i < L; ++i)
    for (int j = 0; j < E; ++j) {
      double sum = double(x(i, j));
      for (int h = 0; h < H; ++h) {
        double gate = 0, value = 0;
        for (int e = 0; e < E; ++e) {
          gate += double(x(i, e)) * double(p.gate(e, h));
          value += double(x(i, e)) * double(p.weight(e, h));
        }
        sum += gate / (1 + std::exp(-gate)) * value * double(w_down(h, j));
      }
      const double difference = std::abs(sum - double(rows(i, j)));  // a NaN counts as infinitely far
      worst = std::isnan(difference) ? INFINITY : std::fmax(worst, difference);
    }
  check("with SwiGLU it is LLaMA's", worst < 1e-5);

  const int allocations = workspace.allocations();
  llama(rows, mha::residual(rows), mha::into(rows), workspace);
  check("the second call allocates nothing", workspace.allocations() == allocations);

  mha::Linear<float, mha::Cpu, SquaredRelu> own({.inputs = E, .outputs = H});
  own.borrow(up.parameters());
  const double s = double(x.row(1).dot(stored.row(3)) + bias(3)), relu = std::fmax(s, 0.);
  const Eigen::MatrixXf squared = own(x);
  check("an activation of your own", std::abs(double(squared(1, 3)) - relu * relu) < 1e-5);

  // Weights of a bfloat16 checkpoint stay in 16 bits: half the memory, and a single row in as little as half the time.
  mha::Tensor<mha::bfloat16, 2> checkpoint(H, E);  // (out, in)
  for (int i = 0; i < H; ++i)
    for (int j = 0; j < E; ++j) checkpoint(i, j) = mha::bfloat16(stored(i, j));
  mha::Linear<float> narrow({.inputs = E, .outputs = H, .bias = false});
  narrow.borrow(mha::BorrowedLinear<mha::bfloat16>{.weight = mha::transposed(checkpoint.view())});
  const Eigen::MatrixXf z = narrow(x);
  double sum = 0;
  for (int e = 0; e < E; ++e) sum += double(x(2, e)) * double(float(checkpoint(5, e)));
  check("float rows by bfloat16 weights", std::abs(sum - double(z(2, 5))) < 1e-5);

  std::printf("\n%s", llama.explain(L).c_str());
  return failures == 0 ? 0 : 1;
}
