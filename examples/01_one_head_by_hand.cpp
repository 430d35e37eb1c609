// SPDX-License-Identifier: Apache-2.0
// 01: one head by hand
//
// You learn   what attention computes, loop by loop, and that two backends of the library print the same numbers
// The maths   S = scale · Q Kᵀ,  scale = 1/√D;  key k is hidden from query q if k > q (causal);
//             P = softmax of each row of S over its visible keys;  O = P V         (Vaswani et al. 2017, eq. 1)
// Symbols     L = 4 tokens, D = 3 numbers per query and key, Dv = 2 per value: Q, K (L, D)  V, O (L, Dv)  S, P (L, L)
// Output      the attention weights and the output in six digits, then the output when the scale is forgotten:
//               P row 1   0.462543 0.537457 0.000000 0.000000
//               O row 1   0.123780 0.053746     without the scale   0.104755 0.056464
// Next        02_first_layer.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>

#include <mha/mha.hpp>

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The formula as loops: fills p (L, L) and o (L, Dv).
void attention_by_hand(const Matrix& q, const Matrix& k, const Matrix& v, double scale, Matrix& p, Matrix& o) {
  const int length = int(q.rows());
  p = Matrix::Zero(length, length);
  o = Matrix::Zero(length, v.cols());
  for (int i = 0; i < length; ++i) {
    // Logits: how well query i matches every key it may see. Causal: keys 0 … i.
    double max = -INFINITY;
    for (int j = 0; j <= i; ++j) {
      for (int d = 0; d < q.cols(); ++d) p(i, j) += scale * q(i, d) * k(j, d);
      max = std::fmax(max, p(i, j));
    }
    // Softmax: positive and 1 in sum. Subtracting the largest logit changes nothing, except that exp cannot overflow.
    double sum = 0;
    for (int j = 0; j <= i; ++j) sum += p(i, j) = std::exp(p(i, j) - max);
    for (int j = 0; j <= i; ++j) p(i, j) /= sum;
    // Output: the mean of the values with these weights.
    for (int j = 0; j <= i; ++j)
      for (int d = 0; d < v.cols(); ++d) o(i, d) += p(i, j) * v(j, d);
  }
}

int main() {
  Matrix q(4, 3), k(4, 3), v(4, 2), known(4, 2);  // (L, D) (L, D) (L, Dv) (L, Dv)
  q << 0.2, 0.1, 0.4, /**/ 0.0, 0.5, 0.3, /**/ 0.1, 0.0, 0.2, /**/ 0.3, 0.2, 0.1;
  k << 0.2, 0.0, 0.1, /**/ 0.1, 0.4, 0.3, /**/ 0.3, 0.1, 0.2, /**/ 0.0, 0.2, 0.2;
  v << 0.5, 0.0, /**/ -0.2, 0.1, /**/ 0.3, -0.1, /**/ 0.0, 0.2;
  known << 0.5, 0, /**/ 0.123780, 0.053746, /**/ 0.198273, 0, /**/ 0.147965, 0.048996;  // computed independently

  Matrix p, by_hand;
  attention_by_hand(q, k, v, 1 / std::sqrt(3.0), p, by_hand);

  // The same with the library. Reference is written like the loops; Cpu never stores P.
  const Matrix reference = mha::attention<mha::Reference>(q, k, v, mha::Causal{});  // (L, Dv)
  const Matrix cpu = mha::attention<mha::Cpu>(q, k, v, mha::Causal{});              // (L, Dv)
  const auto weights = mha::attention_weights(q, k, mha::Causal{});                 // (B, H, L, L), here (1, 1, 4, 4)

  std::printf("attention weights P\n");
  double worst_weight = 0;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      std::printf(" %9.6f", weights(0, 0, i, j));
      const double difference = std::fabs(weights(0, 0, i, j) - p(i, j));
      worst_weight = std::isnan(difference) ? INFINITY : std::fmax(worst_weight, difference);
    }
    std::printf("\n");
  }

  // The most common mistake is to forget the scale. The numbers stay plausible: only a known answer shows it.
  Matrix unscaled_p, unscaled;
  attention_by_hand(q, k, v, 1.0, unscaled_p, unscaled);
  const Matrix unscaled_cpu = mha::attention(q, k, v, mha::Causal{}, mha::Scale{1.0});

  std::printf("output O: by hand       Reference             Cpu                   scale forgotten\n");
  for (int i = 0; i < 4; ++i)
    std::printf("%9.6f %9.6f   %9.6f %9.6f   %9.6f %9.6f   %9.6f %9.6f\n", by_hand(i, 0), by_hand(i, 1),
                reference(i, 0), reference(i, 1), cpu(i, 0), cpu(i, 1), unscaled(i, 0), unscaled(i, 1));

  const auto far = [](const Matrix& a, const Matrix& b) { return (a - b).cwiseAbs().maxCoeff<Eigen::PropagateNaN>(); };
  const bool as_published = far(by_hand, known) < 1e-6;
  const bool all_agree = far(reference, by_hand) < 1e-15 && far(cpu, by_hand) < 1e-15 && worst_weight < 1e-15;
  const bool scale_shows = std::fabs(unscaled(1, 0) - 0.104755) < 1e-6 && std::fabs(unscaled(1, 1) - 0.056464) < 1e-6 &&
                           far(unscaled_cpu, unscaled) < 1e-15;
  std::printf("as published: %s, all agree to 1e-15: %s, a forgotten scale shows: %s\n", as_published ? "yes" : "NO",
              all_agree ? "yes" : "NO", scale_shows ? "yes" : "NO");
  return as_published && all_agree && scale_shows ? 0 : 1;
}
