// SPDX-License-Identifier: Apache-2.0
// 08: positions
//
// You learn   that attention does not know the order of its tokens, and how Rotary and Alibi add it; how a trained
//             Rotary is scaled to longer texts
// The maths   pair i of r rotated coordinates, at position p, turns by a = p·f_i, f_i = base^(−2i/r):
//             (x, y) → (x cos a − y sin a, x sin a + y cos a);  then q·k depends on p_q − p_k only.
//             Alibi: logit − slope_h·|p_q − p_k|
// Symbols     L = 12 tokens of E = 32, H = 4 heads of D = 8; X, Y (L, E)  one query or key (1, 1, 1, D)
// Output      twelve lines that end in "yes"; by how much four scalings slow each pair, of which pair 1 is
//                  1                2.037              4.000   1.587   1.963   1.600
// Next        09_write_a_score.cpp
#include <cmath>
#include <cstdio>
#include <functional>
#include <numbers>
#include <numeric>

#include <mha/mha.hpp>

constexpr int L = 12, E = 32, H = 4, D = 8;
using Row = mha::Tensor<double, 4>;
int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

// A row of D numbers, turned to a position.
template <class Rotary> Row turned(const Rotary& rotary, Row x, int position) {
  rotary.apply(x.view(), mha::Origins(position));
  return x;
}
double distance(const Row& a, const Row& b) {
  return std::transform_reduce(a.begin(), a.end(), b.begin(), 0.0, std::plus<>{},
                               [](double x, double y) { return std::fabs(x - y); });
}

// By how much pair i turns per position: read from where (1, 0) lands at position 1.
template <class Rotary> double frequency(const Rotary& rotary, int i) {
  Row unit(1, 1, 1, D);
  unit(0, 0, 0, i) = 1;
  const Row there = turned(rotary, unit, 1);
  return std::atan2(there(0, 0, 0, i + D / 2), there(0, 0, 0, i));
}

// How much a layer's rows change when its tokens are reversed: 0 = the same rows, reversed.
template <class... Policies> double notices_order(const Policies&... policies) {
  auto layer = mha::make_attention<double>({.d_model = E, .num_heads = H}, policies...);
  layer.initialize(mha::XavierUniform{.seed = 8});
  mha::Tensor<double, 2> x(L, E), reversed(L, E);  // (L, E)
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = reversed(L - 1 - i, e) = std::sin(1.7 * (i * E + e));
  const auto y = layer(x), z = layer(reversed);
  double sum = 0;
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) sum += std::fabs(y(i, e) - z(L - 1 - i, e));
  return sum / (L * E);
}

int main() {
  check("without positions reversed tokens give reversed rows", notices_order() < 1e-12);
  check("Rotary notices the order", notices_order(mha::Rotary<>{}) > 1e-3);
  check("Alibi alone does not: |p - p'| is the same from behind", notices_order(mha::Alibi{}) < 1e-12);

  // The loop of Rotary: pairs as complex numbers times e^(ia). Halves pairs (d, d + D/2), Interleaved (2d, 2d + 1).
  Row q(1, 1, 1, D), k(1, 1, 1, D), by_hand(1, 1, 1, D), q_interleaved(1, 1, 1, D), by_interleaved(1, 1, 1, D);
  for (int d = 0; d < D; ++d) q(0, 0, 0, d) = std::sin(d + 1), k(0, 0, 0, d) = std::cos(3 * d);
  for (int i = 0; i < D / 2; ++i) {
    const double a = 5 * std::pow(10000, -2.0 * i / D), x = q(0, 0, 0, i), y = q(0, 0, 0, i + D / 2);
    by_hand(0, 0, 0, i) = by_interleaved(0, 0, 0, 2 * i) = x * std::cos(a) - y * std::sin(a);
    by_hand(0, 0, 0, i + D / 2) = by_interleaved(0, 0, 0, 2 * i + 1) = x * std::sin(a) + y * std::cos(a);
    q_interleaved(0, 0, 0, 2 * i) = x, q_interleaved(0, 0, 0, 2 * i + 1) = y;
  }
  const mha::Rotary<> halves;  // mha::Halves; base 10000; all D coordinates
  const mha::Rotary<mha::Interleaved> interleaved;
  check("Rotary<Halves> is the loop", distance(turned(halves, q, 5), by_hand) < 1e-13);
  check("Interleaved is that of a reordered q, and no other",
        distance(turned(interleaved, q_interleaved, 5), by_interleaved) < 1e-13 &&
            distance(turned(interleaved, q, 5), by_hand) > 0.1);
  const Row partial = turned(mha::Rotary<>{.dims = 4}, q, 5);
  check("Rotary{.dims = 4} leaves coordinates 4 to 7 alone",
        partial(0, 0, 0, 4) == q(0, 0, 0, 4) && partial(0, 0, 0, 7) == q(0, 0, 0, 7) && distance(partial, q) > 0.1);

  const auto logit = [&](const auto& rotary, int at_q, int at_k) {
    const Row x = turned(rotary, q, at_q), y = turned(rotary, k, at_k);
    return std::transform_reduce(x.begin(), x.end(), y.begin(), 0.0);
  };
  const double near = logit(halves, 7, 3), moved = logit(halves, 1007, 1003), apart = logit(halves, 8, 3);
  check("q.k depends on the distance only", std::fabs(near - moved) < 1e-11 && std::fabs(near - apart) > 1e-3);
  // Scaled frequencies: a text four times as long as in training, without angles that training never saw.
  const mha::Rotary<mha::Halves, mha::LinearScaling> linear{.scaling = {.factor = 4}};
  const mha::Rotary<mha::Halves, mha::NtkScaling> ntk{.scaling = {.factor = 4}};
  const mha::Rotary<mha::Halves, mha::Llama3Scaling> llama{.scaling = {.factor = 4, .original_length = 128}};
  const mha::Rotary<mha::Halves, mha::YarnScaling> yarn{.scaling = {.factor = 4, .original_length = 128}};
  std::printf("\npair  turns in 128 tokens   slowed by: Linear     Ntk  Llama3    Yarn\n");
  double slowed[4][4], turns[4];
  for (int i = 0; i < D / 2; ++i) {
    const double f = frequency(halves, i);
    const double scaled[] = {frequency(linear, i), frequency(ntk, i), frequency(llama, i), frequency(yarn, i)};
    for (int s = 0; s < 4; ++s) slowed[i][s] = f / scaled[s];
    turns[i] = 128 * f / (2 * std::numbers::pi);
    std::printf("%4d %20.3f %18.3f %7.3f %7.3f %7.3f\n", i, turns[i], slowed[i][0], slowed[i][1], slowed[i][2],
                slowed[i][3]);
  }
  const auto is = [](double a, double b) { return std::fabs(a - b) < 1e-9; };
  check("Linear slows every pair by 4: position 4p is where p was",
        is(slowed[0][0], 4) && is(slowed[3][0], 4) && is(logit(linear, 28, 12), near));
  check("Ntk leaves the fastest pair and slows the slowest by 4", is(slowed[0][1], 1) && is(slowed[3][1], 4));
  const double between = (turns[1] - 1) / (4 - 1);  // Llama 3 leaves pairs of over 4 turns and slows those below 1
  check("Llama3 leaves fast pairs, slows slow ones, interpolates between",
        is(slowed[0][2], 1) && is(1 / slowed[1][2], between + (1 - between) / 4) && is(slowed[3][2], 4));
  // YaRN goes from one to the other by the pair's number, and lengthens q and k: the softmax becomes sharper.
  check("Yarn goes over by the number of the pair, and lengthens q and k",
        is(slowed[0][3], 1) && is(1 / slowed[1][3], 0.5 + 0.5 / 4) && is(slowed[3][3], 4) &&
            is(logit(yarn, 5, 5), std::pow(0.1 * std::log(4.0) + 1, 2) * logit(halves, 5, 5)));
  // Alibi turns nothing: equal logits (q = 0) are weighted by e^(−slope·distance), with a slope for each head.
  mha::Tensor<double, 4> zero(1, L, H, D);
  const auto p = mha::attention_weights(zero, zero, mha::Causal{}, mha::Alibi{});  // (B, H, Lq, Lk)
  bool alibi = true;
  for (int h = 0; h < H; ++h)
    alibi = alibi && std::fabs(std::log(p(0, h, 11, 11) / p(0, h, 11, 1)) - 10 * std::pow(2, -2.0 * (h + 1))) < 1e-5;
  check("Alibi's slopes are 1/4, 1/16, 1/64, 1/256 for 4 heads", alibi);
  return failures == 0 ? 0 : 1;
}
