// SPDX-License-Identifier: Apache-2.0
// One query over many keys of a cache on the matrix unit, the shape of decoding: a step appends a row and attends.
// Bytes of keys and values per second beside the lower of reading the same memory and the unit's peak, beside Cpu on
// the same cache, and beside the same call without a cache, which packs all keys and values anew. Sampled in turns.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "counting_allocator.hpp"
#include "measure.hpp"
#include "program.hpp"
#include "unit_peak.hpp"

namespace {

using mha::bfloat16;
constexpr int dim = 128, rounds = 15, room = 512;
template <class Threads> using Systolic = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, Threads>;

struct Samples {
  double bytes = 0;
  std::size_t allocations = 0;
  std::vector<double> ours, cpu, uncached, read, limit;
};
std::map<std::string, Samples> results;
std::vector<std::string> order;

template <class Tensor> void fill(Tensor& to) {
  std::mt19937 gen(7);
  std::normal_distribution<float> normal;
  std::generate(to.begin(), to.end(), [&] { return bfloat16(normal(gen)); });
}

/// Attention of one layer's steps, without its projections.
template <class Threads>
void decode(benchmark::State& state, const std::string& name, int heads, int kv_heads, int keys) {
  const mha::MultiHeadAttention<bfloat16, Systolic<Threads>, mha::GroupedQuery<mha::Dynamic>, mha::Causal> layer(
      {.d_model = 64, .num_heads = heads, .num_kv_heads = kv_heads, .head_dim = dim});
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = keys + room});
  const mha::SequenceId id = cache.add();
  mha::Tensor<bfloat16, 3> all(keys - 1, kv_heads, dim), row(1, kv_heads, dim);
  mha::Tensor<bfloat16, 4> q(1, 1, heads, dim), out(1, 1, heads, dim);
  fill(all);
  fill(row);
  fill(q);
  {
    auto step = cache.step(id, keys - 1);
    step.append(0, all, all);
    step.commit();
  }
  mha::Workspace workspace;
  const auto one = [&](auto backend) {
    using Backend = decltype(backend);
    if (cache.length(id) == keys + room) cache.truncate(id, keys - 1);
    auto step = cache.step(1);
    step.append(0, row, row);
    mha::attention_into<Backend>(out, q, step.source(0), mha::Causal{}, workspace);
    step.commit();
  };
  const auto ours = [&] { one(Systolic<Threads>{}); };
  const auto cpu = [&] { one(mha::CpuWith<Threads>{}); };
  mha::Tensor<bfloat16, 4> k(1, kv_heads, keys, dim);  // in memory as the cache has them
  fill(k);
  const auto v = k;
  const auto uncached = [&] {
    const auto given = [&](const auto& t) { return mha::view_bhld(t.data(), 1, kv_heads, keys, dim); };
    mha::attention_into<Systolic<Threads>>(out, q, given(k), given(v), mha::Causal{}, workspace);
  };
  const std::size_t count = std::size_t(keys) * std::size_t(kv_heads) * dim;  // numbers of 16 bits, twice
  const std::vector<float> memory(count);
  const auto read = [&] { bench::read_all<Threads>(memory.data(), count); };

  if (!results.count(name)) order.push_back(name);
  Samples& samples = results[name];
  samples.bytes = 4.0 * static_cast<double>(count);
  const bench::Clock clock = bench::clock_of<Threads>();
  const int our_calls = bench::calls_per_sample(clock, ours), cpu_calls = bench::calls_per_sample(clock, cpu),
            uncached_calls = bench::calls_per_sample(clock, uncached),
            read_calls = bench::calls_per_sample(clock, read);
  const double gflop = 4e-9 * keys * heads * dim;
  const auto unit = mha::detail::systolic::attention_unit<mha::AmxArray>();
  samples.allocations = bench::footprint(ours).count;
  for ([[maybe_unused]] auto _ : state) {
    samples.ours.push_back(bench::seconds_per_call(clock, our_calls, ours));
    samples.cpu.push_back(bench::seconds_per_call(clock, cpu_calls, cpu));
    samples.uncached.push_back(bench::seconds_per_call(clock, uncached_calls, uncached));
    samples.read.push_back(bench::seconds_per_call(clock, read_calls, read));
    samples.limit.push_back(
        std::max(samples.read.back(), gflop / bench::unit_peak_gflops_of(unit, Threads{}.workers())));
    state.SetIterationTime(samples.ours.back());
  }
}

void print_table() {
  std::printf("\n%s; matrix unit %s\nbfloat16, head size %d\n", bench::machine().c_str(),
              to_string(mha::current_unit()), dim);
  bench::Table table(
      {"case", "ms", "GB/s", "of reading", "of the limit", "against Cpu", "against no cache", "allocations"});
  for (const std::string& name : order) {
    const Samples& s = results.at(name);
    if (s.ours.empty()) continue;
    const double seconds = bench::median(s.ours);
    table.add({name, bench::number(1e3 * seconds, 3), bench::number(1e-9 * s.bytes / seconds, 1),
               bench::number(100 * bench::median_ratio(s.read, s.ours), 0) + " %",
               bench::number(100 * bench::median_ratio(s.limit, s.ours), 0) + " %",
               bench::number(bench::median_ratio(s.cpu, s.ours), 2) + "x",
               bench::number(bench::median_ratio(s.uncached, s.ours), 2) + "x", std::to_string(s.allocations)});
  }
  table.print();
}

template <class Threads> void add(const char* threads, int heads, int kv_heads, int keys) {
  const std::string name =
      "heads:" + std::to_string(heads) + "/" + std::to_string(kv_heads) + "/Lk:" + std::to_string(keys) + "/" + threads;
  bench::add(name, rounds, decode<Threads>, name, heads, kv_heads, keys);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int keys : {4096, 32768})
    for (const auto& [heads, kv_heads] : {std::pair{32, 8}, std::pair{32, 1}, std::pair{8, 1}, std::pair{1, 1}}) {
      add<mha::Serial>("one", heads, kv_heads, keys);
      add<mha::ThreadPool>("all", heads, kv_heads, keys);
    }
  return bench::run_all(argc, argv, print_table);
}
