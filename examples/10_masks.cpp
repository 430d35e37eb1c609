// SPDX-License-Identifier: Apache-2.0
// 10: a tour of the masks (04_write_a_mask.cpp shows how to write one)
//
// You learn   the masks of the library as pictures, how they compose, and that each costs only what it shows
// The maths   query q sees key k where mask(b, h, q, k) is true; work = 2·Hq·(visible pairs)·(D + Dv) FLOP
// Symbols     L = 16 tokens for the pictures, 4096 for the cost; row q of a picture shows its keys, # = visible
// Output      twelve pictures; then what 4096 tokens cost under seven masks, such as
//               SlidingWindow{255}: 256 keys         1015936 pairs    6.1 %    2.081 GFLOP
//               pictures as attended: yes, costs as counted: yes
// Next        11_ragged_batches.cpp
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <mha/mha.hpp>

constexpr int L = 16, D = 8;

std::vector<std::string> canvas(L + 2);
void flush() {
  for (std::string& line : canvas)
    std::printf("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str()), line.clear();
}

int failures = 0;

// Draws a mask and compares it with `visible`, its definition for one sequence: by pairs, in attention and in cost().
template <class M, class F> void show(const char* name, const M& mask, const F& visible) {
  const auto ready = mha::prepared(mask, mha::CallShape{1, 1, L, L, 0});  // what a call does first
  mha::Tensor<bool, 2> table(L, L);                                       // (Lq, Lk)
  double pairs = 0;
  bool right = true;
  for (int q = 0; q < L; ++q)
    for (int k = 0; k < L; ++k) {
      pairs += table(q, k) = visible(q, k);
      right = right && ready(0, 0, q, k) == visible(q, k);
    }

  mha::Tensor<float, 2> x(L, D);  // q = k = v, one head
  for (int i = 0; i < L * D; ++i) x.data()[i] = std::sin(0.7f * float(i));
  const auto by_mask = mha::attention(x, x, x, mask), by_table = mha::attention(x, x, x, mha::Dense(table));
  right = right && mha::cost({.d_model = D, .num_heads = 1}, 1, L, L, mask).visible_pairs == pairs;
  for (int i = 0; i < L * D; ++i) right = right && std::fabs(by_mask.data()[i] - by_table.data()[i]) < 1e-6f;
  failures += !right;

  char text[32];
  std::snprintf(text, sizeof text, "%-26s", name);
  canvas[0] += text;
  for (int q = 0; q < L; ++q) {
    for (int k = 0; k < L; ++k) canvas[std::size_t(q) + 1] += table(q, k) ? '#' : '.';
    canvas[std::size_t(q) + 1] += std::string(10, ' ');
  }
  std::snprintf(text, sizeof text, "%3.0f pairs%-17s", pairs, right ? "" : ", WRONG");
  canvas[L + 1] += text;
}

// A layer of E = 512 with 8 heads on 4096 tokens under a mask: the share of all pairs, and the work of its attention.
template <class M> double price(const char* name, const M& mask) {
  constexpr int length = 4096;
  const mha::Cost cost = mha::cost({.d_model = 512, .num_heads = 8}, 1, length, length, mask);
  std::printf("%-34s %9.0f pairs %6.1f %% %8.3f GFLOP\n", name, cost.visible_pairs,
              100 * cost.visible_pairs / (double(length) * length), 1e-9 * cost.attention_flop());
  return cost.attention_flop();
}

int main() {
  show("Full", mha::Full{}, [](int, int) { return true; });
  show("Causal", mha::Causal{}, [](int q, int k) { return k <= q; });
  show("SlidingWindow{3}", mha::SlidingWindow{.left = 3}, [](int q, int k) { return k >= q - 3 && k <= q; });
  show("SlidingWindow{2, 1}", mha::SlidingWindow{.left = 2, .right = 1},
       [](int q, int k) { return k >= q - 2 && k <= q + 1; });
  flush();
  // Data of one call is borrowed from a named container: a length per sequence, an id per position.
  const std::vector<int> lengths{6}, ids{0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2};
  show("Padding: 6 real keys", mha::Padding{lengths}, [](int, int k) { return k < 6; });
  show("Prefix: the first 6", mha::Prefix{lengths}, [](int q, int k) { return k < 6 || k <= q; });
  const auto same = [&](int q, int k) { return ids[std::size_t(q)] == ids[std::size_t(k)]; };
  show("Document: 5, 3 and 8", mha::Document{ids}, same);
  show("Document && Causal", mha::Document{ids} && mha::Causal{}, [&](int q, int k) { return same(q, k) && k <= q; });
  flush();
  // A map of 4 x 4 blocks of 4 positions, owned by the mask; the same map in your own memory is a BlockSparseView.
  const std::vector<std::uint8_t> map{1, 0, 0, 0, /**/ 1, 1, 0, 0, /**/ 1, 0, 1, 0, /**/ 1, 0, 1, 1};
  const mha::BlockSparse blocks({.block = 4, .query_blocks = 4, .key_blocks = 4}, map);
  const auto set = [&](int q, int k) { return map[std::size_t(q / 4 * 4 + k / 4)] != 0; };
  show("BlockSparse", blocks, set);
  show("BlockSparse && Causal", blocks && mha::Causal{}, [&](int q, int k) { return set(q, k) && k <= q; });
  // Long-document attention: a window on both sides, and four tokens that see all and are seen by all.
  const auto global = mha::mask([](int, int, int q, int k) { return q < 4 || k < 4; });
  show("SlidingWindow || global", mha::SlidingWindow{.left = 2, .right = 2} || global,
       [](int q, int k) { return (k >= q - 2 && k <= q + 2) || q < 4 || k < 4; });
  show("Causal && !Window{5}", mha::Causal{} && !mha::SlidingWindow{.left = 5}, [](int q, int k) { return k < q - 5; });
  flush();

  std::printf("\n4096 tokens, 8 heads of 64\n");
  const double full = price("Full", mha::Full{});
  const double causal = price("Causal", mha::Causal{});
  const double window = price("SlidingWindow{255}: 256 keys", mha::SlidingWindow{.left = 255});
  const std::vector<int> half{2048};
  const double padded = price("Padding: 2048 real keys", mha::Padding{half});
  std::vector<int> eighths(4096);
  for (int i = 0; i < 4096; ++i) eighths[std::size_t(i)] = i / 512;
  const double documents = price("Document: 8 of 512", mha::Document{eighths});
  const double causal_documents = price("Document: 8 of 512, && Causal", mha::Document{eighths} && mha::Causal{});
  std::vector<std::uint8_t> diagonal(64 * 64);  // 64 blocks of 64: the diagonal and the first column
  for (std::size_t i = 0; i < 64; ++i) diagonal[i * 64 + i] = diagonal[i * 64] = 1;
  const double sparse = price("BlockSparse: diagonal, 1st column",
                              mha::BlockSparse({.block = 64, .query_blocks = 64, .key_blocks = 64}, diagonal));

  // The same numbers by counting on paper, times 2·Hq·(D + Dv) = 2048 FLOP a pair.
  constexpr double n = 4096, pair = 2.0 * 8 * (64 + 64);
  const bool as_counted = full == pair * n * n && causal == pair * n * (n + 1) / 2 && padded == full / 2 &&
                          window == pair * (n * 256 - 255 * 256 / 2) && documents == full / 8 &&
                          causal_documents == pair * 8 * 512 * 513 / 2 && sparse == pair * 64 * 64 * (64 + 63);
  std::printf("pictures as attended: %s, costs as counted: %s\n", failures == 0 ? "yes" : "NO",
              as_counted ? "yes" : "NO");
  return failures == 0 && as_counted ? 0 : 1;
}
