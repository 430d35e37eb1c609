// SPDX-License-Identifier: Apache-2.0
// 33: adapt a frozen layer
//
// You learn   how to train a low-rank adapter (LoRA) in front of a frozen layer, whose weights stay in bfloat16 as in a
//             checkpoint
// The maths   X′ = X + X A B, Y = attention(X′), L = ½ ‖Y − T‖². A backward pass without gradients gives dL/dX′ alone,
//             with half of the products by weights; A and B learn from it
// Symbols     L = 12 tokens, E = 32 numbers per token, R = 2 the rank: X, X′, Y, T (L, E), A (E, R), B (R, E); T is
//             the layer's result for X + X A* B*, with A* and B* to be found
// Output      the same dL/dX′ as with gradients, and the error as A and B learn:
//               dL/dX: the same bits
//               step   0: error 0.52
//               step 150: error 0.10
//               step 300: error 0.05
// Source      Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1
// Next        34_tree_drafts.cpp
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <Eigen/Core>

#include <mha/block.hpp>
#include <mha/mha.hpp>

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr int L = 12, E = 32, R = 2;
constexpr float rate = 0.05f;

// x + x A B: the residual is what the frozen part would have been given.
struct Adapter {
  mha::Linear<float> down{{.inputs = E, .outputs = R, .bias = false}}, up{{.inputs = R, .outputs = E, .bias = false}};
};

int main() {
  // The weights of a bfloat16 checkpoint, and a float layer that borrows them.
  mha::MultiHeadAttention<mha::bfloat16> checkpoint({.d_model = E, .num_heads = 4});
  checkpoint.initialize(mha::XavierUniform{.seed = 1});
  mha::MultiHeadAttention<float> layer({.d_model = E, .num_heads = 4});
  layer.borrow(checkpoint.parameters());

  Matrix x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3f * float((i + 1) * (i + 3) * (e + 2) * (e + 2)));
  Adapter sought, adapter;
  sought.down.initialize(mha::XavierUniform{.seed = 2});
  sought.up.initialize(mha::XavierUniform{.seed = 3});
  const Matrix target = layer(sought.up(sought.down(x), mha::residual(x)));

  // B begins at 0, because update() writes nothing here, so the adapter changes nothing at first.
  adapter.down.initialize(mha::XavierUniform{.seed = 4});
  adapter.up.update([](auto&) {});

  auto tape = layer.tape();
  auto down_tape = adapter.down.tape(), up_tape = adapter.up.tape();
  auto of_down = adapter.down.gradients(), of_up = adapter.up.gradients();
  mha::Workspace workspace;
  Matrix low(L, R), adapted(L, E), y(L, E), d_y(L, E), d_adapted(L, E), d_low(L, R), d_x(L, E);
  float error = 0;
  for (int step = 0; step <= 300; ++step) {
    adapter.down(x, down_tape, mha::into(low), workspace);
    adapter.up(low, up_tape, mha::residual(x), mha::into(adapted), workspace);
    layer(adapted, tape, mha::into(y), workspace);
    d_y = y - target;
    error = d_y.norm() / target.norm();

    layer.backward(d_y, tape, mha::into(d_adapted), workspace);  // no gradients: the layer is frozen

    if (step == 0) {
      auto gradients = layer.gradients();
      const Matrix the_same = layer.backward(d_y, tape, gradients);
      std::printf("dL/dX: %s\n", the_same == d_adapted ? "the same bits" : "another");
    }
    if (step % 150 == 0) std::printf("step %3d: error %.2f\n", step, double(error));
    of_down.clear(), of_up.clear();
    adapter.up.backward(d_adapted, up_tape, of_up, mha::into(d_low), workspace);
    adapter.down.backward(d_low, down_tape, of_down, mha::into(d_x), workspace);
    const auto descend = [](auto& part, const auto& gradients) {
      part.update([&](auto& p) {
        p.for_each(gradients, [&](auto numbers, auto of_numbers) {
          for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= rate * of_numbers[i];
        });
      });
    };
    descend(adapter.down, of_down);
    descend(adapter.up, of_up);
  }
  return error < 0.1f ? 0 : 1;
}
