// SPDX-License-Identifier: Apache-2.0
// 31: code that called another library
//
// You learn   how calls of PyTorch, FlashAttention and FlexAttention are written here (porting.md has more)
// The maths   y = Σ exp(s_j) v_j / Σ exp(s_j) over the visible keys j, s_j the other library's logit, from q·k_j / √D
// Symbols     B = 2 sequences, H = 4 heads, Hkv = 2, D = 8; each function's comment has its shapes
// Output      three lines that end in "yes"
// Next        32_porting_caches.cpp
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include <mha/mha.hpp>

constexpr int B = 2, H = 4, Hkv = 2, D = 8;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}
using View = mha::TensorView<const float, 4>;  // (B, L, H, D), whatever the memory is

std::vector<float> numbers(int count, float step) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) x[std::size_t(i)] = 2 * std::sin(step * float(i + 1));
  return x;
}

// Sequence b, loop by loop. logit(s, h, i, j) is the other library's logit of query i and key j, −∞ if it hides it.
template <class Logit> bool rows_are(View y, View q, View k, View v, int b, const Logit& logit) {
  bool same = true;
  for (int h = 0; h < H; ++h)
    for (int i = 0; i < q.extent[1]; ++i) {
      double sum = 0, out[D] = {};
      for (int j = 0; j < k.extent[1]; ++j) {
        double s = 0;
        for (int d = 0; d < D; ++d) s += double(q(b, i, h, d)) * k(b, j, h / (H / Hkv), d);
        const double e = std::exp(double(logit(s / std::sqrt(double{D}), h, i, j)));
        sum += e;
        for (int d = 0; d < D; ++d) out[d] += e * v(b, j, h / (H / Hkv), d);
      }
      for (int d = 0; d < D; ++d) same = same && std::fabs(y(b, i, h, d) - (sum > 0 ? out[d] / sum : 0)) < 1e-5;
    }
  return same;
}

// PyTorch: q, k, v (B, H, L, D), attn_mask (B·H, Lq, Lk) to add, key_padding_mask (B, Lk) true = hidden, is_causal=True
bool pytorch() {
  constexpr int Lq = 5, Lk = 7;
  constexpr int kv = B * Hkv * Lk * D;
  const auto qs = numbers(B * H * Lq * D, 1.3f), ks = numbers(kv, 0.7f), vs = numbers(kv, 2.1f);
  const auto attn_mask = numbers(B * H * Lq * Lk, 0.9f);
  const bool key_padding_mask[B * Lk] = {0, 0, 0, 0, 0, 0, 0, /**/ 0, 0, 0, 0, 1, 1, 1};
  const View q = mha::view_bhld(qs.data(), B, H, Lq, D);
  const View k = mha::view_bhld(ks.data(), B, Hkv, Lk, D), v = mha::view_bhld(vs.data(), B, Hkv, Lk, D);
  const auto hidden = mha::view(key_padding_mask, B, 1, 1, Lk);  // the axes of 1 are repeated
  const auto add = mha::view(attn_mask.data(), B, H, Lq, Lk);
  const auto y = mha::attention(q, k, v, mha::AdditiveBias{add}, !mha::Dense{hidden}, mha::CausalTopLeft{});
  bool same = true;
  for (int b = 0; b < B; ++b)
    same = same && rows_are(y.view(), q, k, v, b, [&](double s, int h, int i, int j) {
             return j > i || hidden(b, 0, 0, j) ? -INFINITY : s + add(b, h, i, j);
           });
  return same;
}

// flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, …, causal=True, window_size=(3, -1), softcap=5.0)
bool flash_attn_varlen() {
  const std::vector<int> cu_seqlens_q{0, 4, 5}, cu_seqlens_k{0, 6, 15};
  const auto qs = numbers(5 * H * D, 1.1f), ks = numbers(15 * Hkv * D, 0.6f), vs = numbers(15 * Hkv * D, 1.9f);
  const auto q = mha::view(qs.data(), 5, H, D);
  const auto k = mha::view(ks.data(), 15, Hkv, D), v = mha::view(vs.data(), 15, Hkv, D);
  const auto y =
      mha::attention(q, k, v, mha::Ragged{cu_seqlens_q, cu_seqlens_k}, mha::SlidingWindow{.left = 3}, mha::SoftCap{5});
  bool same = true;
  for (std::size_t b = 0; b < B; ++b) {
    const int q0 = cu_seqlens_q[b], k0 = cu_seqlens_k[b], Lq = cu_seqlens_q[b + 1] - q0, Lk = cu_seqlens_k[b + 1] - k0;
    same = same && rows_are(mha::view(&y(q0, 0, 0), 1, Lq, H, D), mha::view(&q(q0, 0, 0), 1, Lq, H, D),
                            mha::view(&k(k0, 0, 0), 1, Lk, Hkv, D), mha::view(&v(k0, 0, 0), 1, Lk, Hkv, D), 0,
                            [&](double s, int, int i, int j) {
                              const int at = i + Lk - Lq;  // the last query meets the last key
                              return j > at || j < at - 3 ? -INFINITY : 5 * std::tanh(s / 5);
                            });
  }
  return same;
}

// flex_attention(q, k, v, score_mod, block_mask, return_lse=True): functions of rows that capture a table and documents
bool flex_attention() {
  constexpr int Lq = 6, Lk = 9;
  constexpr int kv = B * Hkv * Lk * D;
  const auto qs = numbers(B * H * Lq * D, 1.2f), ks = numbers(kv, 0.5f), vs = numbers(kv, 1.4f);
  const auto bias = numbers(H * (Lq + Lk), 0.3f);
  // Documents of queries and of keys, in any order; mha::Document has one list, which does not decrease.
  const std::vector<int> of_query{0, 1, 1, 0, 4, 2}, of_key{1, 0, 2, 0, 1, 3, 0, 0, 1};
  const View q = mha::view_bhld(qs.data(), B, H, Lq, D);
  const View k = mha::view_bhld(ks.data(), B, Hkv, Lk, D), v = mha::view_bhld(vs.data(), B, Hkv, Lk, D);
  const auto score_mod = [&](auto s, int, int h, int i, int j) {
    return s + bias[std::size_t(h * (Lq + Lk) + i - j + Lk)];
  };
  const auto mask_mod = [&](int, int, int i, int j) { return of_query[std::size_t(i)] == of_key[std::size_t(j)]; };
  mha::Tensor<float, 3> lse(B, H, Lq);
  const auto y =
      mha::attention(q, k, v, mha::score(score_mod), mha::mask(mask_mod), mha::Origin{0}, mha::LogSumExp{lse});
  bool same = lse(0, 0, 4) == -INFINITY;  // document 4 has no key: that row of y is 0
  for (int b = 0; b < B; ++b)
    same = same && rows_are(y.view(), q, k, v, b, [&](double s, int h, int i, int j) {
             return mask_mod(b, h, i, j) ? score_mod(s, b, h, i, j) : -INFINITY;
           });
  return same;
}

int main() {
  check("PyTorch's masks and its causal alignment, where Lq is not Lk", pytorch());
  check("flash_attn_varlen_func with a window and a soft cap", flash_attn_varlen());
  check("flex_attention with a captured table and documents", flex_attention());
  return failures == 0 ? 0 : 1;
}
