// SPDX-License-Identifier: Apache-2.0
// 24: a cache that never grows
//
// You learn   to go on for ever in fixed memory: a window of the last tokens, and a few first ones that stay
// The maths   query q sees key k ≤ q if q − k ≤ 31, or k < 4: Mistral's window with StreamingLLM's "attention sinks"
// Symbols     E = 32 model width, 4 heads; Ring{.left = 31, .rows = 16, .first = 4} keeps 4 + 31 + 16 positions and has
//             memory for the 16 of the next step
// Output      lines that end in "yes", and the sentence of a mask that needs more than the ring keeps
// Next        25_paged_cache.cpp, many sequences that share a prompt
#include <cmath>
#include <cstdio>
#include <Eigen/Core>

#include <mha/mha.hpp>

constexpr int E = 32, L = 300;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

int main() {
  // Masks compose: causal, and within the window or among the first.
  auto layer =
      mha::make_attention<float>({.d_model = E, .num_heads = 4}, mha::Rotary<>{},
                                 mha::Causal{} && (mha::SlidingWindow{.left = 31} || mha::FirstKeys{.count = 4}));
  layer.initialize(mha::XavierUniform{.seed = 2});

  Rows x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.2f * float(i * E + e + 1));
  const Rows whole = layer(x);  // keeps all L keys for the call

  // `left` is the mask's, `rows` the most rows of one step, `first` the positions that stay.
  auto cache = mha::make_cache(layer, mha::Ring{.left = 31, .rows = 16, .first = 4});
  const mha::SequenceId text = cache.add();
  const std::size_t bytes = cache.bytes();

  Rows y(L, E);
  mha::Workspace workspace;
  layer.prefill(x.topRows(100), cache, mha::into(y.topRows(100)), workspace);  // in pieces of 16 rows
  for (int i = 100; i < L; ++i) layer.step(x.row(i), cache, mha::into(y.row(i)), workspace);
  check("a ring gives the rows of layer(x), bit for bit", y == whole);
  check("it has memory for 67 positions, not 300", bytes == std::size_t{67} * 2 * E * sizeof(float));
  std::printf("  position %d: the first 4 and those from %d on are stored\n", cache.length(text), cache.oldest(text));

  // A mask that looks further back than the ring would read what is no longer there: the layer asks the mask and
  // refuses.
  auto far = mha::make_attention<float>({.d_model = E, .num_heads = 4}, mha::Rotary<>{}, mha::Causal{});
  far.borrow(layer);
  try {
    far.step(x.row(0), cache, mha::into(y.row(0)), workspace);
    check("a mask without a window is refused", false);
  } catch (const mha::ShapeError& e) {
    check("a mask without a window is refused", cache.length(text) == L);
    std::printf("  %s\n", e.what());
  }
  return failures == 0 ? 0 : 1;
}
