// SPDX-License-Identifier: Apache-2.0
// 03: your own memory
//
// You learn   attention over existing memory of any layout, without a copy; results, scratch memory and weights in your
//             own memory; attention computed in two parts and merged
// The maths   element (b, l, h, d) is at data[b·s0 + l·s1 + h·s2 + d·s3]: a layout is four strides. Parts over disjoint
//             keys, with lseᵢ = log Σ exp(logits): out = out₁·exp(lse₁ − lse) + out₂·exp(lse₂ − lse)
// Symbols     B = 2 sequences, L = 5 tokens, H = 4 heads, D = 8; Q, K, V, out (B, L, H, D)  lse (B, H, L)
// Output      six lines that end in "yes"
// Next        04_write_a_mask.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>
#include <memory>
#include <vector>

#include <mha/mha.hpp>

constexpr int B = 2, L = 5, H = 4, D = 8, E = H * D;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

// The largest difference; a NaN counts as infinitely far.
template <class X, class Y> float distance(const X& a, const Y& b) {
  float worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a.data()[i] - b.data()[i]);
    worst = std::isnan(difference) ? INFINITY : std::fmax(worst, difference);
  }
  return worst;
}

int main() {
  static float q[B * L * E], k[B * L * E], v[B * L * E];
  for (int i = 0; i < B * L * E; ++i) {
    q[i] = std::sin(0.7f * float(i)), k[i] = std::cos(1.3f * float(i)), v[i] = std::sin(2.1f * float(i));
  }

  // Heads side by side in every row, (B, L, H, D): what a projection writes.
  const auto queries = mha::view_blhd(q, B, L, H, D);
  const auto keys = mha::view_blhd(k, B, L, H, D);
  const auto values = mha::view_blhd(v, B, L, H, D);
  const auto out = mha::attention(queries, keys, values, mha::Causal{});  // (B, L, H, D)

  // One head after the other, (B, H, L, D): the same axes, other strides. The loop moves what the strides describe.
  static float q2[B * L * E], out2[B * L * E];
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < H; ++h)
      for (int l = 0; l < L; ++l)
        for (int d = 0; d < D; ++d) q2[((b * H + h) * L + l) * D + d] = q[((b * L + l) * H + h) * D + d];
  const auto out_bhld = mha::view_bhld(out2, B, H, L, D);
  mha::attention_into(out_bhld, mha::view_bhld(q2, B, H, L, D), keys, values, mha::Causal{});
  bool same = true;
  for (int b = 0; b < B; ++b)
    for (int l = 0; l < L; ++l)
      for (int h = 0; h < H; ++h)
        for (int d = 0; d < D; ++d) same = same && out_bhld(b, l, h, d) == out(b, l, h, d);
  check("(B, H, L, D) memory gives the bits of (B, L, H, D)", same);

  // Keys and values interleaved in one slab, row = [K of all heads | V of all heads]. Any strides can be written out.
  static float slab[2 * B * L * E];
  for (int row = 0; row < B * L; ++row)
    for (int e = 0; e < E; ++e) slab[row * 2 * E + e] = k[row * E + e], slab[row * 2 * E + E + e] = v[row * E + e];
  const mha::TensorView<const float, 4> slab_keys{slab, {B, L, H, D}, {L * 2 * E, 2 * E, D, 1}};
  const mha::TensorView<const float, 4> slab_values{slab + E, {B, L, H, D}, {L * 2 * E, 2 * E, D, 1}};
  check("V inside K's memory", distance(mha::attention(queries, slab_keys, slab_values, mha::Causal{}), out) == 0);

  // One head of one sequence through Eigen::Map: rank 2 in, a matrix out.
  using Head = Eigen::Map<const Eigen::Matrix<float, L, D, Eigen::RowMajor>, 0, Eigen::OuterStride<E>>;
  const auto head = mha::attention(Head(&queries(1, 0, 3, 0)), Head(&keys(1, 0, 3, 0)), Head(&values(1, 0, 3, 0)),
                                   mha::Causal{});  // (L, D)
  check("head 3 of sequence 1 by Eigen::Map", head(4, 7) == out(1, 4, 3, 7) && head(0, 0) == out(1, 0, 3, 0));

  // Attention over keys 0-2 and over keys 3-4, then joined: all keys. Each part returns its log-sum-exp.
  mha::Tensor<float, 3> lse(B, H, L), other_lse(B, H, L);  // (B, H, L)
  const auto part = [](auto all, int first, int count) {
    return decltype(all){&all(0, first, 0, 0), {B, count, H, D}, {L * E, E, D, 1}};
  };
  auto joined = mha::attention(queries, part(keys, 0, 3), part(values, 0, 3), mha::LogSumExp{lse});
  const auto rest = mha::attention(queries, part(keys, 3, 2), part(values, 3, 2), mha::LogSumExp{other_lse});
  mha::merge(joined, lse, rest, other_lse);
  check("two parts joined are the whole", distance(joined, mha::attention(queries, keys, values)) < 1e-6f);

  // A layer over weights that stay where they are, stored (out, in) as PyTorch does: transposed views, no copy. The
  // layer keeps `file` alive; with a mapped checkpoint that is the mapping.
  const auto file = std::make_shared<std::vector<float>>(4 * E * E);
  for (std::size_t i = 0; i < file->size(); ++i) (*file)[i] = 0.2f * std::sin(float(i) * float(i));
  const float* const stored = file->data();
  const auto matrix = [&](int n) { return mha::transposed(mha::view(stored + n * E * E, E, E)); };  // (in, out)
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer({.d_model = E, .num_heads = H});
  layer.borrow({.query = matrix(0), .key = matrix(1), .value = matrix(2), .output = matrix(3)}, file);

  // Your result, your scratch: from the second call of a shape on nothing is allocated.
  const auto x = mha::view(q, B, L, E);  // (B, L, E)
  mha::Tensor<float, 3> y(B, L, E);
  mha::Workspace workspace;
  layer(x, mha::into(y), workspace);
  const int allocations = workspace.allocations();
  layer(x, mha::into(y), workspace);
  check("the second call allocates no scratch", workspace.allocations() == allocations);
  // Token 0 sees only itself, so its loop is short: y₀ = W_O (W_V x₀) with the matrices as stored, (out, in).
  double expected = 0;
  for (int j = 0; j < E; ++j)
    for (int e = 0; e < E; ++e) expected += double(stored[3 * E * E + j]) * stored[2 * E * E + j * E + e] * q[e];
  check("borrowed, transposed weights give W_O W_V x", std::fabs(y(0, 0, 0) - float(expected)) < 1e-4f);
  return failures == 0 ? 0 : 1;
}
