// SPDX-License-Identifier: Apache-2.0
// Time against visible pairs on one thread: work follows what the mask shows, so hiding pairs has to pay.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "measure.hpp"
#include "program.hpp"

namespace {

using Tensor = mha::Tensor<float, 4>;
constexpr int length = 4096, dim = 64, heads = 2, rounds = 9;

/// A user's mask that shows every pair and does not say so: no tile().
struct Silent {
  bool operator()(int, int, int, int k) const { return k >= 0; }
};
/// A user's causal mask without tile().
struct SilentCausal {
  bool operator()(int, int, int q, int k) const { return k <= q; }
};

struct Inputs {
  Tensor q{1, length, heads, dim}, k{1, length, heads, dim}, v{1, length, heads, dim}, out{1, length, heads, dim};
  mha::Workspace workspace;
  Inputs() {
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    for (Tensor* t : {&q, &k, &v}) std::generate(t->begin(), t->end(), [&] { return normal(gen); });
  }
  template <class M> void attend(const M& mask) {
    mha::attention_into<mha::CpuWith<mha::Serial>>(out, q, k, v, mask, workspace);
  }
};

/// Causal blocks of `block` positions, each shown with this probability, a query's own always.
mha::BlockSparse blocks(int block, double density) {
  const int n = length / block;
  std::mt19937 gen(11);
  std::vector<std::uint8_t> map(static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i)
    for (int j = 0; j <= i; ++j)
      map[static_cast<std::size_t>(i) * static_cast<std::size_t>(n) + static_cast<std::size_t>(j)] =
          i == j || std::bernoulli_distribution(density)(gen) ? 1 : 0;
  return {{.block = block, .query_blocks = n, .key_blocks = n}, std::move(map)};
}

/// Samples of one mask, and of the full and the causal call in the same rounds.
struct Row {
  double pairs = 0;
  std::vector<double> seconds, full, causal;
};
std::map<std::string, Row> rows;
std::vector<std::string> order;  // as they ran

double gflop(double pairs) { return 4e-9 * pairs * dim * heads; }
template <class M> double pairs_of(const M& mask) {
  return mha::visible_pairs(mask, {.batch = 1, .heads = heads, .queries = length, .keys = length, .origin = 0});
}

template <class M> void visible(benchmark::State& state, const std::string& name, const M& mask) {
  const auto [found, is_new] = rows.try_emplace(name);
  if (is_new) order.push_back(name);
  Row& row = found->second;
  row.pairs = pairs_of(mask);
  Inputs in;
  const auto ours = [&] { in.attend(mask); };
  const auto full = [&] { in.attend(mha::Full{}); };
  const auto causal = [&] { in.attend(mha::Causal{}); };
  const int calls = bench::calls_per_sample(bench::thread_seconds, ours);
  full();
  causal();
  for ([[maybe_unused]] auto _ : state) {
    row.seconds.push_back(bench::seconds_per_call(bench::thread_seconds, calls, ours));
    row.full.push_back(bench::seconds_per_call(bench::thread_seconds, 1, full));
    row.causal.push_back(bench::seconds_per_call(bench::thread_seconds, 1, causal));
    state.SetIterationTime(row.seconds.back());
  }
  state.counters["GFLOPs"] = gflop(row.pairs) / bench::median(row.seconds);
}

void print_table() {
  std::printf("\n%s\nL %d, D %d, %d heads, one thread\n", bench::machine().c_str(), length, dim, heads);
  bench::Table table({"mask", "visible pairs", "share of all", "ms", "time : full's", "GFLOP/s of visible work",
                      "% of causal's rate", "% of full's rate"});
  const double all = pairs_of(mha::Full{}), causal = pairs_of(mha::Causal{});
  for (const std::string& name : order) {
    const Row& r = rows.at(name);
    if (r.seconds.empty()) continue;
    table.add({name, bench::number(r.pairs, 0), bench::number(100 * r.pairs / all, 1) + " %",
               bench::number(1e3 * bench::median(r.seconds), 2),
               bench::number(bench::median_ratio(r.seconds, r.full), 3),
               bench::number(gflop(r.pairs) / bench::median(r.seconds), 1),
               bench::number(100 * r.pairs / causal * bench::median_ratio(r.causal, r.seconds), 0),
               bench::number(100 * r.pairs / all * bench::median_ratio(r.full, r.seconds), 0)});
  }
  table.print();
}

template <class M> void add(const std::string& name, const M& mask) {
  bench::add(name, rounds, [=](benchmark::State& state) { visible(state, name, mask); });
}

}  // namespace

int main(int argc, char** argv) {
  add("full", mha::Full{});
  add("causal", mha::Causal{});
  for (const int width : {64, 128, 256, 512, 1024, 2048})
    add("window of " + std::to_string(width), mha::SlidingWindow{.left = width - 1});
  for (const int block : {64, 128})
    for (const double density : {0.05, 0.1, 0.25, 0.5, 1.0})
      add("causal blocks of " + std::to_string(block) + ", " + bench::number(100 * density, 0) + " %",
          blocks(block, density));
  add("functor that shows all, no tile()", Silent{});
  add("functor that is causal, no tile()", SilentCausal{});
  return bench::run_all(argc, argv, print_table);
}
