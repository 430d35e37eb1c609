// SPDX-License-Identifier: Apache-2.0
// 34: a tree of drafts
//
// You learn   to verify several drafts of one text in one step (Medusa, EAGLE, SpecInfer), and to keep the branch that
//             was accepted
// The maths   a node's row attends to the text and to its ancestors; its query and key are turned to position
//             P + depth, so that each node's row is the last row of layer(text, path to the node)
// Symbols     E = 32 model width, P = 9 tokens of text, N = 6 nodes: 0 and 1 follow the text, 2 and 3 follow 0,
//             4 follows 1, 5 follows 3
// Output      lines that end in "yes"
// Next        35_save_what_was_trained.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>
#include <vector>

#include <mha/mha.hpp>

constexpr int E = 32, P = 9, N = 6;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>>;

Rows some_rows(int rows, float seed) {
  Rows x(rows, E);
  for (int i = 0; i < rows; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(seed + 0.4f * float(i * E + e));
  return x;
}

// A node sees itself, its ancestors and the text. Masks count rows as the cache stores them: node n is row first + n.
struct Ancestors {
  const int* parent;  // −1: the text
  int first;
  bool operator()(int, int, int q, int k) const {
    if (k < first) return true;
    int node = q - first;
    while (node > k - first) node = parent[node];  // a parent comes before its children
    return node == k - first;
  }
  mha::TileVisibility tile(int, int, int, int, int, int k_end) const {
    return k_end <= first ? mha::TileVisibility::full : mha::TileVisibility::partial;
  }
};

int main() {
  Layer first({.d_model = E, .num_heads = 4}), second({.d_model = E, .num_heads = 4});
  first.initialize(mha::XavierUniform{.seed = 3});
  second.initialize(mha::XavierUniform{.seed = 4});
  const auto model = [&](const Rows& x) -> Rows { return second(first(x)); };  // all from scratch
  const auto near = [](const Rows& a, const Rows& b) {
    return (a - b).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-5f;
  };

  const Rows text = some_rows(P, 0.1f), drafts = some_rows(N, 2.0f);
  auto cache = mha::make_cache(first, mha::Paged{.pages = 4, .length = 64, .page = 16}, {.layers = 2});
  const mha::SequenceId id = cache.add();
  {
    auto step = cache.step(id, P);
    const Rows h = first(text, step[0]);
    static_cast<void>(second(h, step[1]));
    step.commit();
  }

  // All nodes in one step. Nodes of one depth have rows of their own in the cache and one position.
  const int parent[N] = {-1, -1, 0, 0, 1, 3};
  int positions[N];
  for (int n = 0; n < N; ++n) positions[n] = parent[n] < 0 ? P : positions[parent[n]] + 1;

  auto step = cache.step(id, N);
  const Ancestors tree{parent, P};
  const Rows h = first(drafts, step[0], mha::Positions{positions}, tree);
  const Rows y = second(h, step[1], mha::Positions{positions}, tree);  // (N, E)

  bool same = true;
  for (int n = 0; n < N; ++n) {
    std::vector<int> path;  // from the text to n
    for (int node = n; node >= 0; node = parent[node]) path.insert(path.begin(), node);
    Rows alone(P + int(path.size()), E);
    alone << text, drafts(path, Eigen::all);
    same = same && near(y.row(n), model(alone).bottomRows(1));
  }
  check("each node's row is the last row of its path alone", same);

  // The model agrees with the drafts 0, 3 and 5. Their rows close up; the others are dropped.
  step.commit({0, 3, 5});
  check("the accepted branch is part of the text", cache.length(id) == P + 3);

  const Rows next = some_rows(1, 5.0f);
  Rows whole(P + 4, E);
  whole << text, drafts.row(0), drafts.row(3), drafts.row(5), next;
  auto one = cache.step(id, 1);
  const Rows g = first(next, one[0]), z = second(g, one[1]);
  one.commit();
  check("the next token follows it", near(z, model(whole).bottomRows(1)));
  return failures == 0 ? 0 : 1;
}
