// SPDX-License-Identifier: Apache-2.0
// 25: many sequences, one prompt
//
// You learn   to serve several sequences of a model with two layers from one pool of pages: a shared prompt, chunks and
//             single tokens in one step, beams, and to ask whether a step fits before it is made
// The maths   position p of a sequence is in row p mod 16 of its page p / 16; a page may belong to several sequences
// Symbols     E = 32 model width, 4 heads, S = 40 tokens of the shared prompt
// Output      lines that end in "yes", and how the pages are used
// Next        26_learned_score.cpp, a score that is trained
#include <cmath>
#include <cstdio>
#include <Eigen/Core>
#include <vector>

#include <mha/mha.hpp>

constexpr int E = 32, S = 40;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Causal, mha::Rotary<>>;

Rows some_rows(int rows, float seed) {
  Rows x(rows, E);
  for (int i = 0; i < rows; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(seed + 0.4f * float(i * E + e));
  return x;
}

int main() {
  Layer first({.d_model = E, .num_heads = 4}), second({.d_model = E, .num_heads = 4});
  first.initialize(mha::XavierUniform{.seed = 3});
  second.initialize(mha::XavierUniform{.seed = 4});
  const auto model = [&](const Rows& x) -> Rows { return second(first(x)); };  // all from scratch

  // Each layer has its own keys and values; both share one table of pages.
  auto cache =
      mha::make_cache(first, mha::Paged{.pages = 12, .length = 128, .page = 16}, {.layers = 2, .sequences = 8});

  // A step: memory for all rows is reserved, or it throws and nothing changed; commit() makes the rows part of their
  // sequences. If a layer throws in between, the cache is as it was.
  mha::Workspace workspace;
  const auto run = [&](const std::vector<mha::SequenceId>& who, const std::vector<int>& rows, const Rows& x) {
    Rows h(x.rows(), E), y(x.rows(), E);
    auto step = cache.step(who, rows);
    first(x, step[0], mha::into(h), workspace);
    second(h, step[1], mha::into(y), workspace);
    step.commit();
    return y;
  };

  const Rows prompt = some_rows(S, 0.1f);
  const mha::SequenceId shared = cache.add();
  run({shared}, {S}, prompt);
  check("40 tokens take 3 pages of 16", cache.free_pages() == 12 - 3);

  const mha::SequenceId a = cache.fork(shared), b = cache.fork(shared), c = cache.add();
  check("two forks take none", cache.free_pages() == 12 - 3);

  // One token for a and for b beside a chunk of 20 for c, a prompt of its own: sequence by sequence in the rows of x.
  const Rows of_a = some_rows(1, 1.0f), of_b = some_rows(1, 2.0f), of_c = some_rows(20, 3.0f);
  Rows x(22, E);
  x << of_a, of_b, of_c;
  const Rows y = run({a, b, c}, {1, 1, 20}, x);
  check("they copied the shared page that is not full, once each", cache.free_pages() == 12 - 3 - 2 - 2);

  Rows text_of_b(S + 1, E);
  text_of_b << prompt, of_b;
  check("b's token is as if b were alone", y.row(1) == model(text_of_b).bottomRows(1));
  check("so is c's chunk", y.bottomRows(20) == model(of_c));

  // Beam search: both beams go on from b.
  const mha::SequenceId beams[] = {a, b};
  const int from[] = {1, 1};
  cache.reorder(beams, from);
  const Rows next = some_rows(1, 5.0f);
  Rows both(2, E);
  both << next, next;
  const Rows z = run({a, b}, {1, 1}, both);
  check("two beams of one parent agree", z.row(0) == z.row(1));

  // Admission: does a prompt of 100 tokens fit beside the beams? add() and fork() take no page, so ask about what they
  // return. Pages that a sequence shares with another are not freed by its removal.
  const mha::SequenceId late = cache.add();
  const std::vector<mha::SequenceId> who{a, b, late};
  const std::vector<int> rows{1, 1, 100};
  check("7 pages are needed, 5 are free", cache.pages_needed(who, rows) == 7 && cache.free_pages() == 5);
  check("removing c would free 2, the prompt that a and b share 1",
        cache.pages_freed(c) == 2 && cache.pages_freed(shared) == 1);
  if (cache.pages_needed(who, rows) > cache.free_pages()) cache.remove(c);
  run(who, rows, some_rows(102, 6.0f));
  check("without c it fits", cache.free_pages() == 0);

  try {
    run({late}, {13}, some_rows(13, 7.0f));
    check("a step beyond the last page is refused", false);
  } catch (const mha::CacheFull& full) {
    check("without a page left step() says how many", full.needed == 1 && full.free == 0 && full.total == 12);
  }

  for (const mha::SequenceId id : {shared, a, b, late}) cache.remove(id);
  check("removed sequences give all pages back", cache.free_pages() == 12);
  try {
    run({a}, {1}, next);
    check("a removed sequence is refused", false);
  } catch (const mha::ShapeError& e) {
    check("a removed sequence is refused", true);
    std::printf("  %s\n", e.what());
  }
  return failures == 0 ? 0 : 1;
}
