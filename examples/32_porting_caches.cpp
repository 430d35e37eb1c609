// SPDX-License-Identifier: Apache-2.0
// 32: code that called another library with a cache of its own
//
// You learn   how FlashAttention's and vLLM's page tables and the tensors of llama.cpp are read here, without a copy
// The maths   y = Σ exp(s_j) v_j / (Σ exp(s_j) + exp(sink)) over the visible keys j, s_j = q·k_j / √D
// Symbols     H = 4 heads, Hkv = 2, D = 8; one new row for each of two sequences, or one sequence of three queries
// Output      two lines that end in "yes"
// Next        33_frozen_layer.cpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <mha/mha.hpp>

constexpr int H = 4, Hkv = 2, D = 8;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

std::vector<float> numbers(int count, float step) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) x[std::size_t(i)] = 2 * std::sin(step * float(i + 1));
  return x;
}

// One query, loop by loop: query(d), and key(j, d) and value(j, d) of the keys that it sees; `extra` joins the sum.
template <class Query, class Key, class Value>
bool row_is(const float* y, const Query& query, const Key& key, const Value& value, int keys, double extra = 0) {
  double sum = extra, out[D] = {};
  for (int j = 0; j < keys; ++j) {
    double s = 0;
    for (int d = 0; d < D; ++d) s += double(query(d)) * double(key(j, d));
    const double e = std::exp(s / std::sqrt(double{D}));
    sum += e;
    for (int d = 0; d < D; ++d) out[d] += e * double(value(j, d));
  }
  bool same = true;
  for (int d = 0; d < D; ++d) same = same && std::fabs(y[d] - out[d] / sum) < 1e-5;
  return same;
}

// Coordinate d of a row x at this position: pairs (2i, 2i + 1) turn, as rotary_interleaved=True.
double turned(const float* x, int d, int position) {
  const double angle = position * std::pow(10000.0, -double(d - d % 2) / D);
  return d % 2 == 0 ? x[d] * std::cos(angle) - x[d + 1] * std::sin(angle)
                    : x[d - 1] * std::sin(angle) + x[d] * std::cos(angle);
}

// flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, cache_seqlens=…, block_table=…, causal=True): a row each
bool flash_attn_with_kvcache() {
  constexpr int B = 2, pages = 6, page = 16;
  const std::vector<int> cache_seqlens{15, 33};                // before this call
  const std::vector<int> block_table{4, 1, -1, /**/ 0, 5, 2};  // (B, 3); what is behind the last page is not read
  auto ks = numbers(pages * page * Hkv * D, 0.7f), vs = numbers(pages * page * Hkv * D, 2.1f);
  const auto q_row = numbers(B * H * D, 1.3f), k_row = numbers(B * Hkv * D, 0.4f), v_row = numbers(B * Hkv * D, 1.7f);
  const auto k_cache = mha::view(ks.data(), pages, page, Hkv, D), v_cache = mha::view(vs.data(), pages, page, Hkv, D);

  auto q_turned = q_row, k_turned = k_row;
  const auto q = mha::view(q_turned.data(), B, 1, H, D), k = mha::view(k_turned.data(), B, 1, Hkv, D);
  const mha::Rotary<mha::Interleaved> rotary;  // Halves where rotary_interleaved=False
  rotary.apply(q, cache_seqlens);
  rotary.apply(k, cache_seqlens);
  const auto row = [&](const auto& cache, int b, int p) {
    return &cache(block_table[std::size_t(b * 3 + p / page)], p % page, 0, 0);
  };
  std::vector<int> lengths;
  for (int b = 0; b < B; ++b) {
    const int at = cache_seqlens[std::size_t(b)];
    std::copy_n(&k(b, 0, 0, 0), Hkv * D, row(k_cache, b, at));
    std::copy_n(&v_row[std::size_t(b * Hkv * D)], Hkv * D, row(v_cache, b, at));
    lengths.push_back(at + 1);
  }
  const auto y = mha::attention(q, mha::PagedKv{k_cache, v_cache, block_table, lengths}, mha::Causal{});

  bool same = true;
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < H; ++h) {
      const int last = cache_seqlens[std::size_t(b)], g = h / (H / Hkv) * D;
      const auto query = [&](int d) { return turned(&q_row[std::size_t((b * H + h) * D)], d, last); };
      const auto key = [&](int j, int d) {
        return j < last ? double(row(k_cache, b, j)[g + d]) : turned(&k_row[std::size_t(b * Hkv * D + g)], d, last);
      };
      const auto value = [&](int j, int d) { return row(v_cache, b, j)[g + d]; };
      same = same && row_is(&y(b, 0, h, 0), query, key, value, last + 1);
    }
  return same;
}

// A tensor of ggml: ne[0] counts the innermost axis, nb is in bytes. q, k and v of ggml_flash_attn_ext have
// ne = {D, L, H, B}; in memory the heads of a row stand side by side, as ggml_permute(…, 0, 2, 1, 3) leaves them.
struct Ggml {
  const void* data;
  std::int64_t ne[4];
  std::size_t nb[4];
};
template <class T> mha::TensorView<const T, 4> view_of(const Ggml& t, int b, int l, int h, int d) {
  const auto ne = [&](int axis) { return mha::Index(t.ne[axis]); };
  const auto nb = [&](int axis) { return std::ptrdiff_t(t.nb[axis] / sizeof(T)); };
  return {static_cast<const T*>(t.data), {ne(b), ne(l), ne(h), ne(d)}, {nb(b), nb(l), nb(h), nb(d)}};
}

// ggml_flash_attn_ext(q, k, v, mask, 1/√D, 0, 0) and ggml_flash_attn_ext_add_sinks(…, sinks): a cache and a mask of F16
bool llama_cpp() {
  constexpr int Lq = 3, Lk = 9, seen = 7;  // row i of the mask shows keys 0 to seen + i − 1
  const auto qs = numbers(Lq * H * D, 1.3f), sinks = numbers(H, 0.8f);
  std::vector<mha::half> ks, vs, masks;
  for (const float x : numbers(Lk * Hkv * D, 0.7f)) ks.push_back(mha::half(x)), vs.push_back(mha::half(x * x));
  for (int i = 0; i < Lq; ++i)
    for (int j = 0; j < Lk; ++j) masks.push_back(mha::half(j < seen + i ? 0.f : -INFINITY));
  const Ggml q{qs.data(), {D, Lq, H, 1}, {4, H * D * 4, D * 4, Lq * H * D * 4}};
  const Ggml k{ks.data(), {D, Lk, Hkv, 1}, {2, Hkv * D * 2, D * 2, Lk * Hkv * D * 2}};
  const Ggml v{vs.data(), {D, Lk, Hkv, 1}, {2, Hkv * D * 2, D * 2, Lk * Hkv * D * 2}};
  const Ggml mask{masks.data(), {Lk, Lq, 1, 1}, {2, Lk * 2, Lq * Lk * 2, Lq * Lk * 2}};

  const mha::ContiguousKv cache{view_of<mha::half>(k, 3, 1, 2, 0), view_of<mha::half>(v, 3, 1, 2, 0)};
  const auto table = view_of<mha::half>(mask, 3, 2, 1, 0);  // (B or 1, H or 1, Lq, Lk)
  const auto y = mha::attention(view_of<float>(q, 3, 1, 2, 0), cache, mha::AdditiveBias{table}, mha::Sink{sinks});

  bool same = true;
  for (int i = 0; i < Lq; ++i)
    for (int h = 0; h < H; ++h) {
      const auto at = [&](int j, int d) { return std::size_t((j * Hkv + h / (H / Hkv)) * D + d); };
      const auto query = [&](int d) { return qs[std::size_t((i * H + h) * D + d)]; };
      const auto key = [&](int j, int d) { return float(ks[at(j, d)]); };
      const auto value = [&](int j, int d) { return float(vs[at(j, d)]); };
      same = same && row_is(&y(0, i, h, 0), query, key, value, seen + i, std::exp(sinks[std::size_t(h)]));
    }
  return same;
}

int main() {
  check("flash_attn_with_kvcache: rotary, new rows, pages by a block_table", flash_attn_with_kvcache());
  check("ggml_flash_attn_ext: ne and nb, keys and mask in F16, sinks", llama_cpp());
  return failures == 0 ? 0 : 1;
}
