// SPDX-License-Identifier: Apache-2.0
// 04: write a mask, write a score
//
// You learn   a new attention variant as one functor; how tile() makes a mask cheap; how masks and scores compose
// The maths   O_i = Σ_k p_ik V_k over the visible k,  p_ik = exp(s_ik) / Σ exp(s_ik'),  s = score(scale · Q_i·K_k)
// Symbols     B = 2 sequences, L = 256 tokens, H = 4 heads, D = 16; Q, K, V, O (B, L, H, D); b, h, q, k: sequence,
//             head, query position, key position
// Output      each variant's largest difference to the loop (below 1e-5); how many pairs a mask was asked about
//             with and without tile(); the masks as tiles of 32 x 32 pairs: . hidden, # visible, + both
// Next        05_vendoring/
#include <atomic>
#include <cmath>
#include <cstdio>
#include <vector>

#include <mha/mha.hpp>

constexpr int B = 2, L = 256, H = 4, D = 16;
using Heads = mha::Tensor<float, 4>;  // (B, L, H, D)

// A whole mask: true = visible. Here every fourth token of the past.
struct Strided {
  bool operator()(int, int, int q, int k) const { return k <= q && (q - k) % 4 == 0; }
};

// A mask that also knows rectangles: tokens see their own chunk. `none` and `full` are promises, `partial` is not.
struct Chunked {
  int size;
  bool operator()(int, int, int q, int k) const { return q / size == k / size; }
  mha::TileVisibility tile(int, int, int q_begin, int q_end, int k_begin, int k_end) const {
    const int q0 = q_begin / size, q1 = (q_end - 1) / size, k0 = k_begin / size, k1 = (k_end - 1) / size;
    if (q1 < k0 || k1 < q0) return mha::TileVisibility::none;
    return q0 == q1 && k0 == k1 && q0 == k0 ? mha::TileVisibility::full : mha::TileVisibility::partial;
  }
};

// A whole score: the scaled logit in, the logit out. A template over the logit, so that it can be differentiated.
struct Distance {
  float slope;
  template <class T> T operator()(T s, int, int, int q, int k) const { return s - slope * float(mha::abs(q - k)); }
};

// The loop that every call below replaces, in double. A token that sees nothing keeps 0.
template <class M, class S = mha::NoScore>
Heads by_hand(const Heads& q, const Heads& k, const Heads& v, const M& mask, const S& score = {}) {
  Heads out(B, L, H, D);
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < H; ++h)
      for (int i = 0; i < L; ++i) {
        double weight[L] = {}, sum = 0;
        for (int j = 0; j < L; ++j) {
          double dot = 0;
          for (int d = 0; d < D; ++d) dot += double(q(b, i, h, d)) * double(k(b, j, h, d));
          if (mask(b, h, i, j)) sum += weight[j] = std::exp(score(dot / std::sqrt(double(D)), b, h, i, j));
        }
        for (int j = 0; j < L; ++j)
          for (int d = 0; d < D && weight[j] > 0; ++d) out(b, i, h, d) += float(weight[j] / sum) * v(b, j, h, d);
      }
  return out;
}

int failures = 0;
void compare(const char* what, const Heads& got, const Heads& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(got.data()[i] - expected.data()[i]);
    failures += !(difference < 1e-5);  // a NaN counts too
    worst = std::fmax(worst, difference);
  }
  std::printf("%-44s %.0e\n", what, worst);
}

std::atomic<long> asked{0};
struct Counting {
  Chunked mask;
  bool operator()(int b, int h, int q, int k) const { return ++asked, mask(b, h, q, k); }
  auto tile(int b, int h, int q0, int q1, int k0, int k1) const { return mask.tile(b, h, q0, q1, k0, k1); }
};

int main() {
  Heads q(B, L, H, D), k(B, L, H, D), v(B, L, H, D);
  float* const data[] = {q.data(), k.data(), v.data()};
  for (int t = 0; t < 3; ++t)
    for (int i = 0; i < B * L * H * D; ++i) data[t][i] = 2 * std::sin((0.7f + float(t)) * float(i));

  compare("Strided", mha::attention(q, k, v, Strided{}), by_hand(q, k, v, Strided{}));
  compare("Strided, plain loops", mha::attention<mha::Reference>(q, k, v, Strided{}), by_hand(q, k, v, Strided{}));
  const auto two_ways = mha::mask([](int, int h, int i, int j) { return h < 2 ? j <= i : j >= i; });
  compare("a lambda: two heads look back, two ahead", mha::attention(q, k, v, two_ways), by_hand(q, k, v, two_ways));

  // Data of one call is borrowed: sequence 1 has 100 tokens, and what follows them is not read.
  const std::vector<int> lengths{L, 100};
  const auto composed = Chunked{64} && mha::Causal{} && mha::Padding{lengths};
  const Heads expected = by_hand(q, k, v, composed);
  for (int l = 100; l < L; ++l) k(1, l, 0, 0) = v(1, l, 0, 0) = NAN;
  compare("Chunked && Causal && Padding, NaN behind", mha::attention(q, k, v, composed), expected);
  for (int l = 100; l < L; ++l) k(1, l, 0, 0) = v(1, l, 0, 0) = 0;

  // Several masks intersect; several scores are applied in the order written: capped first, then the distance.
  const auto capped = [](double s, int, int, int i, int j) { return 5 * std::tanh(s / 5) - 0.1 * std::abs(i - j); };
  compare("a score of your own, after SoftCap", mha::attention(q, k, v, mha::Causal{}, mha::SoftCap{5}, Distance{0.1f}),
          by_hand(q, k, v, mha::Causal{}, capped));
  const double slope = mha::differentiate(mha::Chain{mha::SoftCap{5}, Distance{0.1f}}, 2.0, 0, 0, 7, 3).derivative[0];
  std::printf("derivative of that score at 2: %.6f\n", slope);
  failures += !(std::fabs(slope - (1 - std::pow(std::tanh(2.0 / 5), 2))) < 1e-7);

  static_cast<void>(mha::attention(q, k, v, Counting{{64}}));
  const long with_tile = asked.exchange(0);
  static_cast<void>(
      mha::attention(q, k, v, mha::mask([](int, int, int i, int j) { return ++asked, i / 64 == j / 64; })));
  std::printf("pairs asked about: %ld with tile(), %ld without\n\n", with_tile, asked.load());
  failures += !(with_tile < asked);

  std::printf("   Causal     Chunked    both       and Padding (sequence 1)\n");
  const auto draw = [](const auto& m, int i) {
    std::printf("   ");
    for (int j = 0; j < L; j += 32) std::putchar(".+#"[int(mha::tile(m, 1, 0, i, i + 32, j, j + 32))]);
  };
  for (int i = 0; i < L; i += 32, std::putchar('\n'))
    draw(mha::Causal{}, i), draw(Chunked{64}, i), draw(Chunked{64} && mha::Causal{}, i), draw(composed, i);
  return failures == 0 ? 0 : 1;
}
