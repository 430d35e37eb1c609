// SPDX-License-Identifier: Apache-2.0
// 14: pitfalls of layout and structure
//
// You learn   three classic mistakes that raise no error and give plausible numbers, and the test that finds each:
//             memory read in the wrong order, one projection for all heads, a causal mask that is off by one
// The maths   (B, H, L, D): element at ((b·H + h)·L + l)·D + d;  (B, L, H, D): at ((b·L + l)·H + h)·D + d
//             equal W_Q, W_K, W_V for all heads: equal heads, Y = head · (Σ_h W_O,h), which one head could do
// Symbols     L = 16 tokens of E = 64, H = 8 heads of D = 8; Q, K, V (1, L, H, D)  X, Y (L, E)
// Output      one line for each mistake, the last of which is
//               causal, off by one: token 10 changed, 1 of the rows 0-9 moves, 0 with Causal, 10 without a mask
// Next        15_bf16_tiles.cpp
#include <cmath>
#include <cstdio>
#include <cstring>

#include <mha/mha.hpp>

constexpr int L = 16, H = 8, D = 8, E = H * D;
using Rows = mha::Tensor<float, 2>;

int failures = 0;
void expect(const char* claim, bool holds) {
  if (!holds) std::printf("  NOT SO: %s\n", claim);
  failures += !holds;
}

// The mean difference of count numbers; a NaN makes it NaN.
double apart(const float* a, const float* b, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += std::fabs(double(a[i] - b[i])) / count;
  return sum;
}

void wrong_order() {
  // Q, K and V as PyTorch's scaled_dot_product_attention holds them: one head after the other.
  static float q[H * L * D], k[H * L * D], v[H * L * D];
  for (int i = 0; i < H * L * D; ++i)
    q[i] = 2 * std::sin(0.7f * float(i)), k[i] = 2 * std::cos(1.3f * float(i)), v[i] = std::sin(2.1f * float(i));
  const auto read = [](const float* p) { return mha::view_bhld(p, 1, H, L, D); };     // (B, L, H, D)
  const auto misread = [](const float* p) { return mha::view_blhd(p, 1, L, H, D); };  // as many numbers: no error
  const auto right = mha::attention(read(q), read(k), read(v));
  const auto wrong = mha::attention(misread(q), misread(k), misread(v));

  // One head by its loop, straight from the memory: head 3, token 5.
  double weight[L], sum = 0, expected = 0;
  for (int j = 0; j < L; ++j) {
    double s = 0;
    for (int d = 0; d < D; ++d) s += double(q[(3 * L + 5) * D + d]) * double(k[(3 * L + j) * D + d]);
    sum += weight[j] = std::exp(s / std::sqrt(double(D)));
  }
  for (int j = 0; j < L; ++j) expected += weight[j] / sum * double(v[(3 * L + j) * D]);
  std::printf("(B, H, L, D) read as (B, L, H, D): head 3, token 5: %.6f, read rightly %.6f, by hand %.6f\n",
              double(wrong(0, 5, 3, 0)), double(right(0, 5, 3, 0)), expected);
  expect("view_bhld reads it rightly, view_blhd does not", std::fabs(double(right(0, 5, 3, 0)) - expected) < 1e-6 &&
                                                               std::fabs(double(wrong(0, 5, 3, 0)) - expected) > 1e-2);
}

void one_projection(const Rows& x) {
  mha::MultiHeadAttention<float> right({.d_model = E, .num_heads = H});
  right.initialize(mha::XavierUniform{.seed = 14, .gain = 2});
  auto shared = right;
  shared.update([](auto& p) {
    for (auto* w : {&p.query, &p.key, &p.value})
      for (int h = 1; h < H; ++h)
        for (int e = 0; e < E; ++e)
          for (int d = 0; d < D; ++d) w->heads(h, e, d) = w->heads(0, e, d);
  });

  // One head does all of it: the row blocks of W_O add up.
  mha::MultiHeadAttention<float> one({.d_model = E, .num_heads = 1, .head_dim = D});
  const auto from = shared.parameters();
  one.update([&](auto& p) {
    for (int e = 0; e < E; ++e)
      for (int d = 0; d < D; ++d) {
        p.query.heads(0, e, d) = from.query.heads(0, e, d);
        p.key.heads(0, e, d) = from.key.heads(0, e, d);
        p.value.heads(0, e, d) = from.value.heads(0, e, d);
        for (int h = 0; h < H; ++h) p.output.weight(d, e) += from.output.weight(h * D + d, e);
      }
  });
  const auto copies = shared.attention_weights(x), heads = right.attention_weights(x);  // (1, H, L, L)
  const double same = apart(&copies(0, 0, 0, 0), &copies(0, 5, 0, 0), L * L);
  const double other = apart(&heads(0, 0, 0, 0), &heads(0, 5, 0, 0), L * L);
  std::printf("one W for all heads: heads 0 and 5 differ by %.3f, rightly %.3f; %lld parameters do what %lld can\n",
              same, other, (long long)shared.parameter_count(), (long long)one.parameter_count());
  const Rows y = right(x), y_shared = shared(x), y_one = one(x);
  expect("equal projections make equal heads, which one replaces",
         same == 0 && apart(y_shared.data(), y_one.data(), L * E) < 1e-6);
  expect("heads of their own differ", other > 1e-2 && apart(y.data(), y_one.data(), L * E) > 1e-2);
}

// The test every causal model needs: change token 10; rows 0 to 9 must keep every bit. Counts those that do not.
template <class M> int moved_rows(const Rows& x, const M& mask) {
  auto layer = mha::make_attention<float>({.d_model = E, .num_heads = H}, mask);
  layer.initialize(mha::XavierUniform{.seed = 14});
  Rows changed = x;
  for (int e = 0; e < E; ++e) changed(10, e) += 1;
  const Rows y = layer(x), y_changed = layer(changed);
  int moved = 0;
  for (int i = 0; i < 10; ++i) moved += std::memcmp(&y(i, 0), &y_changed(i, 0), E * sizeof(float)) != 0;
  return moved;
}

int main() {
  Rows x(L, E);
  for (int i = 0; i < L * E; ++i) x.data()[i] = std::sin(0.37f * float(i) * float(i % 7 + 1));
  wrong_order();
  one_projection(x);

  const int leaked = moved_rows(x, mha::mask([](int, int, int q, int k) { return k <= q + 1; }));
  const int causal = moved_rows(x, mha::Causal{}), full = moved_rows(x, mha::Full{});
  std::printf("causal, off by one: token 10 changed, %d of the rows 0-9 moves, %d with Causal, %d without a mask\n",
              leaked, causal, full);
  expect("off by one leaks into row 9, Causal does not", leaked == 1 && causal == 0 && full == 10);
  return failures == 0 ? 0 : 1;
}
