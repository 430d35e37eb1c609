// SPDX-License-Identifier: Apache-2.0
// 22: gradients
//
// You learn   what the backward pass computes, loop by loop; the call that does it; a gradient descent with it
// The maths   of ⟨dO, O⟩ for O = P V, P = softmax(S), S = scale · Q Kᵀ:  dV = Pᵀ dO,  dP = dO Vᵀ,  m_i = dO_i · O_i,
//             dS = P ∘ (dP − m),  dQ = scale · dS K,  dK = scale · dSᵀ Q              (Dao et al. 2022, appendix B.2)
// Symbols     L = 6 tokens, D = 4 numbers per query and key, Dv = 3 per value: Q, K (L, D)  V, O, dO (L, Dv)
// Output      the largest difference between loops and call (below 1e-6); the error of values that learn the output of
//             others:
//               step   0: 0.8962
//               step 400: 0.0487
// Next        23_kv_cache.cpp, keys and values that are kept
#include <cmath>
#include <cstdio>
#include <Eigen/Core>

#include <mha/mha.hpp>

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr int L = 6, D = 4, Dv = 3;

Matrix waves(int rows, int columns, float pace) {
  Matrix m(rows, columns);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) m(i, j) = std::sin(pace * float(1 + i) * float(2 + j));
  return m;
}

struct Gradients {
  Matrix q, k, v;
};

// The formulas as loops; key j is seen by queries from j on (causal).
Gradients by_hand(const Matrix& d_out, const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& out) {
  const float scale = 1 / std::sqrt(float(D));
  Gradients g{Matrix::Zero(L, D), Matrix::Zero(L, D), Matrix::Zero(L, Dv)};
  for (int i = 0; i < L; ++i) {
    float p[L], sum = 0;
    for (int j = 0; j <= i; ++j) sum += p[j] = std::exp(scale * q.row(i).dot(k.row(j)));
    const float mean = d_out.row(i).dot(out.row(i));  // the mean of row i of dP, weighted by P
    for (int j = 0; j <= i; ++j) {
      p[j] /= sum;
      const float ds = p[j] * (d_out.row(i).dot(v.row(j)) - mean);
      g.v.row(j) += p[j] * d_out.row(i);
      g.q.row(i) += scale * ds * k.row(j);
      g.k.row(j) += scale * ds * q.row(i);
    }
  }
  return g;
}

int main() {
  const Matrix q = waves(L, D, 0.3f), k = waves(L, D, 0.7f);
  Matrix v = waves(L, Dv, 1.1f);
  const Matrix d_out = waves(L, Dv, 0.5f);

  mha::AttentionTape<float> tape;
  const Matrix out = mha::attention(q, k, v, mha::Causal{}, mha::record(tape));
  const auto g = mha::attention_backward(d_out, q, k, v, out, tape, mha::Causal{});  // {query, key, value}

  const Gradients loops = by_hand(d_out, q, k, v, out);
  const auto near = [](const Matrix& a, const Matrix& b) {
    return (a - b).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-6f;
  };
  const bool agree = near(g.query, loops.q) && near(g.key, loops.k) && near(g.value, loops.v);
  std::printf("largest difference between loops and call: %s 1e-6\n", agree ? "below" : "above");

  // Gradient descent on ½ ‖O − target‖², whose gradient with respect to O is O − target: the values learn the output
  // of other values. A gradient that is not needed is {} and costs nothing.
  const Matrix target = mha::attention(q, k, waves(L, Dv, 0.9f), mha::Causal{});
  Matrix dv(L, Dv);
  float error = 0;
  for (int step = 0; step <= 400; ++step) {
    const Matrix o = mha::attention(q, k, v, mha::Causal{}, mha::record(tape));
    error = (o - target).norm() / target.norm();
    if (step % 200 == 0) std::printf("step %3d: %.4f\n", step, double(error));
    mha::attention_backward_into({{}, {}, dv}, Matrix(o - target), q, k, v, o, tape, mha::Causal{});
    v -= 0.5f * dv;
  }
  return agree && error < 0.05f ? 0 : 1;
}
