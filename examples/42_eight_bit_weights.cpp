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
constexpr float rate = 0.05f;

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

float distance(const Rows& a, const Rows& b) { return (a - b).norm() / b.norm(); }

int main() {
  const Stored q = stored(E, E, 1), k = stored(E, E, 2), v = stored(E, E, 3), o = stored(E, E, 4);
  const Stored gate = stored(H, E, 5), up = stored(H, E, 6), down = stored(E, H, 7);
  const mha::BorrowedWeights<mha::bfloat16> of_attention{.query = mha::transposed(q.view()),
                                                         .key = mha::transposed(k.view()),
                                                         .value = mha::transposed(v.view()),
                                                         .output = mha::transposed(o.view())};
  const mha::BorrowedFeedForward<mha::bfloat16> of_feed_forward{
      .up = {.weight = mha::transposed(up.view()), .gate = mha::transposed(gate.view())},
      .down = {.weight = mha::transposed(down.view())}};
  Rows x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3f * float((i + 1) * (i + 3) * (e + 2) * (e + 2) % 997));

  // Borrowed, the matrices stay in the checkpoint's 16 bits; quantized, they are rounded to 8. One word is all that
  // changes, and the checkpoint is not read any more in either case.
  using Attention = mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>;
  using FeedForward = mha::FeedForward<float, mha::Cpu, mha::SwiGlu>;
  Attention exact({.d_model = E, .num_heads = 8}), attention({.d_model = E, .num_heads = 8});
  FeedForward exact_feed_forward({.d_model = E, .d_hidden = H, .bias = false});
  FeedForward feed_forward({.d_model = E, .d_hidden = H, .bias = false});
  exact.borrow(of_attention);
  exact_feed_forward.borrow(of_feed_forward);
  attention.quantize(of_attention);
  feed_forward.quantize(of_feed_forward);
  const std::size_t in_16_bits = exact.packed_bytes() + exact_feed_forward.packed_bytes();
  const std::size_t in_8_bits = attention.packed_bytes() + feed_forward.packed_bytes();
  const Rows a = exact(x), b = exact_feed_forward(x);
  const float error_a = distance(attention(x), a), error_b = distance(feed_forward(x), b);
  check("attention is within 1 % of what it is with exact weights", error_a < 0.01f);
  check("so is the feed-forward", error_b < 0.01f);
  check("the matrices take a little more than half the memory", double(in_8_bits) < 0.53 * double(in_16_bits));

  // The equivalent loop: a Linear that borrows the rounded numbers in float has the same bits.
  mha::Linear<float> linear({.inputs = E, .outputs = H, .bias = false}), in_float = linear;
  linear.quantize(mha::BorrowedLinear<mha::bfloat16>{.weight = mha::transposed(up.view())});
  Rows rounded(E, H);
  for (int j = 0; j < H; ++j)
    for (int first = 0; first < E; first += mha::weights_per_scale) {
      const int end = std::min(first + int(mha::weights_per_scale), E);
      float largest = 0;
      for (int i = first; i < end; ++i) largest = std::max(largest, std::abs(float(up(j, i))));
      const float scale = largest / 127, factor = 127 / largest;
      for (int i = first; i < end; ++i)
        rounded(i, j) = float(std::nearbyint(double(up(j, i)) * double(factor))) * scale;
    }
  in_float.borrow({.weight = rounded});
  check("a result has the bits that the rounded numbers give in float", Rows(linear(x)) == Rows(in_float(x)));

  // An adapter in front of the feed-forward, which is frozen: backward() without gradients unpacks its matrices.
  mha::Linear<float> to_rank({.inputs = E, .outputs = R, .bias = false});
  mha::Linear<float> from_rank({.inputs = R, .outputs = E, .bias = false});
  to_rank.initialize(mha::XavierUniform{.seed = 2});
  from_rank.initialize(mha::XavierUniform{.seed = 3});
  const Rows target = exact_feed_forward(Rows(from_rank(Rows(to_rank(x)), mha::residual(x))));  // to be learned
  to_rank.initialize(mha::XavierUniform{.seed = 4});
  from_rank.update([](auto&) {});  // B = 0
  auto tape = feed_forward.tape();
  auto to_tape = to_rank.tape(), from_tape = from_rank.tape();
  auto of_to = to_rank.gradients(), of_from = from_rank.gradients();
  const auto descend = [](auto& part, auto& gradients) {
    part.update([&](auto& p) {
      p.for_each(gradients, [&](auto numbers, auto of_numbers) {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= rate * of_numbers[i];
      });
    });
    gradients.clear();
  };
  float before = 0, after = 0;
  for (int step = 0; step <= 60; ++step) {
    const Rows low = to_rank(x, to_tape), adapted = from_rank(low, from_tape, mha::residual(x));
    const Rows y = feed_forward(adapted, tape), d_y = y - target;
    (step == 0 ? before : after) = distance(y, target);
    const Rows d_adapted = feed_forward.backward(d_y, tape);
    const Rows d_low = from_rank.backward(d_adapted, from_tape, of_from);
    to_rank.backward(d_low, to_tape, of_to);
    descend(to_rank, of_to);
    descend(from_rank, of_from);
    if (step % 20 == 0) std::printf("step %3d: error %.3f\n", step, distance(y, target));
  }
  check("an adapter learns through frozen matrices in 8 bits", after < 0.2f * before);

  std::printf("\nthe matrices take %zu bytes, %zu in 16 bits, %zu in float\n", in_8_bits, in_16_bits, 2 * in_16_bits);
  std::printf("attention is off by %.2f %%, the feed-forward by %.2f %%\n", 100 * double(error_a),
              100 * double(error_b));
  std::printf("the adapter's error was %.2f %%, and is %.2f %%\n", 100 * double(before), 100 * double(after));
  return failures == 0 ? 0 : 1;
}
