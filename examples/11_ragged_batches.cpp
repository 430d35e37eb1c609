// SPDX-License-Identifier: Apache-2.0
// 11: ragged batches
//
// You learn   sequences of different lengths in one call without padding: rows and offsets; what padding costs
// The maths   sequence b is rows offsets[b] … offsets[b + 1] − 1 and attends within itself; its first row is position 0
// Symbols     B = 5 sequences of 7, 96, 1, 0 and 33 tokens, ΣL = 137 rows of E = 64, 4 heads of D = 16
//             X, Y (ΣL, E)  offsets (B + 1): 0 7 103 104 104 137  padded X (B, 96, E)  Q (ΣLq, H, D)  K, V (ΣLk, H, D)
// Output      six lines that end in "yes"; the largest differences, here 0e+00; and
//               137 rows instead of 480, 4.97 MFLOP instead of 16.48
// Next        12_more_heads_cost_the_same.cpp
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include <mha/mha.hpp>

constexpr int B = 5, E = 64, H = 4, D = E / H;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

// The largest difference of count numbers; a NaN counts as infinitely far.
double distance(const float* a, const float* b, int count) {
  double worst = 0;
  for (int i = 0; i < count; ++i) {
    const double difference = std::fabs(double(a[i]) - double(b[i]));
    worst = std::isnan(difference) ? INFINITY : std::fmax(worst, difference);
  }
  return worst;
}

int main() {
  const std::vector<int> lengths{7, 96, 1, 0, 33};
  std::vector<int> offsets{0};
  for (const int length : lengths) offsets.push_back(offsets.back() + length);
  const int total = offsets.back(), longest = 96;

  // A token sees itself and the past positions 0, 3, 6 …: this shows that every sequence counts from 0.
  const auto mask = mha::Causal{} && mha::mask([](int, int, int q, int k) { return k % 3 == 0 || k == q; });
  auto layer = mha::make_attention<float>({.d_model = E, .num_heads = H}, mask);
  layer.initialize(mha::XavierUniform{.seed = 11});
  mha::Tensor<float, 2> x(total, E);  // (ΣL, E)
  for (int i = 0; i < total * E; ++i) x.data()[i] = std::sin(0.37f * float(i) * float(i % 7 + 1));

  const auto y = layer(x, mha::Ragged{offsets});  // (ΣL, E)

  // The loop that the call replaces: one call per sequence.
  double alone = 0;
  for (std::size_t b = 0; b < B; ++b) {
    if (lengths[b] == 0) continue;
    const auto rows = mha::view(&x(offsets[b], 0), lengths[b], E);  // (L, E)
    const auto single = layer(rows);
    alone = std::fmax(alone, distance(single.data(), &y(offsets[b], 0), lengths[b] * E));
  }
  check("ragged = each sequence alone", alone < 1e-6);

  // The usual way: copy into a rectangle, pad the rest, mask it.
  mha::Tensor<float, 3> padded(B, longest, E);  // (B, L, E)
  for (std::size_t b = 0; b < B; ++b)
    if (lengths[b] > 0)
      std::memcpy(&padded(int(b), 0, 0), &x(offsets[b], 0), std::size_t(lengths[b] * E) * sizeof(float));
  const auto y_padded = layer(padded, mha::Padding{lengths});
  double against_padded = 0;
  for (std::size_t b = 0; b < B; ++b)
    if (lengths[b] > 0)
      against_padded = std::fmax(against_padded, distance(&y_padded(int(b), 0, 0), &y(offsets[b], 0), lengths[b] * E));
  check("ragged = padded, where there are tokens", against_padded < 1e-6);
  std::printf("largest differences: alone %.0e, padded %.0e\n", alone, against_padded);

  // Sequences do not see each other: whatever stands in sequence 1, the others keep their bits.
  mha::Tensor<float, 2> changed = x;
  for (int i = offsets[1]; i < offsets[2]; ++i) changed(i, 0) = NAN;
  const auto y_changed = layer(changed, mha::Ragged{offsets});
  check("NaN in sequence 1 stays in sequence 1",
        std::memcmp(y_changed.data(), y.data(), std::size_t(offsets[1] * E) * sizeof(float)) == 0 &&
            std::memcmp(&y_changed(offsets[2], 0), &y(offsets[2], 0),
                        std::size_t((total - offsets[2]) * E) * sizeof(float)) == 0 &&
            std::isnan(y_changed(offsets[1], 0)));

  // Separate offsets for queries and keys, without a layer: b's queries attend to b's keys.
  const std::vector<int> query_offsets{0, 2, 3, 8}, key_offsets{0, 4, 4, 13};  // sequence 1 has no keys
  mha::Tensor<float, 3> q(8, H, D), k(13, H, D), v(13, H, D);                  // (ΣL, H, D)
  for (int i = 0; i < 8 * E; ++i) q.data()[i] = std::sin(1.3f * float(i));
  for (int i = 0; i < 13 * E; ++i) k.data()[i] = std::cos(0.7f * float(i)), v.data()[i] = std::sin(2.1f * float(i));
  const auto out = mha::attention(q, k, v, mha::Ragged{query_offsets, key_offsets});  // (ΣLq, H, D)
  const auto part = [](auto& t, int from, int to) { return mha::view(&t(from, 0, 0), 1, to - from, H, D); };
  const auto first = mha::attention(part(q, 0, 2), part(k, 0, 4), part(v, 0, 4));
  const auto last = mha::attention(part(q, 3, 8), part(k, 4, 13), part(v, 4, 13));
  const std::vector<float> zeros(std::size_t{E});
  check("attention() with offsets for queries and keys",
        distance(first.data(), &out(0, 0, 0), 2 * E) < 1e-6 && distance(last.data(), &out(3, 0, 0), 5 * E) < 1e-6);
  check("a query that meets no key gives 0", distance(zeros.data(), &out(2, 0, 0), E) == 0);

  // What the rectangle costs. Padding skips the hidden keys, but the padded queries and rows are computed all the same.
  double packed_flop = 0;
  for (const int length : lengths) packed_flop += mha::cost(layer.config(), 1, length, length, mask).total_flop();
  const auto both = mha::Padding{lengths} && mask;
  const double padded_flop = mha::cost(layer.config(), B, longest, longest, both).total_flop();
  std::printf("%d rows instead of %d, %.2f MFLOP instead of %.2f\n", total, B * longest, packed_flop * 1e-6,
              padded_flop * 1e-6);
  check("padding costs more than three times as much", padded_flop > 3 * packed_flop);
  return failures == 0 ? 0 : 1;
}
