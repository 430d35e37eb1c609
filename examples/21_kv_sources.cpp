// SPDX-License-Identifier: Apache-2.0
// 21: where keys and values live
//
// You learn   attention over keys in pages, in a ring, and in a structure of your own: nothing is copied
// The maths   y = softmax(q kᵀ / √D where the mask allows) v, whatever holds k and v; the same keys give the same bits
// Symbols     q (B, 1, H, D): one new token for each of B = 2 sequences of 45 and 300 keys, H = 4 heads, Hkv = 2
//             pages (24, 32 rows, Hkv, D)  table (B, 10)  ring (B, 4 + 64 rows, Hkv, D)
// Output      five lines that end in "yes"
// Next        22_gradients.cpp
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include <mha/mha.hpp>

constexpr int B = 2, H = 4, Hkv = 2, D = 32, row = Hkv * D;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

bool same(const mha::Tensor<float, 4>& a, const mha::Tensor<float, 4>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A source of your own: one vector a sequence, a key and its value side by side.
struct Rows {
  using Scalar = float;
  std::vector<float> sequence[2];  // (keys, 2, Hkv, D)
  mha::Index batch() const { return B; }
  mha::Index heads() const { return Hkv; }
  mha::Index dim() const { return D; }
  mha::Index value_dim() const { return D; }
  mha::Index keys(mha::Index b) const { return static_cast<mha::Index>(sequence[b].size()) / (2 * row); }
  mha::KvRun<float> run(mha::Index b, mha::Index g, mha::Index begin, mha::Index end) const {
    const float* const key = sequence[b].data() + 2 * row * begin + g * D;
    return {key, key + row, 2 * row, 2 * row, end - begin};
  }
};

int main() {
  const std::vector<int> lengths{45, 300};
  mha::Tensor<float, 4> q(B, 1, H, D), k(B, 300, Hkv, D), v(B, 300, Hkv, D);
  for (std::size_t i = 0; i < q.size(); ++i) q.data()[i] = std::sin(1.3f * float(i));
  for (std::size_t i = 0; i < k.size(); ++i)
    k.data()[i] = std::cos(0.7f * float(i)), v.data()[i] = std::sin(2.1f * float(i));

  // Contiguous rows, of which each sequence has filled the first lengths[b]. Rows after them are not read.
  const mha::ContiguousKv<float> rows{k.view(), v.view(), {}, lengths};
  const auto y = mha::attention(q, rows, mha::Causal{});  // the query of sequence b stands at position lengths[b] − 1
  const auto alone = mha::attention(mha::view(q.data(), 1, 1, H, D), mha::view(k.data(), 1, 45, Hkv, D),
                                    mha::view(v.data(), 1, 45, Hkv, D), mha::Causal{});
  check("a short sequence = its keys alone", std::memcmp(alone.data(), y.data(), alone.size() * sizeof(float)) == 0);

  // Pages: position p is in row p mod 32 of page table[b][p / 32], here every other page of the pool, backwards.
  constexpr int page = 32, pages = 24;
  mha::Tensor<float, 4> pool_k(pages, page, Hkv, D), pool_v(pages, page, Hkv, D);
  for (float& x : pool_k) x = NAN;  // unwritten memory may hold anything
  for (float& x : pool_v) x = NAN;
  std::vector<int> table(B * 10);
  int next = pages - 1;
  for (int b = 0; b < B; ++b)
    for (int p = 0; p < lengths[std::size_t(b)]; ++p) {
      int& at = table[std::size_t(10 * b + p / page)];
      if (p % page == 0) at = next, next -= 2;
      std::memcpy(&pool_k(at, p % page, 0, 0), &k(b, p, 0, 0), row * sizeof(float));
      std::memcpy(&pool_v(at, p % page, 0, 0), &v(b, p, 0, 0), row * sizeof(float));
    }
  const mha::PagedKv<float> paged{pool_k.view(), pool_v.view(), table, lengths};
  check("pages in any order = contiguous rows, bit for bit", same(mha::attention(q, paged, mha::Causal{}), y));

  // A ring keeps the first 4 positions and the latest 64: memory of a fixed size, for a mask that sees no more.
  constexpr int first = 4, window = 64;
  mha::Tensor<float, 4> ring_k(B, first + window, Hkv, D), ring_v(B, first + window, Hkv, D);
  for (int b = 0; b < B; ++b)
    for (int p = 0; p < lengths[std::size_t(b)]; ++p) {
      const int at = p < first ? p : first + (p - first) % window;  // over what was there
      std::memcpy(&ring_k(b, at, 0, 0), &k(b, p, 0, 0), row * sizeof(float));
      std::memcpy(&ring_v(b, at, 0, 0), &v(b, p, 0, 0), row * sizeof(float));
    }
  const mha::RingKv<float> ring{ring_k.view(), ring_v.view(), lengths, first};
  const auto mask = mha::Causal{} && (mha::SlidingWindow{.left = window - 1} || mha::FirstKeys{.count = first});
  check("a ring = all rows under the same window", same(mha::attention(q, ring, mask), mha::attention(q, rows, mask)));
  check("what it dropped is hidden without a mask too", same(mha::attention(q, ring), mha::attention(q, rows, mask)));

  Rows own;
  for (int b = 0; b < B; ++b)
    for (int p = 0; p < lengths[std::size_t(b)]; ++p)
      for (const auto* of : {&k, &v}) {
        const float* const from = &(*of)(b, p, 0, 0);
        own.sequence[b].insert(own.sequence[b].end(), from, from + row);
      }
  check("a structure of your own", same(mha::attention(q, own, mha::Causal{}), y));
  return failures == 0 ? 0 : 1;
}
