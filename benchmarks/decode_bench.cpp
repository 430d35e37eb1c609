// SPDX-License-Identifier: Apache-2.0
// Few queries over many keys, the shape of decoding: bytes of keys and values per second against reading the same
// memory, sampled in turns.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "measure.hpp"
#include "program.hpp"

namespace {

constexpr int heads = 32, kv_heads = 8, dim = 128, rounds = 9;

/// Keys and values of one layer, (1, Lk, Hkv, D) seen in (B, H, L, D) memory as caches keep them.
template <class T> struct Inputs {
  mha::Tensor<T, 4> q, k, v, out;
  Inputs(int queries, int keys)
      : q(1, queries, heads, dim), k(1, kv_heads, keys, dim), v(1, kv_heads, keys, dim), out(1, queries, heads, dim) {
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    for (auto* t : {&q, &k, &v}) std::generate(t->begin(), t->end(), [&] { return static_cast<T>(normal(gen)); });
  }
  double bytes() const { return static_cast<double>((k.size() + v.size()) * sizeof(T)); }
};

struct Samples {
  double bytes = 0, flop = 0;
  std::vector<double> ours, read;
};
std::map<std::string, Samples> results;
std::vector<std::string> order;

template <class T, class Threads> void decode(benchmark::State& state, const std::string& name, int queries, int keys) {
  Inputs<T> in(queries, keys);
  mha::Workspace workspace;
  const auto k = mha::view_bhld(in.k.data(), 1, kv_heads, keys, dim);
  const auto v = mha::view_bhld(in.v.data(), 1, kv_heads, keys, dim);
  const auto ours = [&] { mha::attention_into<mha::CpuWith<Threads>>(in.out, in.q, k, v, mha::Causal{}, workspace); };
  const auto read = [&] {
    for (const auto* t : {&in.k, &in.v})
      bench::read_all<Threads>(reinterpret_cast<const float*>(t->data()), t->size() * sizeof(T) / sizeof(float));
  };
  if (!results.count(name)) order.push_back(name);
  Samples& samples = results[name];
  samples.bytes = in.bytes();
  samples.flop = 4.0 * heads * dim * queries * (keys - 0.5 * (queries - 1));
  const bench::Clock clock = bench::clock_of<Threads>();
  const int our_calls = bench::calls_per_sample(clock, ours);
  const int read_calls = bench::calls_per_sample(clock, read);
  for ([[maybe_unused]] auto _ : state) {
    samples.ours.push_back(bench::seconds_per_call(clock, our_calls, ours));
    samples.read.push_back(bench::seconds_per_call(clock, read_calls, read));
    state.SetIterationTime(samples.ours.back());
  }
  state.counters["GBps"] = 1e-9 * in.bytes() / bench::median(samples.ours);
  state.counters["of_read"] = bench::median_ratio(samples.read, samples.ours);
}

void print_table() {
  std::printf("\n%s\n%d query heads, %d key/value heads, head size %d, causal\n", bench::machine().c_str(), heads,
              kv_heads, dim);
  bench::Table table({"case", "ms", "ours GB/s", "reading GB/s", "of reading", "GFLOP/s"});
  for (const std::string& name : order) {
    const Samples& s = results.at(name);
    if (s.ours.empty()) continue;
    const double seconds = bench::median(s.ours);
    table.add({name, bench::number(1e3 * seconds, 3), bench::number(1e-9 * s.bytes / seconds, 1),
               bench::number(1e-9 * s.bytes / bench::median(s.read), 1),
               bench::number(100 * bench::median_ratio(s.read, s.ours), 0) + " %",
               bench::number(1e-9 * s.flop / seconds, 1)});
  }
  table.print();
}

template <class T, class Threads> void add(const char* scalar, const char* threads, int queries, int keys) {
  const std::string name =
      std::string(scalar) + "/" + threads + "/Lq:" + std::to_string(queries) + "/Lk:" + std::to_string(keys);
  bench::add(name, rounds, decode<T, Threads>, name, queries, keys);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int keys : {1024, 4096, 32768})
    for (const int queries : {1, 4, 8}) {
      add<float, mha::Serial>("f32", "one", queries, keys);
      add<float, mha::ThreadPool>("f32", "all", queries, keys);
      add<mha::bfloat16, mha::Serial>("bf16", "one", queries, keys);
      add<mha::bfloat16, mha::ThreadPool>("bf16", "all", queries, keys);
    }
  return bench::run_all(argc, argv, print_table);
}
