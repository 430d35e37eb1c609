// SPDX-License-Identifier: Apache-2.0
// 12: more heads cost the same
//
// You learn   that heads divide a layer's width and do not add to it: at a fixed E the parameters and the work are the
//             same from one head to 32; what does grow, and what each head gets less of
// The maths   D = E / h:  parameters 4·E·(h·D) = 4E²;  work 2·4·L·E·(h·D) + 2·L²·h·(D + D) = 8LE² + 4L²E, free of h
// Symbols     L = 384 tokens, E = 256, h = 1 … 32 heads of D = E / h; X, Y (L, E)  attention weights (1, h, L, L)
// Output      a line for each h: 262144 parameters and 352.3 MFLOP in all of them. The time is printed but not
//             checked; it grows with h, because the softmax has h·L·L weights, which these FLOP do not count
// Next        13_pitfalls_of_numbers.cpp
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <mha/mha.hpp>

constexpr int L = 384, E = 256;

using Layer = mha::MultiHeadAttention<float>;
using Rows = mha::Tensor<float, 2>;

double milliseconds(const Layer& layer, const Rows& x) {
  Rows y(L, E);
  Layer::Workspace workspace;
  std::vector<double> times;
  for (int repeat = 0; repeat < 7; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    layer(x, mha::into(y), workspace);
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + 3, times.end());
  return times[3];
}

// How far a token's distributions are apart: the mean over tokens of the distance between the first and last head's.
double disagreement(const mha::Tensor<float, 4>& weights) {
  double sum = 0;
  for (int i = 0; i < L; ++i)
    for (int j = 0; j < L; ++j) sum += std::fabs(weights(0, 0, i, j) - weights(0, weights.extent(1) - 1, i, j));
  return sum / L;
}

int main() {
  Rows x(L, E);
  for (int i = 0; i < L * E; ++i) x.data()[i] = 3 * std::sin(0.37f * float(i) * float(i % 11 + 1));

  std::printf("%5s %5s %11s %8s %15s %15s %9s\n", "heads", "D", "parameters", "MFLOP", "K, V (numbers)",
              "distributions", "ms");
  bool same = true, independent = true;
  for (int h = 1; h <= 32; h *= 2) {
    Layer layer({.d_model = E, .num_heads = h});
    layer.initialize(mha::XavierUniform{.seed = 12});
    const mha::Cost cost = mha::cost<mha::MultiHead>(layer.config(), 1, L, L);
    const auto weights = layer.attention_weights(x);  // (B, h, L, L)
    std::printf("%5d %5d %11lld %8.1f %15lld %15d %9.2f\n", h, layer.config().head_dim, (long long)cost.parameters(),
                cost.total_flop() * 1e-6, (long long)cost.cache_elements, h * L, milliseconds(layer, x));

    // By hand: four matrices E x E, each row of x once through them, and every pair of tokens once in each of E
    // columns.
    same = same && cost.parameters() == 4 * E * E && layer.parameter_count() == cost.parameters() &&
           cost.total_flop() == 8.0 * L * E * E + 4.0 * L * L * E && cost.cache_elements == 2 * L * E;
    // What heads add: h distributions for each token, which differ.
    independent = independent && weights.extent(1) == h && (h == 1 || disagreement(weights) > 0.1);
  }
  std::printf("parameters 4E^2, work 8LE^2 + 4L^2E, the same for all: %s; the heads differ: %s\n", same ? "yes" : "NO",
              independent ? "yes" : "NO");

  // What each head loses: its logits q·k are a product of rank D. Heads as wide as E cost more.
  const mha::Cost narrow = mha::cost({.d_model = E, .num_heads = 8}, 1, L, L);
  const mha::Cost wide = mha::cost({.d_model = E, .num_heads = 8, .head_dim = E}, 1, L, L);
  std::printf("8 heads as wide as the one: %.0f times the parameters, %.0f times the work\n",
              double(wide.parameters()) / double(narrow.parameters()), wide.total_flop() / narrow.total_flop());
  const bool wide_costs = wide.parameters() == 8 * narrow.parameters() && wide.total_flop() == 8 * narrow.total_flop();
  return same && independent && wide_costs ? 0 : 1;
}
