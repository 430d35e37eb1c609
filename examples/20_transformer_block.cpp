// SPDX-License-Identifier: Apache-2.0
// 20: a block of GPT-2
//
// You learn   LayerNorm, and how the sums between attention, norms and feed-forward cost no pass of their own
// The maths   x ← x + attention(norm₁(x)),  x ← x + Gelu(norm₂(x) W_up + b_up) W_down + b_down
//             norm(x) = (x − mean(x)) / √(var(x) + eps) · weight + bias, row by row
// Symbols     E = 24 model width, H = 96 hidden width, 3 heads; x, h, r (L, E)
// Output      three lines that end in "yes", and what a norm costs
// Next        21_kv_sources.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>

#include <mha/block.hpp>

constexpr int E = 24, H = 96, L = 7;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

// Rows that lie one after another, as the kernels read them: a column-major matrix would be copied.
template <class T> using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Block {
  mha::LayerNorm<float> norm1{{.width = E}}, norm2{{.width = E}};
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> attention{{.d_model = E, .num_heads = 3, .bias = true}};
  mha::FeedForward<float, mha::Cpu, mha::GeluTanh> feed_forward{{.d_model = E, .d_hidden = H}};

  // x ← block(x); h and r are rows to work in.
  void operator()(Rows<float>& x, Rows<float>& h, Rows<float>& r, mha::Workspace& workspace) const {
    norm1(x, mha::into(h), workspace);
    attention(h, mha::into(r), workspace);
    norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
    feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
  }
};

Rows<double> norm_by_hand(const Rows<double>& x, const mha::NormViews<const float>& p) {
  Rows<double> y = x;
  for (int i = 0; i < x.rows(); ++i) {
    const double mean = x.row(i).mean(), variance = (x.row(i).array() - mean).square().mean();
    for (int j = 0; j < x.cols(); ++j)
      y(i, j) = (x(i, j) - mean) / std::sqrt(variance + 1e-5) * double(p.weight(j)) + double(p.bias(j));
  }
  return y;
}

Rows<double> linear_by_hand(const Rows<double>& x, const mha::LinearViews<const float>& p, bool gelu) {
  Rows<double> y(x.rows(), p.weight.extent[1]);
  for (int i = 0; i < y.rows(); ++i)
    for (int j = 0; j < y.cols(); ++j) {
      double s = double(p.bias(j));
      for (int k = 0; k < x.cols(); ++k) s += x(i, k) * double(p.weight(k, j));
      y(i, j) = gelu ? s / 2 * (1 + std::tanh(0.7978845608028654 * (s + 0.044715 * s * s * s))) : s;
    }
  return y;
}

int main() {
  Block block;
  block.attention.initialize(mha::XavierUniform{.seed = 1});
  block.feed_forward.initialize(mha::XavierUniform{.seed = 2});
  // A checkpoint's vectors would be borrowed: block.norm1.borrow({.weight = gamma, .bias = beta}).
  for (auto* norm : {&block.norm1, &block.norm2})
    norm->update([](auto& p) {
      for (int j = 0; j < E; ++j) {
        p.weight(j) = 1 + 0.1f * std::sin(float(j));
        p.bias(j) = 0.1f * std::cos(float(j));
      }
    });

  Rows<float> x(L, E), h(L, E), r(L, E);
  for (int i = 0; i < L; ++i)
    for (int j = 0; j < E; ++j) x(i, j) = std::sin(0.9f * float(i * E + j + 1));
  Rows<double> expected = x.cast<double>();
  mha::Workspace workspace;
  block(x, h, r, workspace);

  // The same by hand, with the attention in double on the reference.
  mha::MultiHeadAttention<double, mha::Reference, mha::Causal> attention({.d_model = E, .num_heads = 3, .bias = true});
  attention.update([&](auto& p) {
    const auto from = block.attention.parameters().flat();
    for (std::size_t i = 0; i < from.size(); ++i) p.flat()[i] = double(from[i]);
  });
  expected += attention(norm_by_hand(expected, block.norm1.parameters()));
  const Rows<double> hidden =
      linear_by_hand(norm_by_hand(expected, block.norm2.parameters()), block.feed_forward.up().parameters(), true);
  expected += linear_by_hand(hidden, block.feed_forward.down().parameters(), false);
  check("four calls are a block of GPT-2",
        (x.cast<double>() - expected).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-5);

  const int allocations = workspace.allocations();
  block(x, h, r, workspace);
  check("the second call allocates nothing", workspace.allocations() == allocations);

  // LLaMA's norm has no mean and no bias; it is 1 / √mean(x²) on every row that its weight leaves alone.
  const mha::RmsNorm<float> rms({.width = E});
  const Rows<float> y = rms(x);
  check("RmsNorm makes every row's mean square 1",
        (y.rowwise().squaredNorm().array() / E - 1).abs().maxCoeff<Eigen::PropagateNaN>() < 1e-4f);

  std::printf("\n%s", block.norm1.explain(L).c_str());
  return failures == 0 ? 0 : 1;
}
