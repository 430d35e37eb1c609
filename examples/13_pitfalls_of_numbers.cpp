// SPDX-License-Identifier: Apache-2.0
// 13: pitfalls of numbers (14_pitfalls_of_layout.cpp has those of memory and structure)
//
// You learn   four classic mistakes between the logits and the softmax, each made on purpose beside the right way: no
//             1/√D, no row maximum, the mask after the softmax, −10⁹ in a row that sees no key
// The maths   q, k ~ N(0, 1): q·k has variance D;  softmax(s) = softmax(s − max s);  a hidden key has p = 0 before the
//             normalisation, not after it;  in float32 s − 10⁹ = −10⁹ if |s| < 32
// Symbols     L = 64 tokens, one head, D = 16 … 256; Q, K, V (L, D)  S, P (L, L)
// Output      each mistake beside the right way, such as
//               D = 256                   258.2             0.90               1.01             0.10
//               every mistake does its damage, the right way does none
// Next        14_pitfalls_of_layout.cpp
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include <mha/mha.hpp>

constexpr int L = 64;
using Rows = mha::Tensor<float, 2>;

int failures = 0;
void expect(const char* claim, bool holds) {
  if (!holds) std::printf("  NOT SO: %s\n", claim);
  failures += !holds;
}

// Normal numbers that are the same with every standard library: twelve uniform ones have variance 1 in sum.
Rows normal(int rows, int columns, unsigned seed) {
  std::mt19937 bits(seed);
  Rows x(rows, columns);
  for (float& number : x)
    for (int i = 0; i < 12; ++i) number += float(bits() >> 8) * 0x1p-24f - 0.5f;
  return x;
}

float logit(const Rows& q, const Rows& k, int i, int j) {
  float s = 0;
  for (int d = 0; d < q.extent(1); ++d) s += q(i, d) * k(j, d);
  return s / std::sqrt(float(q.extent(1)));
}

// The mean over the rows of the largest weight: 1 = every query attends to one key only and no gradient is left.
float saturation(const mha::Tensor<float, 4>& p) {
  float sum = 0;
  for (int i = 0; i < L; ++i) sum += *std::max_element(&p(0, 0, i, 0), &p(0, 0, i, 0) + L) / L;
  return sum;
}

int main() {
  std::printf("no 1/sqrt(D)       variance of q·k   largest weight   scaled: variance   largest weight\n");
  for (float before = 0.5f; const int D : {16, 32, 64, 128, 256}) {
    const Rows q = normal(L, D, 1), k = normal(L, D, 2);
    double variance = 0;
    for (int i = 0; i < L; ++i)
      for (int j = 0; j < L; ++j) variance += std::pow(logit(q, k, i, j), 2) / (L * L);
    const float unscaled = saturation(mha::attention_weights(q, k, mha::Scale{1}));
    const float scaled = saturation(mha::attention_weights(q, k));  // 1/√D is the default
    std::printf("  D = %-3d  %22.1f %16.2f %18.2f %16.2f\n", D, variance * D, double(unscaled), variance,
                double(scaled));
    expect("the variance is D without the scale, 1 with it", std::fabs(variance - 1) < 0.1);
    expect("the softmax saturates, and more with every D, without the scale only", scaled < 0.2f && unscaled > before);
    before = unscaled;
  }

  constexpr int D = 16;
  Rows q = normal(L, D, 3), k = normal(L, D, 4);
  const Rows v = normal(L, D, 5);

  // No row maximum: e^s is infinite from s = 88.8 on, and infinity over infinity is no number. One large row suffices.
  for (int d = 0; d < D; ++d) q(5, d) = 40 * k(7, d);
  float sum = 0, largest = 0;
  for (int j = 0; j < L; ++j) sum += std::exp(logit(q, k, 5, j)), largest = std::max(largest, logit(q, k, 5, j));
  const float naive = std::exp(largest) / sum, right = mha::attention_weights(q, k)(0, 0, 5, 7);
  std::printf("no row maximum     a logit of %.0f has the weight %f, with the maximum taken off first %f\n",
              double(largest), double(naive), double(right));
  expect("e^s overflows, the library's does not", std::isnan(naive) && right > 0.99f);

  // The mask after the softmax: the hidden keys keep their share, and the future is in every denominator.
  const auto unmasked = mha::attention_weights(q, k), masked = mha::attention_weights(q, k, mha::Causal{});
  float kept = 0, whole = 0;
  for (int j = 0; j <= 3; ++j) kept += unmasked(0, 0, 3, j), whole += masked(0, 0, 3, j);
  const Rows old = k;
  for (int d = 0; d < D; ++d) k(10, d) = 3 * q(3, d);
  const float moved = mha::attention_weights(q, k)(0, 0, 3, 0) / unmasked(0, 0, 3, 0);
  const float still = mha::attention_weights(q, k, mha::Causal{})(0, 0, 3, 0) / masked(0, 0, 3, 0);
  k = old;
  std::printf(
      "mask after softmax row 3 sums to %.3f, masked before to %.3f; token 10 changed: its weight of key 0 is\n"
      "                   %.4f of what it was, masked before %.4f\n",
      double(kept), double(whole), double(moved), double(still));
  expect("a mask after the softmax loses weight and leaks the future", kept < 0.5f && moved < 0.5f);
  expect("a mask before it does neither", std::fabs(whole - 1) < 1e-6f && still == 1);

  // −10⁹ for −∞ on a row of padding: all logits become the same number, so the padding is averaged as if it were text.
  Rows large(L, L);
  for (float& bias : large) bias = -1e9f;
  const std::vector<int> none{0};
  const auto averaged = mha::attention(q, k, v, mha::AdditiveBias(large)),
             hidden = mha::attention(q, k, v, mha::Padding{none});
  float mean = 0, garbage = 0, zero = 0;
  for (int j = 0; j < L; ++j) mean += v(j, 0) / L;
  for (int d = 0; d < D; ++d) garbage += std::fabs(averaged(0, d)), zero += std::fabs(hidden(0, d));
  std::printf("-1e9 as -infinity  a sequence without tokens: |output| %.3f, the mean of its padding; hidden %.3f\n",
              double(garbage), double(zero));
  expect("-1e9 averages the padding", std::fabs(averaged(0, 0) - mean) < 1e-5f && garbage > 0.5f);
  expect("what sees nothing is 0", zero == 0);
  std::printf("%s\n", failures == 0 ? "every mistake does its damage, the right way does none" : "NOT AS CLAIMED");
  return failures == 0 ? 0 : 1;
}
