// SPDX-License-Identifier: Apache-2.0
// 42: weights in 8 bits
//
// You learn   to keep the matrices of a checkpoint in a quarter of float's memory, how far that moves results, and to
//             train an adapter in front of such weights, which stay as they are (QLoRA)
// The maths   256 inputs' weights of one output are integers with one scale: s = max |w| / 127, w ≈ s · round(w / s)
//             adapter: Y = FeedForward(X + X A B), L = ½ ‖Y − T‖²; dL/dX goes through the rounded matrices
// Symbols     E = 384 model width, H = 768 hidden width, L = 16 tokens, R = 4 the adapter's rank
//             x, y, T (L, E)  A (E, R)  B (R, E)
// Output      lines that end in "yes", what the matrices take, and how far the results are apart
// Source      Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", §3, there with 4 bits
// Next        models/, whole models
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <Eigen/Core>

#include <mha/block.hpp>
#include <mha/mha.hpp>

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stored = mha::Tensor<mha::bfloat16, 2>;
constexpr int E = 384, H = 768, L = 16, R = 4;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

// A tensor of a bfloat16 checkpoint, (out, in).
Stored stored(int out, int in, std::uint32_t seed) {
  Stored w(out, in);
  for (int i = 0; i < out; ++i)
    for (int j = 0; j < in; ++j) {
      seed = seed * 1664525u + 1013904223u;
      w(i, j) = mha::bfloat16((float(seed >> 8) / 16777216.0f - 0.5f) * 3.4f / std::sqrt(float(in)));
    }
  return w;
}

// x + x A B, as in 33_frozen_layer.cpp.
struct Adapter {
  mha::Linear<float> down{{.inputs = E, .outputs = R, .bias = false}}, up{{.inputs = R, .outputs = E, .bias = false}};
};

auto in_out(const Stored& w) { return mha::transposed(w.view()); }

float distance(const Rows& a, const Rows& b) { return (a - b).norm() / b.norm(); }

int main() {
  const Stored q = stored(E, E, 1), k = stored(E, E, 2), v = stored(E, E, 3), o = stored(E, E, 4);
  const Stored gate = stored(H, E, 5), up = stored(H, E, 6), down = stored(E, H, 7);
  const mha::BorrowedWeights<mha::bfloat16> of_attention{
      .query = in_out(q), .key = in_out(k), .value = in_out(v), .output = in_out(o)};
  const mha::BorrowedFeedForward<mha::bfloat16> of_feed_forward{.up = {.weight = in_out(up), .gate = in_out(gate)},
                                                                .down = {.weight = in_out(down)}};
  Rows x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3f * float((i + 1) * (i + 3) * (e + 2) * (e + 2) % 997));

  // Borrowed, the matrices stay in the 16 bits of the checkpoint and results are exact.
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> exact({.d_model = E, .num_heads = 8}), attention = exact;
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> exact_ff({.d_model = E, .d_hidden = H, .bias = false}), ff = exact_ff;
  exact.borrow(of_attention);
  exact_ff.borrow(of_feed_forward);

  // Quantized, they are rounded to 8 bits and widened inside the kernels. The checkpoint is not read again.
  attention.quantize(of_attention);
  ff.quantize(of_feed_forward);

  const std::size_t in_16_bits = exact.packed_bytes() + exact_ff.packed_bytes();
  const std::size_t in_8_bits = attention.packed_bytes() + ff.packed_bytes();
  const float off = distance(attention(x), exact(x)), off_ff = distance(ff(x), exact_ff(x));
  check("results are within 1 % of those of the exact weights", off < 0.01f && off_ff < 0.01f);
  check("the matrices take a little more than half of the 16 bits", double(in_8_bits) < 0.52 * double(in_16_bits));

  // The equivalent loop: a Linear that borrows the rounded numbers in float has the same bits.
  mha::Linear<float> linear({.inputs = E, .outputs = H, .bias = false}), in_float = linear;
  linear.quantize(mha::BorrowedLinear<mha::bfloat16>{.weight = in_out(up)});
  Rows rounded(E, H);
  for (int j = 0; j < H; ++j)
    for (int begin = 0; begin < E; begin += mha::weights_per_scale) {
      const int end = std::min(begin + int(mha::weights_per_scale), E);
      float largest = 0;
      for (int i = begin; i < end; ++i) largest = std::max(largest, std::abs(float(up(j, i))));
      const float scale = largest / 127, factor = 127 / largest;
      for (int i = begin; i < end; ++i)
        rounded(i, j) = float(std::nearbyint(double(up(j, i)) * double(factor))) * scale;
    }
  in_float.borrow({.weight = rounded});
  check("a result has the bits that the rounded numbers give in float", linear(x) == in_float(x));

  // An adapter before the feed-forward, which is frozen. It learns what another one does before the exact weights.
  Adapter sought, adapter;
  sought.down.initialize(mha::XavierUniform{.seed = 2});
  sought.up.initialize(mha::XavierUniform{.seed = 3});
  const Rows target = exact_ff(sought.up(sought.down(x), mha::residual(x)));
  adapter.down.initialize(mha::XavierUniform{.seed = 4});
  adapter.up.update([](auto&) {});  // B = 0
  auto ff_tape = ff.tape();
  auto down_tape = adapter.down.tape(), up_tape = adapter.up.tape();
  auto of_down = adapter.down.gradients(), of_up = adapter.up.gradients();
  const auto descend = [](auto& part, auto& gradients) {
    part.update([&](auto& p) {
      p.for_each(gradients, [](auto numbers, auto of_numbers) {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= 0.006f * of_numbers[i];
      });
    });
    gradients.clear();
  };
  float before = 0, after = 0;
  for (int step = 0; step <= 120; ++step) {
    const Rows low = adapter.down(x, down_tape), adapted = adapter.up(low, up_tape, mha::residual(x));
    const Rows y = ff(adapted, ff_tape), d_y = y - target;
    (step == 0 ? before : after) = distance(y, target);
    const Rows d_adapted = ff.backward(d_y, ff_tape);  // no gradients: the matrices are unpacked, and stay as they are
    adapter.down.backward(adapter.up.backward(d_adapted, up_tape, of_up), down_tape, of_down);
    descend(adapter.down, of_down);
    descend(adapter.up, of_up);
  }
  check("an adapter learns through frozen matrices in 8 bits", before > 0.3f && after < 0.03f);

  std::printf("\nthe matrices take %zu bytes, %zu in 16 bits, %zu in float\n", in_8_bits, in_16_bits, 2 * in_16_bits);
  std::printf(
      "attention is off by %.2f %%, the feed-forward by %.2f %%; the adapter's error went from %.1f to %.1f %%\n",
      100 * double(off), 100 * double(off_ff), 100 * double(before), 100 * double(after));
  return failures == 0 ? 0 : 1;
}
