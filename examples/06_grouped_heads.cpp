// SPDX-License-Identifier: Apache-2.0
// 06: grouped heads
//
// You learn   MHA, GQA and MQA as types; what each stores per token; that sharing a key/value head gives the same as
//             repeating it, without the copy
// The maths   query head h reads key/value head g(h) = h / (Hq / Hkv):  Hkv = Hq is multi-head, 1 is multi-query
// Symbols     L = 40 tokens of E = 64, Hq = 8 query heads, D = E / Hq = 8, Hkv = 8, 2 or 1 key/value heads
//             X, Y (L, E)  W_Q (Hq, E, D)  W_K, W_V (Hkv, E, D)
// Output      for a layer of Llama-3.1 8B 67108864, 41943040 and 34603008 parameters, a cache of 16384, 4096 and 512
//             bytes a token; then six lines that end in "yes", and
//               mean differences: 0e+00 for h / 4, 0.05 for h % 2
// Next        07_cross_attention.cpp
#include <cmath>
#include <cstdio>

#include <mha/mha.hpp>

constexpr int L = 40, E = 64, Hq = 8, D = E / Hq;

using Rows = mha::Tensor<float, 2>;
using MultiHeadLayer = mha::MultiHeadAttention<float, mha::Cpu, mha::MultiHead, mha::Causal>;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

// The mean difference; a NaN makes it NaN, and no comparison with that holds.
template <class X> double distance(const X& a, const X& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::fabs(double(a.data()[i] - b.data()[i]));
  return sum / double(a.size());
}

// A layer with a key/value head for every query head, whose head h holds a copy of the grouped layer's head g(h).
template <class Grouped> MultiHeadLayer repeated(const Grouped& grouped) {
  const auto from = grouped.parameters();
  const int group = Hq / grouped.config().num_kv_heads;
  MultiHeadLayer layer({.d_model = E, .num_heads = Hq});
  layer.update([&](auto& to) {
    for (int h = 0; h < Hq; ++h)
      for (int e = 0; e < E; ++e)
        for (int d = 0; d < D; ++d) {
          to.query.heads(h, e, d) = from.query.heads(h, e, d);
          to.key.heads(h, e, d) = from.key.heads(h / group, e, d);
          to.value.heads(h, e, d) = from.value.heads(h / group, e, d);
        }
    for (int i = 0; i < Hq * D; ++i)
      for (int e = 0; e < E; ++e) to.output.weight(i, e) = from.output.weight(i, e);
  });
  return layer;
}

// What one layer of Llama-3.1 8B (E = 4096, Hq = 32) is and keeps for 8192 tokens in bfloat16, under a heads policy.
template <class Policy> mha::Cost llama(const char* name) {
  constexpr int tokens = 8192;
  const mha::Cost cost = mha::cost<Policy>({.d_model = 4096, .num_heads = 32}, 1, tokens, tokens, mha::Causal{});
  const double bytes = double(cost.cache_elements) * sizeof(mha::bfloat16);
  std::printf("%-16s %11lld %14.0f %13.0f MiB %12.0f %9.0f\n", name, (long long)cost.parameters(), bytes / tokens,
              bytes / (1 << 20), cost.projection.flop * 1e-9, cost.attention_flop() * 1e-9);
  return cost;
}

template <class Policy> void equals_repeated(const char* name, const Rows& x) {
  mha::MultiHeadAttention<float, mha::Cpu, Policy, mha::Causal> grouped({.d_model = E, .num_heads = Hq});
  grouped.initialize(mha::XavierUniform{.seed = 6});
  const Rows y = grouped(x);  // (L, E)
  check(name, distance(y, repeated(grouped)(x)) < 1e-6);
}

int main() {
  std::printf("%-16s %11s %14s %17s %12s %9s\n", "one layer", "parameters", "cache B/token", "8192 tokens",
              "projections", "attention");
  const mha::Cost all = llama<mha::MultiHead>("MultiHead");
  const mha::Cost eight = llama<mha::GroupedQuery<8>>("GroupedQuery<8>");
  const mha::Cost one = llama<mha::MultiQuery>("MultiQuery");
  std::printf("%71s %12s\n\n", "GFLOP", "GFLOP");
  check("67,108,864 and 41,943,040 parameters, as published",
        all.parameters() == 67'108'864 && eight.parameters() == 41'943'040);
  check("the cache shrinks by Hq / Hkv: 4 and 32 times",
        all.cache_elements == 4 * eight.cache_elements && all.cache_elements == 32 * one.cache_elements);
  check("attention itself costs the same: every query head still works",
        all.attention_flop() == eight.attention_flop() && all.attention_flop() == one.attention_flop());

  Rows x(L, E);
  for (int i = 0; i < L * E; ++i) x.data()[i] = std::sin(0.37f * float(i));
  equals_repeated<mha::GroupedQuery<2>>("a layer with 2 key/value heads = 8 heads, each 4 times", x);
  equals_repeated<mha::MultiQuery>("a layer with 1 key/value head = 8 copies of it", x);

  // The same without a layer. The function takes the number of heads from the tensors: 8 query heads meet 2.
  mha::Tensor<float, 4> q(1, L, Hq, D), k(1, L, 2, D), v(1, L, 2, D), k8(1, L, Hq, D), v8(1, L, Hq, D);
  for (int i = 0; i < L * Hq * D; ++i) q.data()[i] = std::sin(1.3f * float(i));
  for (int i = 0; i < L * 2 * D; ++i) k.data()[i] = std::cos(0.7f * float(i)), v.data()[i] = std::sin(2.1f * float(i));
  // The loop that grouping saves: memory and copies Hq / Hkv times as large.
  for (int l = 0; l < L; ++l)
    for (int h = 0; h < Hq; ++h)
      for (int d = 0; d < D; ++d) {
        k8(0, l, h, d) = k(0, l, h / 4, d);
        v8(0, l, h, d) = v(0, l, h / 4, d);
      }
  const double apart = distance(mha::attention(q, k, v, mha::Causal{}), mha::attention(q, k8, v8, mha::Causal{}));
  check("attention(q, k, v) = attention(q, K and V repeated)", apart < 1e-6);
  // The wrong order is the classic mistake: head h with h % Hkv also runs, on heads it was not trained with.
  for (int l = 0; l < L; ++l)
    for (int h = 0; h < Hq; ++h)
      for (int d = 0; d < D; ++d) k8(0, l, h, d) = k(0, l, h % 2, d), v8(0, l, h, d) = v(0, l, h % 2, d);
  const double tiled = distance(mha::attention(q, k, v, mha::Causal{}), mha::attention(q, k8, v8, mha::Causal{}));
  failures += !(tiled > 0.01);
  std::printf("mean differences: %.0e for h / 4, %.2f for h %% 2\n", apart, tiled);
  return failures == 0 ? 0 : 1;
}
