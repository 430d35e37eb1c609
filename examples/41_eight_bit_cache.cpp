// SPDX-License-Identifier: Apache-2.0
// 41: keys and values in 8 bits
//
// You learn   to store a cache in a little more than a quarter of float's memory, what that changes, and to keep such
//             rows in memory of your own
// The maths   a head's key, and its value, is n integers and one scale: s = max |x| / 127, x ≈ s · round(x / s), so
//             that no number changes by more than max |x| / 254
// Symbols     E = 256 model width, 4 query heads share 2 key/value heads of D = 64; L = 48 tokens, P of them a prompt
// Output      lines that end in "yes", what the caches take, and how far the results are apart
// Next        42_weights_in_few_bits.cpp
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <mha/mha.hpp>

constexpr int E = 256, D = 64, P = 40, L = 48;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

int main() {
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>> layer(
      {.d_model = E, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<float, 2> x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3f * float(i * E + e));
  const mha::Tensor<float, 2> whole = layer(x);  // in float, every row from scratch

  // One type is all that changes. Rows are rounded when they are stored, and widened inside the kernels.
  auto cache = mha::make_cache<mha::scaled_int8>(layer, mha::Contiguous{.length = L});
  cache.add();
  mha::Tensor<float, 2> y(L, E);
  mha::Workspace workspace;
  layer.prefill(mha::view(x.data(), P, E), cache, mha::into(mha::view(y.data(), P, E)), workspace);
  for (int i = P; i < L; ++i)
    layer.step(mha::view(&x(i, 0), 1, E), cache, mha::into(mha::view(&y(i, 0), 1, E)), workspace);
  float error = 0, largest = 0;
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) {
      error = std::max(error, std::abs(y(i, e) - whole(i, e)));
      largest = std::max(largest, std::abs(whole(i, e)));
    }
  check("results are within 2 % of the largest", error < 0.02f * largest);
  const auto of_float = mha::make_cache(layer, mha::Contiguous{.length = L});
  check("a row of 64 numbers takes 68 bytes", cache.position_bytes() == 2 * 2 * (D + 4));

  // Rows of your own: the scale is in the four bytes before the first number, which is where a view begins.
  using mha::scaled_int8;
  constexpr int lead = mha::row_lead<scaled_int8>, row = mha::row_elements<scaled_int8>(D);  // 4 and 68
  mha::Tensor<float, 4> q(1, 1, 2, D), k(1, L, 1, D), v(1, L, 1, D);
  for (int d = 0; d < D; ++d) q(0, 0, 0, d) = std::cos(0.2f * float(d)), q(0, 0, 1, d) = std::sin(0.7f * float(d));
  for (int i = 0; i < L; ++i)
    for (int d = 0; d < D; ++d) {
      k(0, i, 0, d) = std::sin(0.4f * float(i * D + d));
      v(0, i, 0, d) = std::cos(0.9f * float(i + d));
    }
  std::vector<scaled_int8> keys(L * row), values(L * row);
  for (int i = 0; i < L; ++i) {
    mha::quantize_row(&k(0, i, 0, 0), D, keys.data() + i * row + lead);
    mha::quantize_row(&v(0, i, 0, 0), D, values.data() + i * row + lead);
  }
  const auto view = [](const std::vector<scaled_int8>& rows) {
    return mha::TensorView<const scaled_int8, 4>{rows.data() + lead, {1, L, 1, D}, {L * row, row, row, 1}};
  };
  const auto rounded = mha::attention(q, mha::ContiguousKv{view(keys), view(values)}, mha::Causal{});

  // The same numbers in float have the same bits.
  for (int i = 0; i < L; ++i) {
    mha::read_row(keys.data() + i * row + lead, D, &k(0, i, 0, 0));
    mha::read_row(values.data() + i * row + lead, D, &v(0, i, 0, 0));
  }
  const auto in_float = mha::attention(q, k, v, mha::Causal{});
  check("attention has the bits that the rounded numbers give in float",
        std::equal(rounded.begin(), rounded.end(), in_float.begin()));

  std::printf("\n%d positions take %zu bytes, %zu in float; results are off by at most %.4f, the largest is %.4f\n", L,
              cache.bytes(), of_float.bytes(), double(error), double(largest));
  return failures == 0 ? 0 : 1;
}
