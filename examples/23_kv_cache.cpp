// SPDX-License-Identifier: Apache-2.0
// 23: a key/value cache
//
// You learn   to read a prompt once and then go on token by token, without computing anything twice
// The maths   yᵢ = attention(qᵢ, K[0…i], V[0…i]): a new token needs its own q, k, v and the keys and values before it
// Symbols     E = 32 model width, 4 query heads share 2 key/value heads of D = 8, prompt of P = 9 tokens
// Output      lines that end in "yes", and what the cache takes
// Next        24_ring_cache.cpp, a cache that never grows
#include <cmath>
#include <cstdio>
#include <Eigen/Core>
#include <vector>

#include <mha/mha.hpp>

constexpr int E = 32, P = 9, L = 20;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

int main() {
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>> layer(
      {.d_model = E, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 1});

  Rows x(L, E);  // what a model would compute token by token
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3f * float(i * E + e));
  const Rows whole = layer(x);  // (L, E), every row from scratch

  // Memory for L positions, taken here and never again.
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = L});
  const mha::SequenceId text = cache.add();

  // The prompt in one call: its keys and values are stored, its rows attend to them.
  const Rows prompt = x.topRows(P);
  Rows y(L, E);
  y.topRows(P) = layer.prefill(prompt, cache);  // (P, E) → (P, E)

  // Then one row a call. Rotary turns the new key at its position P, P + 1, … and the mask counts it there.
  mha::Workspace workspace;
  for (int i = P; i < L; ++i) layer.step(x.row(i), cache, mha::into(y.row(i)), workspace);
  check("prefill and steps give the rows of layer(x), bit for bit", y == whole);
  check("the cache holds every position", cache.length(text) == L);

  // A draft that was not accepted is taken back.
  cache.truncate(text, L - 3);
  for (int i = L - 3; i < L; ++i) layer.step(x.row(i), cache, mha::into(y.row(i)), workspace);
  check("truncated and computed again, the same bits", y == whole);

  // A sequence as bytes: to a file, to another process, back into any cache of these sizes.
  const std::vector<std::byte> saved = cache.save(text);
  auto other = mha::make_cache(layer, mha::Contiguous{.length = L});
  const mha::SequenceId copy = other.restore(saved);
  other.truncate(copy, L - 1);
  const Rows last = layer.step(x.row(L - 1), other);
  check("saved and restored, the same bits", last == whole.bottomRows(1));

  // Half the memory: keys and values are rounded to bfloat16 once, when they are stored.
  auto narrow = mha::make_cache<mha::bfloat16>(layer, mha::Contiguous{.length = L});
  narrow.add();
  const Rows rounded = layer.prefill(x, narrow);
  check("stored as bfloat16, close to it", (rounded - whole).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 0.02f);

  // What does not fit is refused before anything changes.
  try {
    layer.step(x.row(0), cache, mha::into(y.row(0)), workspace);
    check("a full cache refuses", false);
  } catch (const mha::ShapeError& e) {
    check("a full cache refuses", cache.length(text) == L);
    std::printf("  %s\n", e.what());
  }
  std::printf("\n%d positions take %zu bytes as float, %zu as bfloat16\n", L, cache.bytes(), narrow.bytes());
  return failures == 0 ? 0 : 1;
}
