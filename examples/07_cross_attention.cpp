// SPDX-License-Identifier: Apache-2.0
// 07: cross-attention
//
// You learn   words that attend to an image; keys and values of different rows; the image's keys and values computed
//             once and used by every later call
// The maths   Q = X W_Q from the words, K = M W_K and V = M W_V from the patches;  y_i = Σ_j softmax(Q Kᵀ/√D)_ij V_j
// Symbols     Lq = 5 words of E = 4 numbers (one per known word), Lk = 18 patches of 4 x 4 pixels, 3 rows of 6, which
//             are rows of E_kv = 16 numbers; one head of D = Dv = 16
//             X (Lq, E)  M (Lk, E_kv)  K, V (Lk, D)  weights (Lq, Lk)  Y (Lq, Dv), without an output matrix
// Output      the image; where each word looks, as a map of the patches from . (nothing) to @ (all), for "bars":
//               ......
//               .@....
//               ......
//             and three lines: against the loops 6e-07; where each word's patch is, by values that are places; the same
//             bits from the kept keys and values
// Next        08_positions.cpp
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include <mha/mha.hpp>

constexpr int Words = 4, Rows = 3, Columns = 6, Patches = Rows * Columns, Side = 4, Pixels = Side * Side;
const char* const vocabulary[Words] = {"bands", "bars", "checkers", "horizon"};

// What a word means: +1 or -1 at every pixel. The four are orthogonal.
float meaning(int word, int pixel) {
  const int r = pixel / Side, c = pixel % Side;
  const bool bright[Words] = {r % 2 == 0, c % 2 == 0, (r + c) % 2 == 0, r < Side / 2};
  return bright[word] ? 1.f : -1.f;
}

void draw(const char* shades, int count, float from, float to, float x) {
  const float place = (x - from) / (to - from) * float(count);
  std::putchar(shades[place < 0 ? 0 : place >= float(count) ? count - 1 : int(place)]);
}

int main() {
  // The image: faint noise, and one patch for each word.
  const int at[Words] = {2, 7, 16, 11};
  mha::Tensor<float, 2> image(Patches, Pixels);  // (Lk, E_kv)
  std::mt19937 bits(7);
  for (float& x : image) x = 0.8f * (float(bits()) * 0x1p-32f - 0.5f);
  for (int w = 0; w < Words; ++w)
    for (int p = 0; p < Pixels; ++p) image(at[w], p) += meaning(w, p);

  std::printf("the image\n");
  for (int r = 0; r < Rows * Side; ++r, std::putchar('\n'))
    for (int c = 0; c < Columns * Side; ++c)
      draw(" .:+#", 5, -1.3f, 1.3f, image(r / Side * Columns + c / Side, r % Side * Side + c % Side));

  // Words are 4 wide, patches 16: kv_model tells the layer. NoOutput: y is the mixed values themselves, (Lq, Dv).
  mha::MultiHeadAttention<float, mha::Cpu, mha::NoOutput> cross(
      {.d_model = Words, .num_heads = 1, .head_dim = Pixels, .kv_model = Pixels});
  const auto look = [](auto& p) {  // training would find weights like these
    for (int i = 0; i < Pixels; ++i) {
      for (int w = 0; w < Words; ++w) p.query.heads(0, w, i) = 2 * meaning(w, i);
      p.key.heads(0, i, i) = 1;
    }
  };
  cross.update([&](auto& p) {
    look(p);
    for (int i = 0; i < Pixels; ++i) p.value.heads(0, i, i) = 1;
  });

  constexpr int Lq = 5;
  const int sentence[Lq] = {2, 0, 3, 1, 2};
  mha::Tensor<float, 2> words(Lq, Words);  // (Lq, E)
  for (int i = 0; i < Lq; ++i) words(i, sentence[i]) = 1;

  const mha::KeyValues<float> memory = cross.project_memory(image);  // keys and values (1, Lk, 1, D)
  const auto y = cross(words, memory);                               // (Lq, Dv)
  const auto weights = cross.attention_weights(words, memory);       // (B, Hq, Lq, Lk), here (1, 1, 5, 18)

  bool looks_right = true, sees_right = true;
  double worst = 0;
  for (int i = 0; i < Lq; ++i) {
    // The loop: W_K is the identity, so a key is its patch.
    double weight[Patches], sum = 0, seen = 0, overlap = 0;
    for (int j = 0; j < Patches; ++j) {
      double logit = 0;
      for (int d = 0; d < Pixels; ++d) logit += 2.0 * double(meaning(sentence[i], d)) * double(image(j, d));
      sum += weight[j] = std::exp(logit / std::sqrt(double(Pixels)));
    }
    const auto compare = [&](double expected, float got) {  // a NaN counts as infinitely far
      const double difference = std::fabs(expected - double(got));
      worst = std::isnan(difference) ? INFINITY : std::fmax(worst, difference);
    };
    for (int j = 0; j < Patches; ++j) compare(weight[j] / sum, weights(0, 0, i, j));
    for (int d = 0; d < Pixels; ++d) {
      seen = 0;
      for (int j = 0; j < Patches; ++j) seen += weight[j] / sum * double(image(j, d));
      compare(seen, y(i, d));
      overlap += double(y(i, d)) * double(meaning(sentence[i], d)) / Pixels;
    }
    looks_right = looks_right && weights(0, 0, i, at[sentence[i]]) > 0.9f;
    sees_right = sees_right && overlap > 0.8;
  }

  std::printf("\nwhere each word looks\n");
  for (int i = 0; i < Lq; ++i) std::printf("%-10s", vocabulary[sentence[i]]);
  std::putchar('\n');
  for (int r = 0; r < Rows; ++r, std::putchar('\n'))
    for (int i = 0; i < Lq; ++i, std::printf("    "))
      for (int c = 0; c < Columns; ++c) draw(".:+#@", 5, 0, 1, weights(0, 0, i, r * Columns + c));
  std::printf("\nevery word gives its patch over 90 %%: %s, and sees its pattern: %s; against the loops %.0e\n",
              looks_right ? "yes" : "NO", sees_right ? "yes" : "NO", worst);

  // Values of other rows than the keys: not what a patch shows, but where it is.
  mha::Tensor<float, 2> places(Patches, 2);  // (Lk, 2), row and column
  for (int j = 0; j < Patches; ++j) places(j, 0) = float(j / Columns), places(j, 1) = float(j % Columns);
  mha::MultiHeadAttention<float, mha::Cpu, mha::NoOutput> where(
      {.d_model = Words, .num_heads = 1, .head_dim = Pixels, .value_dim = 2, .kv_model = Pixels, .value_model = 2});
  where.update([&](auto& p) {
    look(p);
    p.value.heads(0, 0, 0) = p.value.heads(0, 1, 1) = 1;
  });
  const auto found = where(words, image, places);  // (Lq, 2)
  bool finds_right = true;
  std::printf("found at");
  for (int i = 0; i < Lq; ++i) {
    const int row = int(std::lround(found(i, 0))), column = int(std::lround(found(i, 1)));
    std::printf(" (%d, %d)", row, column);
    finds_right = finds_right && row * Columns + column == at[sentence[i]];
  }
  std::printf(": %s\n", finds_right ? "right" : "WRONG");

  // A decoder reads the same memory at every step. Overwriting the image shows that it is not read again.
  const auto from_image = cross(words, image);
  for (float& x : image) x = std::numeric_limits<float>::quiet_NaN();
  const auto later = cross(words, memory);
  bool same = true;
  for (std::size_t i = 0; i < y.size(); ++i)
    same = same && later.data()[i] == y.data()[i] && from_image.data()[i] == y.data()[i];
  const mha::Cost all = mha::cost<mha::MultiHead>(cross.config(), 1, Lq, Patches);
  const mha::Cost words_only = mha::cost<mha::MultiHead>(cross.config(), 1, Lq, 0);
  std::printf("the same from the kept keys and values: %s; a call projects %.0f FLOP instead of %.0f\n",
              same ? "yes" : "NO", words_only.projection.flop, all.projection.flop);
  return looks_right && sees_right && finds_right && same && worst < 1e-5 ? 0 : 1;
}
