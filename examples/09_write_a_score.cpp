// SPDX-License-Identifier: Apache-2.0
// 09: write a score (04_write_a_mask.cpp has the shortest one)
//
// You learn   a score with data for each head, whose derivative you need not write; the order in a Chain;
//             tables: AdditiveBias, where −∞ hides, and RelativeBias
// The maths   s' = score(s, b, h, q, k),  s = q·k/√D,  p = softmax(s'),  o = Σ_k p_k v_k;  so
//             ∂o/∂s_k = p_k (v_k − o) · ∂s'/∂s:  the last factor is what differentiate() gives
// Symbols     L = 10 tokens, H = 2 heads, D = 4; Q, K, V, O (1, L, H, D)  tables (L, L) and (buckets, H)
// Output      six lines that end in "yes"; a gradient and its difference quotient, such as 0.166978 and 0.166978
// Next        10_masks.cpp
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include <mha/mha.hpp>

constexpr int L = 10, H = 2, D = 4;
using Heads = mha::Tensor<double, 4>;  // (1, L, H, D)

// Nearly linear around 0, never beyond ±limit, which is each head's own. A template that uses mha's maths: that is all
// it takes to be differentiated.
struct SoftSign {
  float limit[H];
  template <class T> T operator()(T s, int, int h, int, int) const {
    return s / mha::sqrt(T(1) + s * s / (limit[h] * limit[h]));
  }
};

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}
double distance(const Heads& a, const Heads& b) {  // a sum, so that a NaN shows
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::fabs(a.data()[i] - b.data()[i]);
  return sum;
}

// The loop: logits, score, softmax, values. A logit of −∞ has weight e^−∞ = 0.
template <class Score> Heads by_hand(const Heads& q, const Heads& k, const Heads& v, const Score& score) {
  Heads o(1, L, H, D);
  for (int h = 0; h < H; ++h)
    for (int i = 0; i < L; ++i) {
      double weight[L], sum = 0;
      for (int j = 0; j < L; ++j) {
        double s = 0;
        for (int d = 0; d < D; ++d) s += q(0, i, h, d) * k(0, j, h, d) / std::sqrt(double(D));
        sum += weight[j] = std::exp(score(s, 0, h, i, j));
      }
      for (int j = 0; j < L; ++j)
        for (int d = 0; d < D; ++d) o(0, i, h, d) += weight[j] / sum * v(0, j, h, d);
    }
  return o;
}

int main() {
  Heads q(1, L, H, D), k(1, L, H, D), v(1, L, H, D);
  for (int i = 0; i < L * H * D; ++i)
    q.data()[i] = 3 * std::sin(0.7 * i), k.data()[i] = 2 * std::cos(1.3 * i), v.data()[i] = std::sin(2.1 * i);

  const SoftSign soft{{2, 5}};
  const Heads o = mha::attention(q, k, v, soft);  // (1, L, H, D)
  check("a score with data per head is the loop", distance(o, by_hand(q, k, v, soft)) < 1e-6);

  // The gradient of output 2 of token 4, head 1, with respect to its query, from one derivative of the score per key;
  // beside it the difference quotient of the whole attention.
  const auto p = mha::attention_weights(q, k, soft);  // (B, H, L, L)
  double gradient[D] = {}, apart = 0;
  for (int j = 0; j < L; ++j) {
    double s = 0;
    for (int d = 0; d < D; ++d) s += q(0, 4, 1, d) * k(0, j, 1, d) / std::sqrt(double(D));
    const mha::Dual<double> scored = mha::differentiate(soft, s, 0, 1, 4, j);  // value and derivative at s
    for (int d = 0; d < D; ++d)
      gradient[d] +=
          p(0, 1, 4, j) * (v(0, j, 1, 2) - o(0, 4, 1, 2)) * scored.derivative[0] * k(0, j, 1, d) / std::sqrt(double(D));
  }
  for (int d = 0; d < D; ++d) {
    const double step = 1e-4, old = q(0, 4, 1, d);
    q(0, 4, 1, d) = old + step;
    const double above = mha::attention(q, k, v, soft)(0, 4, 1, 2);
    q(0, 4, 1, d) = old - step;
    const double quotient = (above - mha::attention(q, k, v, soft)(0, 4, 1, 2)) / (2 * step);
    q(0, 4, 1, d) = old;
    apart += std::fabs(gradient[d] - quotient);
    std::printf("gradient %9.6f  difference quotient %9.6f\n", gradient[d], quotient);
  }
  check("the gradient through the score is the difference quotient", apart < 1e-6);

  // A Chain applies its parts as written, and the order matters. Several scores of a call are chained too.
  const mha::Chain capped_first{mha::SoftCap{3}, soft};
  const Heads chained = mha::attention(q, k, v, capped_first);
  const auto loop = [&](double s, int b, int h, int i, int j) { return soft(3 * std::tanh(s / 3), b, h, i, j); };
  check("Chain{SoftCap, yours} is SoftCap, then yours",
        distance(chained, by_hand(q, k, v, loop)) < 1e-6 &&
            distance(chained, mha::attention(q, k, v, mha::SoftCap{3}, soft)) == 0);
  check("the other order is another score", distance(mha::attention(q, k, v, soft, mha::SoftCap{3}), chained) > 1e-3);

  // A table added to the logits, here causal by −∞; what −10⁹ does instead is in 13_pitfalls_of_numbers.cpp.
  mha::Tensor<float, 2> table(L, L);  // (Lq, Lk), shared by the heads
  for (int i = 0; i < L; ++i)
    for (int j = 0; j < L; ++j) table(i, j) = j <= i ? 0.f : -std::numeric_limits<float>::infinity();
  const Heads causal = mha::attention(q, k, v, mha::Causal{});
  const Heads hidden = mha::attention(q, k, v, mha::AdditiveBias{table});
  check("AdditiveBias with -inf is the mask", distance(hidden, causal) < 1e-12);

  // A learned number per head and bucket of distance (T5): near distances have their own buckets, far ones share.
  const mha::RelativeBuckets buckets{.count = 8, .max_distance = 8};
  std::vector<float> learned(std::size_t(buckets.count * H));  // (buckets, H)
  for (std::size_t i = 0; i < learned.size(); ++i) learned[i] = 2 * std::sin(float(i));
  const auto bias = [&](double s, int, int h, int i, int j) {
    return s + double(learned[std::size_t(buckets.bucket(i, j) * H + h)]);
  };
  check("RelativeBias is a look-up by bucket",
        distance(mha::attention(q, k, v, mha::RelativeBias(learned, buckets)), by_hand(q, k, v, bias)) < 1e-6);
  std::printf("buckets of keys 9 behind to 9 ahead:");
  for (int d = -9; d <= 9; ++d) std::printf(" %d%s", buckets.bucket(9, 9 + d), d == 9 ? "\n" : "");
  return failures == 0 ? 0 : 1;
}
