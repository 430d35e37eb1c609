// SPDX-License-Identifier: Apache-2.0
// 42: weights in 8 and in 4 bits
//
// You learn   to keep the matrices of a checkpoint in a quarter or a seventh of float's memory, how far that moves
//             results, and to train an adapter in front of such weights, which stay as they are (QLoRA)
// The maths   n inputs' weights of one output are integers with one scale s: w ≈ s · round(w / s)
//             8 bits: n = 256, s = max |w| / 127; 4 bits: n = 32, s = -(the w farthest from 0) / 8, integers −8 … 7
//             adapter: Y = FeedForward(X + X A B), L = ½ ‖Y − T‖²; dL/dX goes through the rounded matrices
// Symbols     E = 384 model width, H = 768 hidden width, L = 16 tokens, R = 4 the adapter's rank
//             x, y, T (L, E)  A (E, R)  B (R, E)
// Output      lines that end in "yes", what the matrices take, and how far the results are apart
// Source      Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", §3, there with other 4-bit numbers
// Next        43_adapters_inside_a_layer.cpp
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

auto in_out(const Stored& w) { return mha::transposed(w.view()); }

float distance(const Rows& a, const Rows& b) { return (a - b).norm() / b.norm(); }

// The equivalent loops: n weights of one output become the numbers that are stored.
void round_to_8_bits(float* w, int n) {
  float largest = 0;
  for (int i = 0; i < n; ++i) largest = std::max(largest, std::abs(w[i]));
  const float scale = largest / 127, factor = 127 / largest;
  for (int i = 0; i < n; ++i) w[i] = float(std::nearbyint(double(w[i]) * double(factor))) * scale;
}
void round_to_4_bits(float* w, int n) {
  float farthest = 0;
  for (int i = 0; i < n; ++i) farthest = std::abs(w[i]) > std::abs(farthest) ? w[i] : farthest;
  const float scale = float(mha::bfloat16(farthest / -8));
  for (int i = 0; i < n; ++i) w[i] = float(std::min(std::nearbyint(double(w[i]) / double(scale)), 7.0)) * scale;
}

// Whether a Linear that borrows the numbers of such a loop in float has the same bits.
template <class Q> bool same_bits(const Rows& x, const Stored& w, void (*round)(float*, int)) {
  mha::Linear<float> linear({.inputs = E, .outputs = H, .bias = false}), in_float = linear;
  linear.quantize<Q>(mha::BorrowedLinear<mha::bfloat16>{.weight = in_out(w)});
  Rows rounded(H, E);  // (out, in)
  for (int j = 0; j < H; ++j) {
    for (int i = 0; i < E; ++i) rounded(j, i) = float(w(j, i));
    constexpr int n = mha::weights_per_scale<Q>;
    for (int i = 0; i < E; i += n) round(&rounded(j, i), std::min(n, E - i));
  }
  in_float.borrow({.weight = mha::transposed(mha::view(rounded.data(), H, E))});
  return linear(x) == in_float(x);
}

// x + x A B, as in 33_frozen_layer.cpp.
struct Adapter {
  mha::Linear<float> down{{.inputs = E, .outputs = R, .bias = false}}, up{{.inputs = R, .outputs = E, .bias = false}};
};

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
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> exact_ff({.d_model = E, .d_hidden = H, .bias = false});
  auto ff = exact_ff, ff_4 = exact_ff;
  exact.borrow(of_attention);
  exact_ff.borrow(of_feed_forward);

  // Quantized, they are rounded to 8 bits and widened inside the kernels. The checkpoint is not read again.
  attention.quantize(of_attention);
  ff.quantize(of_feed_forward);

  // Or to 4 bits: any part, such as the feed-forward, which has most of the weights.
  ff_4.quantize<mha::scaled_int4>(of_feed_forward);

  const float off = distance(attention(x), exact(x)), off_ff = distance(ff(x), exact_ff(x));
  const float off_4 = distance(ff_4(x), exact_ff(x));
  check("in 8 bits results are within 1 % of those of the exact weights", off < 0.01f && off_ff < 0.01f);
  check("in 4 bits they are off by 5 to 15 %", off_4 > 0.05f && off_4 < 0.15f);
  const auto in_16_bits = double(exact_ff.packed_bytes());
  check("8 bits take less than 0.52 of the memory of 16 bits", double(ff.packed_bytes()) < 0.52 * in_16_bits);
  check("4 bits take less than 0.29 of it", double(ff_4.packed_bytes()) < 0.29 * in_16_bits);
  check("in 8 bits a result has the bits of the rounded numbers in float",
        same_bits<mha::scaled_int8>(x, up, round_to_8_bits));
  check("in 4 bits too", same_bits<mha::scaled_int4>(x, up, round_to_4_bits));

  // An adapter before the feed-forward, which is frozen. It learns what another one does before the exact weights.
  Adapter sought, adapter;
  sought.down.initialize(mha::XavierUniform{.seed = 2});
  sought.up.initialize(mha::XavierUniform{.seed = 3});
  const Rows target = exact_ff(sought.up(sought.down(x), mha::residual(x)));
  adapter.down.initialize(mha::XavierUniform{.seed = 4});
  adapter.up.update([](auto&) {});  // B = 0
  auto ff_tape = ff_4.tape();
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
    const Rows y = ff_4(adapted, ff_tape), d_y = y - target;
    (step == 0 ? before : after) = distance(y, target);
    const Rows d_adapted = ff_4.backward(d_y, ff_tape);  // no gradients: the matrices stay as they are
    adapter.down.backward(adapter.up.backward(d_adapted, up_tape, of_up), down_tape, of_down);
    descend(adapter.down, of_down);
    descend(adapter.up, of_up);
  }
  check("an adapter learns through frozen matrices in 4 bits", before > 0.3f && after < off_4);

  std::printf("\nthe feed-forward takes %zu bytes in 16 bits, %zu in 8, %zu in 4\n", exact_ff.packed_bytes(),
              ff.packed_bytes(), ff_4.packed_bytes());
  std::printf("it is off by %.2f %% in 8 bits and by %.2f %% in 4, attention by %.2f %% in 8\n", 100 * double(off_ff),
              100 * double(off_4), 100 * double(off));
  std::printf("the adapter's error went from %.1f to %.1f %%\n", 100 * double(before), 100 * double(after));
  return failures == 0 ? 0 : 1;
}
