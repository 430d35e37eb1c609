// SPDX-License-Identifier: Apache-2.0
// Keys and values in pages of any order, in a ring and head by head against contiguous ones, (batch, seq, heads, d_k):
// the same call, sampled in turns.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "measure.hpp"
#include "program.hpp"

namespace {

using mha::Index;
using Cpu = mha::CpuWith<mha::Serial>;
constexpr int heads = 32, kv_heads = 8, dim = 128, rounds = 9;
constexpr int page_sizes[] = {16, 64, 256};

/// The same rows (1, Lk, Hkv, D) once as they are, once in pages of each size, once in a ring that has just wrapped,
/// once as (1, Hkv, Lk, D), with the rows of a head one after another.
template <class T> struct Inputs {
  mha::Tensor<T, 4> q, k, v, out, near_k, near_v;
  std::vector<mha::Tensor<T, 4>> paged_k, paged_v;
  std::vector<std::vector<Index>> tables;
  std::vector<Index> length;

  Inputs(int queries, int keys)
      : q(1, queries, heads, dim),
        k(1, keys, kv_heads, dim),
        v(1, keys, kv_heads, dim),
        out(1, queries, heads, dim),
        near_k(1, kv_heads, keys, dim),
        near_v(1, kv_heads, keys, dim),
        length{keys} {
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    for (auto* t : {&q, &k, &v}) std::generate(t->begin(), t->end(), [&] { return static_cast<T>(normal(gen)); });
    for (Index i = 0; i < keys; ++i)
      for (Index h = 0; h < kv_heads; ++h) {
        std::copy_n(&k(0, i, h, 0), dim, &near_k(0, h, i, 0));
        std::copy_n(&v(0, i, h, 0), dim, &near_v(0, h, i, 0));
      }
    for (const int page : page_sizes) {
      std::vector<Index> table(static_cast<std::size_t>(keys / page));
      std::iota(table.begin(), table.end(), 0);
      std::shuffle(table.begin(), table.end(), gen);
      const auto copy = [&](const mha::Tensor<T, 4>& from) {
        mha::Tensor<T, 4> pool(keys / page, page, kv_heads, dim);
        const std::ptrdiff_t size = std::ptrdiff_t{page} * kv_heads * dim;
        for (std::size_t i = 0; i < table.size(); ++i)
          std::copy_n(from.data() + static_cast<std::ptrdiff_t>(i) * size, size, pool.data() + table[i] * size);
        return pool;
      };
      paged_k.push_back(copy(k));
      paged_v.push_back(copy(v));
      tables.push_back(table);
    }
  }
  mha::ContiguousKv<T> plain() const { return {k.view(), v.view()}; }
  mha::PagedKv<T> pages(std::size_t i) const { return {paged_k[i].view(), paged_v[i].view(), tables[i], length}; }
  mha::ContiguousKv<T> by_head() const {
    const auto of = [](const mha::Tensor<T, 4>& near) {
      const auto rows = near.view();
      return mha::TensorView<const T, 4>{rows.data,
                                         {1, rows.extent[2], kv_heads, dim},
                                         {rows.stride[0], rows.stride[2], rows.stride[1], rows.stride[3]}};
    };
    return {of(near_k), of(near_v)};
  }
  /// Positions half a ring further on: two runs, of rows that are elsewhere.
  mha::RingKv<T> ring(const std::vector<Index>& given) const { return {k.view(), v.view(), given}; }
};

std::map<std::string, std::vector<std::vector<double>>> results;  // by source: contiguous, pages, ring, heads
std::vector<std::string> order;

template <class T> void run(benchmark::State& state, const std::string& name, int queries, int keys) {
  Inputs<T> in(queries, keys);
  const std::vector<Index> given{keys + keys / 2};
  mha::Workspace workspace;
  const auto attend = [&](const auto& kv) { mha::attention_into<Cpu>(in.out, in.q, kv, workspace); };
  const std::vector<std::function<void()>> calls{[&] { attend(in.plain()); },     [&] { attend(in.pages(0)); },
                                                 [&] { attend(in.pages(1)); },    [&] { attend(in.pages(2)); },
                                                 [&] { attend(in.ring(given)); }, [&] { attend(in.by_head()); }};
  if (!results.count(name)) order.push_back(name);
  auto& samples = results[name];
  samples.resize(calls.size());
  const int per_sample = bench::calls_per_sample(bench::thread_seconds, calls[0]);
  for ([[maybe_unused]] auto _ : state) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      // The ring's keys are the contiguous ones: these would be in the third cache, and others would not.
      for (int call = 0; call < 2 * per_sample; ++call) calls[i]();
      samples[i].push_back(bench::seconds_per_call(bench::thread_seconds, per_sample, calls[i]));
    }
    state.SetIterationTime(samples[0].back());
  }
}

void print_table() {
  std::printf("\n%s\n%d query heads, %d key/value heads, head size %d, no mask, one thread\n", bench::machine().c_str(),
              heads, kv_heads, dim);
  bench::Table table({"case", "contiguous ms", "pages of 16", "of 64", "of 256", "ring", "by head"});
  for (const std::string& name : order) {
    const auto& s = results.at(name);
    if (s.empty() || s[0].empty()) continue;
    std::vector<std::string> row{name, bench::number(1e3 * bench::median(s[0]), 3)};
    for (std::size_t i = 1; i < s.size(); ++i)
      row.push_back(bench::number(100 * bench::median_ratio(s[0], s[i]), 0) + " %");
    table.add(row);
  }
  table.print();
}

template <class T> void add(const char* scalar, int queries, int keys) {
  const std::string name = std::string(scalar) + "/Lq:" + std::to_string(queries) + "/Lk:" + std::to_string(keys);
  bench::add(name, rounds, run<T>, name, queries, keys);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int keys : {1024, 4096, 32768})
    for (const int queries : {1, 8, 64, 512}) {
      if (queries > 8 && keys > (queries == 64 ? 4096 : 1024)) continue;
      add<float>("f32", queries, keys);
      add<mha::bfloat16>("bf16", queries, keys);
    }
  return bench::run_all(argc, argv, print_table);
}
