// SPDX-License-Identifier: Apache-2.0
// What a key/value cache costs and saves: its books beside attention, prompts in pieces, prompts beside single tokens,
// and generation against computing every token again.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "counting_allocator.hpp"
#include "measure.hpp"
#include "program.hpp"

namespace {

using Clock = bench::Clock;
using Layer = mha::MultiHeadAttention<float, mha::CpuWith<mha::Serial>, mha::GroupedQuery<mha::Dynamic>, mha::Causal,
                                      mha::Rotary<>>;

constexpr int rounds = 7;
const Clock clock_of_thread = bench::thread_seconds;

struct Row {
  std::string name, first, second;  ///< what is compared
  double first_ms, second_ms, ratio;
  std::size_t allocations;
};
std::vector<Row> rows_of_table;

mha::Tensor<float, 2> random_rows(int rows, int width) {
  std::mt19937 gen(3);
  std::normal_distribution<float> normal;
  mha::Tensor<float, 2> x(rows, width);
  std::generate(x.begin(), x.end(), [&] { return normal(gen); });
  return x;
}

/// Samples of two functions in turns.
template <class F, class G>
void compare(benchmark::State& state, const std::string& name, const char* first_name, F&& first,
             const char* second_name, G&& second) {
  std::vector<double> a, b;
  first();
  second();
  const std::size_t allocations = bench::footprint(first).count;
  for ([[maybe_unused]] auto _ : state) {
    a.push_back(bench::seconds_per_call(clock_of_thread, 1, first));
    b.push_back(bench::seconds_per_call(clock_of_thread, 1, second));
    state.SetIterationTime(a.back());
  }
  rows_of_table.push_back({name, first_name, second_name, 1e3 * bench::median(a), 1e3 * bench::median(b),
                           bench::median_ratio(a, b), allocations});
}

/// Reserving, describing and taking back a step of one row for each sequence, beside attention over what they hold.
template <class Storage> void books(benchmark::State& state, const char* name, const Storage& storage, int sequences) {
  constexpr int keys = 1024, heads = 32, kv_heads = 8, dim = 128;
  mha::KvCache<Storage, mha::bfloat16> cache({kv_heads, dim, dim}, storage, {.sequences = sequences});
  std::vector<mha::SequenceId> ids;
  {
    mha::Tensor<mha::bfloat16, 3> row(keys, kv_heads, dim);
    for (int s = 0; s < sequences; ++s) {
      ids.push_back(cache.add());
      auto step = cache.step(ids.back(), keys);
      step.append(0, row, row);
      step.commit();
    }
  }
  const std::vector<mha::Index> one(ids.size(), 1);
  mha::Tensor<mha::bfloat16, 3> row(sequences, kv_heads, dim);
  mha::Tensor<mha::bfloat16, 4> q(sequences, 1, heads, dim), out(sequences, 1, heads, dim);
  mha::Workspace workspace;
  compare(
      state, name, "books of a step", [&] { benchmark::DoNotOptimize(cache.step(ids, one).offsets().data()); },
      "its attention",
      [&] {
        auto step = cache.step(ids, one);
        step.append(0, row, row);
        mha::attention_into<mha::CpuWith<mha::Serial>>(out, q, step.source(0), mha::Causal{}, workspace);
      });
}

/// A prompt in pieces of 256 rows against one call without a cache.
void prompt(benchmark::State& state, const std::string& name, int length) {
  Layer layer({.d_model = 1024, .num_heads = 16, .num_kv_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 1});
  const auto x = random_rows(length, 1024);
  mha::Tensor<float, 2> y(length, 1024);
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = length});
  const mha::SequenceId id = cache.add();
  mha::Workspace workspace;
  compare(
      state, name, "in pieces of 256",
      [&] {
        cache.truncate(id, 0);
        for (int i = 0; i < length; i += 256)
          layer.step(mha::view(&x(i, 0), 256, 1024), cache, mha::into(mha::view(&y(i, 0), 256, 1024)), workspace);
      },
      "layer(x)", [&] { layer(x, mha::into(y), workspace); });
}

/// 31 sequences of 1024 positions go on by a token beside one that reads 512 rows: in one step, and in two.
void mixture(benchmark::State& state, const std::string& name) {
  constexpr int others = 31, chunk = 512, keys = 1024, width = 1024;
  Layer layer({.d_model = width, .num_heads = 16, .num_kv_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 2});
  auto cache =
      mha::make_cache(layer, mha::Paged{.pages = (others + 1) * 20, .length = 1280}, {.sequences = others + 1});
  const auto x = random_rows(keys, width);
  mha::Tensor<float, 2> y(keys, width);
  mha::Workspace workspace;
  std::vector<mha::SequenceId> ids;
  for (int s = 0; s < others; ++s) {
    ids.push_back(cache.add());
    auto step = cache.step(ids.back(), keys);
    layer(x, step[0], mha::into(y), workspace);
    step.commit();
  }
  std::vector<mha::Index> rows(ids.size(), 1);
  const std::vector<mha::SequenceId> tokens = ids;
  const std::vector<mha::Index> ones = rows;
  const mha::SequenceId reader = cache.add();
  ids.push_back(reader);
  rows.push_back(chunk);
  // Nothing is committed, so that every round finds the cache as it was.
  compare(
      state, name, "one step",
      [&] {
        auto step = cache.step(ids, rows);
        layer(mha::view(x.data(), others + chunk, width), step[0],
              mha::into(mha::view(y.data(), others + chunk, width)), workspace);
      },
      "two steps",
      [&] {
        {
          auto step = cache.step(tokens, ones);
          layer(mha::view(x.data(), others, width), step[0], mha::into(mha::view(y.data(), others, width)), workspace);
        }
        auto step = cache.step(reader, chunk);
        layer(mha::view(x.data(), chunk, width), step[0], mha::into(mha::view(y.data(), chunk, width)), workspace);
      });
}

/// Tokens one by one with the cache, against the whole text again for each.
void generation(benchmark::State& state, const std::string& name) {
  constexpr int length = 1024, width = 512;
  Layer layer({.d_model = width, .num_heads = 8, .num_kv_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 4});
  const auto x = random_rows(length, width);
  mha::Tensor<float, 2> y(length, width);
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = length});
  const mha::SequenceId id = cache.add();
  mha::Workspace workspace;
  compare(
      state, name, "with the cache",
      [&] {
        cache.truncate(id, 0);
        for (int i = 0; i < length; ++i)
          layer.step(mha::view(&x(i, 0), 1, width), cache, mha::into(mha::view(&y(i, 0), 1, width)), workspace);
      },
      "computed again",
      [&] {
        for (int i = 0; i < length; ++i)
          layer(mha::view(x.data(), i + 1, width), mha::into(mha::view(y.data(), i + 1, width)), workspace);
      });
}

void print_table() {
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table table(
      {"case", "first", "second", "first ms", "second ms", "first / second", "allocations of the first"});
  for (const Row& r : rows_of_table)
    table.add({r.name, r.first, r.second, bench::number(r.first_ms, 3), bench::number(r.second_ms, 3),
               bench::number(r.ratio, 4), std::to_string(r.allocations)});
  table.print();
}

}  // namespace

int main(int argc, char** argv) {
  using State = benchmark::State;
  bench::add("books/contiguous/256", rounds,
             [](State& s) { books(s, "books, contiguous, 256 sequences", mha::Contiguous{.length = 1040}, 256); });
  bench::add("books/paged/256", rounds, [](State& s) {
    books(s, "books, paged, 256 sequences", mha::Paged{.pages = 256 * 65, .length = 1040, .page = 16}, 256);
  });
  for (const int length : {1024, 4096})
    bench::add("prompt/" + std::to_string(length), rounds,
               [length](State& s) { prompt(s, "prompt of " + std::to_string(length), length); });
  bench::add("mixture", rounds, [](State& s) { mixture(s, "31 tokens and 512 rows"); });
  bench::add("generation", 1, [](State& s) { generation(s, "1024 tokens"); });
  return bench::run_all(argc, argv, print_table);
}
