// SPDX-License-Identifier: Apache-2.0
// 02: your first layer
//
// You learn   a whole layer in one line, and the loops that it replaces: projections, grouped heads, a causal mask, the
//             output matrix
// The maths   Q = X W_Q  K = X W_K  V = X W_V;  head_h = softmax(Q_h K_g(h)ᵀ / √D, causal) V_g(h);
//             Y = [head_0 … head_Hq-1] W_O;  query head h reads key/value head g(h) = h / (Hq / Hkv)
// Symbols     L = 6 tokens of E = 64 numbers, Hq = 8 query heads, Hkv = 2 key/value heads, D = E / Hq = 8:
//             X, Y (L, E)  W_Q (E, Hq·D)  W_K, W_V (E, Hkv·D)  W_O (Hq·D, E)  Q (L, Hq·D)  K, V (L, Hkv·D)
// Output      the difference between layer and loops (below 1e-6: float32 against double); which rows change with token
//             4: rows 0 to 3 keep every bit, rows 4 and 5 move; then explain(), which describes the layer
// Next        03_your_own_memory.cpp
#include <cmath>
#include <cstdio>
#include <cstring>
#include <Eigen/Core>

#include <mha/mha.hpp>

constexpr int L = 6, E = 64, Hq = 8, Hkv = 2, D = E / Hq;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<Hkv>, mha::Causal>;
using Doubles = Eigen::MatrixXd;

// One projection: x (L, in) times a view of weights (in, out).
template <class X, class W> Doubles times(const X& x, const W& w) {
  Doubles to = Doubles::Zero(x.rows(), w.extent[1]);
  for (int i = 0; i < to.rows(); ++i)
    for (int j = 0; j < to.cols(); ++j)
      for (int e = 0; e < w.extent[0]; ++e) to(i, j) += double(x(i, e)) * double(w(e, j));
  return to;
}

// The layer as loops, with the layer's own weights.
Doubles layer_by_hand(const Layer& layer, const Matrix& x) {
  const auto weights = layer.parameters();             // read-only views, each with its name
  const Doubles q = times(x, weights.query.matrix());  // (L, Hq·D): head h is columns h·D … h·D + D - 1
  const Doubles k = times(x, weights.key.matrix());    // (L, Hkv·D)
  const Doubles v = times(x, weights.value.matrix());  // (L, Hkv·D)
  Doubles heads = Doubles::Zero(L, Hq * D);            // (L, Hq·D): already side by side, no concat needed
  for (int h = 0; h < Hq; ++h) {
    const int g = h / (Hq / Hkv);  // heads 0-3 share key/value head 0, heads 4-7 share 1
    for (int i = 0; i < L; ++i) {
      double logit[L] = {}, max = -INFINITY, sum = 0;
      for (int j = 0; j <= i; ++j) {
        for (int d = 0; d < D; ++d) logit[j] += q(i, h * D + d) * k(j, g * D + d) / std::sqrt(double(D));
        max = std::fmax(max, logit[j]);
      }
      for (int j = 0; j <= i; ++j) sum += std::exp(logit[j] - max);
      for (int j = 0; j <= i; ++j)
        for (int d = 0; d < D; ++d) heads(i, h * D + d) += std::exp(logit[j] - max) / sum * v(j, g * D + d);
    }
  }
  return times(heads, weights.output.matrix());  // (L, E)
}

int main() {
  Layer layer({.d_model = E, .num_heads = Hq});
  layer.initialize(mha::XavierUniform{.seed = 1});  // the same weights on every machine

  Matrix x(L, E);  // (L, E)
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = float(std::sin(0.1 * (i + 1) * e));
  const Matrix y = layer(x);  // (L, E)

  const Doubles expected = layer_by_hand(layer, x);
  const double error = (y.cast<double>() - expected).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();
  std::printf("y row 0: %.4f %.4f %.4f ...   largest difference to the loops: %.1e\n", double(y(0, 0)), double(y(0, 1)),
              double(y(0, 2)), error);

  // Causal: the past cannot see the future. Not "nearly": the very same bits.
  Matrix changed = x;
  changed.row(4).array() += 1;
  const Matrix y_changed = layer(changed);
  bool causal = true;
  for (int i = 0; i < L; ++i) {
    const bool same = std::memcmp(&y(i, 0), &y_changed(i, 0), E * sizeof(float)) == 0;
    std::printf("token 4 changed: row %d %s\n", i, same ? "keeps its bits" : "moves");
    causal = causal && same == (i < 4);
  }

  // A call never stores the attention weights, but they can be computed: for every head, or their mean.
  const auto weights = layer.attention_weights(x);    // (B, Hq, L, L), here (1, 8, 6, 6)
  const auto mean = layer.mean_attention_weights(x);  // (B, L, L)
  double row_sum = 0, mean_sum = 0;
  for (int j = 0; j < L; ++j) row_sum += double(weights(0, 7, 5, j)), mean_sum += double(mean(0, 5, j));
  std::printf("weights of head 7, token 5: sum %.6f, mean over the heads: sum %.6f\n", row_sum, mean_sum);
  const bool sums = std::fabs(row_sum - 1) < 1e-5 && std::fabs(mean_sum - 1) < 1e-5 && weights(0, 7, 2, 3) == 0;

  std::printf("\n%s", layer.explain(1, L, L).c_str());
  return error < 1e-5 && causal && sums ? 0 : 1;
}
