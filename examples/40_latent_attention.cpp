// SPDX-License-Identifier: Apache-2.0
// 40: latent attention, from one copy of its rows
//
// You learn   DeepSeek's multi-head latent attention: a cache of one short row for each token, from which the keys and
//             values of all heads are made, and how to attend without making them
// The maths   a token's row is [c | r]: the latent c = x W_c, and r = x W_r turned to its position. Head h has
//             k_h = [c W_UK | r] and v_h = c W_UV. Since q · (c W_UK) = (q W_UKᵀ) · c and Σ p_j (c_j W_UV) =
//             (Σ p_j c_j) W_UV, all heads share the key [c | r] and the value c. Left out: the RmsNorm of c, which
//             DeepSeek's models apply before they cache it, the latent of q in the larger models, and W_O
// Symbols     E = 48 model width, H = 4 heads; in q and k N = 16 numbers that are not turned and R = 8 that are, V = 16
//             of a value, C = 32 latent; prompt of P = 21 tokens, L = 40 in all
// Output      lines that end in "yes", and what a position takes
// Next        41_eight_bit_cache.cpp, keys and values in 8 bits
#include <algorithm>
#include <cmath>
#include <cstdio>

#include <mha/block.hpp>
#include <mha/mha.hpp>

constexpr int E = 48, H = 4, N = 16, R = 8, V = 16, C = 32, P = 21, L = 40;
using Linear = mha::Linear<float>;
using Rows = mha::TensorView<const float, 2>;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

// Columns [begin, begin + count) of n rows, and of the heads of n rows.
template <class T> mha::TensorView<T, 2> columns(T* rows, int n, int width, int begin, int count) {
  return {rows + begin, {n, count}, {width, 1}};
}
template <class T> mha::TensorView<T, 4> heads(T* rows, int n, int h, int size, int begin, int count) {
  return {rows + begin, {1, n, h, count}, {n * h * size, h * size, size, 1}};
}

Linear query({.inputs = E, .outputs = H * (N + R), .bias = false});  // each head's [N | R]
Linear down({.inputs = E, .outputs = C + R, .bias = false});         // [W_c | W_r]
Linear up({.inputs = C, .outputs = H * (N + V), .bias = false});     // each head's [W_UK | W_UV]
const mha::Rotary<mha::Interleaved> rotary;
struct {
  Linear key = Linear({.inputs = N, .outputs = C, .bias = false});
  Linear value = Linear({.inputs = C, .outputs = V, .bias = false});
} absorbed[H];  // each head's W_UKᵀ and W_UV

mha::Tensor<float, 2> queries_of(const Rows& x, int position) {
  mha::Tensor<float, 2> q = query(x);
  rotary.apply(heads(q.data(), x.extent[0], H, N + R, N, R), mha::Origins(position));
  return q;
}
mha::Tensor<float, 2> latent_rows_of(const Rows& x, int position) {
  mha::Tensor<float, 2> rows = down(x);
  rotary.apply(heads(rows.data(), x.extent[0], 1, C + R, C, R), mha::Origins(position));
  return rows;
}

// As in training: keys and values of every head, the turned part of the keys copied to each.
mha::Tensor<float, 4> by_keys_and_values(const Rows& x) {
  const auto q = queries_of(x, 0), rows = latent_rows_of(x, 0);
  const mha::Tensor<float, 2> kv = up(columns(rows.data(), L, C + R, 0, C));  // (L, H · (N + V))
  mha::Tensor<float, 4> k(1, L, H, N + R);
  for (int j = 0; j < L; ++j)
    for (int h = 0; h < H; ++h) {
      std::copy_n(&kv(j, h * (N + V)), N, &k(0, j, h, 0));
      std::copy_n(&rows(j, C), R, &k(0, j, h, N));
    }
  return mha::attention(heads(q.data(), L, H, N + R, 0, N + R), k, heads(kv.data(), L, H, N + V, N, V), mha::Causal{});
}

int main() {
  query.initialize(mha::XavierUniform{.seed = 1});
  down.initialize(mha::XavierUniform{.seed = 2});
  up.initialize(mha::XavierUniform{.seed = 3});
  mha::Tensor<float, 2> x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3f * float(i * E + e));
  const float* const w = up.parameters().weight.data;
  for (int h = 0; h < H; ++h) {
    absorbed[h].key.borrow({.weight = mha::transposed(columns(w, C, H * (N + V), h * (N + V), N))});
    absorbed[h].value.borrow({.weight = columns(w, C, H * (N + V), h * (N + V) + N, V)});
  }
  // One head of keys, which are [c | r]; the values are c, the first C numbers of the same rows.
  mha::KvCache<mha::Paged, float> cache({.heads = 1, .dim = C + R, .value_dim = C, .values_in_keys = true},
                                        mha::Paged{.pages = 6, .length = 64, .page = 16}, {.sequences = 2});
  const auto go_on = [&](mha::SequenceId id, const Rows& tokens) {
    const int n = tokens.extent[0], position = cache.length(id);
    const auto q = queries_of(tokens, position), rows = latent_rows_of(tokens, position);
    mha::Tensor<float, 4> q_latent(1, n, H, C + R), y(1, n, H, V);
    for (int h = 0; h < H; ++h) {
      absorbed[h].key(columns(q.data(), n, H * (N + R), h * (N + R), N),
                      mha::into(columns(q_latent.data(), n, H * (C + R), h * (C + R), C)));
      for (int i = 0; i < n; ++i) std::copy_n(&q(i, h * (N + R) + N), R, &q_latent(0, i, h, C));
    }
    auto step = cache.step(id, n);
    step.append(0, mha::view(rows.data(), n, 1, C + R));
    const mha::Tensor<float, 4> o =  // (1, n, H, C); the scale is that of the heads' own keys
        mha::attention(q_latent, step.source(0), mha::Causal{}, mha::Scale{1 / std::sqrt(float(N + R))});
    step.commit();
    for (int h = 0; h < H; ++h)
      absorbed[h].value(columns(o.data(), n, H * C, h * C, C), mha::into(columns(y.data(), n, H * V, h * V, V)));
    return y;
  };
  const auto expected = by_keys_and_values(mha::view(x.data(), L, E));
  const auto is_right = [&](const mha::Tensor<float, 4>& y, int first) {
    return std::equal(y.begin(), y.end(), &expected(0, first, 0, 0),
                      [](float a, float b) { return std::abs(a - b) < 1e-5f; });
  };
  const mha::SequenceId text = cache.add();
  check("a prompt has the results of all heads' keys and values", is_right(go_on(text, mha::view(x.data(), P, E)), 0));
  const mha::SequenceId other = cache.fork(text);  // shares the pages of the prompt
  bool same = true;
  for (int i = P; i < L; ++i) same = same && is_right(go_on(text, mha::view(&x(i, 0), 1, E)), i);
  check("so have tokens one by one", same);
  check("and a fork that goes on in one step", is_right(go_on(other, mha::view(&x(P, 0), L - P, E)), P));

  std::printf("\na position takes %zu bytes; the keys and values of %d heads would take %zu\n", cache.position_bytes(),
              H, sizeof(float) * H * (N + R + V));
  return failures == 0 ? 0 : 1;
}
