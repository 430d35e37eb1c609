// SPDX-License-Identifier: Apache-2.0
// One query over many keys of a cache on the matrix unit, the shape of decoding: a step appends a row and attends.
// Bytes of keys and values per second beside the lower of reading the same memory and the unit's peak, beside Cpu on
// the same cache, beside a Contiguous cache of the same keys where it is another, and beside the same call without a
// cache, which packs all keys and values anew. Sampled in turns.
#include <algorithm>
#include <concepts>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
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
  std::vector<double> ours, cpu, contiguous, uncached, read, limit;
};
std::map<std::string, Samples> results;
std::vector<std::string> order;

template <class Tensor> void fill(Tensor& to) {
  std::mt19937 gen(7);
  std::normal_distribution<float> normal;
  std::generate(to.begin(), to.end(), [&] { return bfloat16(normal(gen)); });
}

template <class Storage> Storage of_keys(int keys);
template <> mha::Contiguous of_keys(int keys) { return {.length = keys + room}; }
template <> mha::Paged of_keys(int keys) { return {.pages = (keys + room) / 64, .length = keys + room}; }
template <> mha::Ring of_keys(int keys) { return {.left = keys - 1, .rows = room}; }

/// Attention of one layer's steps, without its projections; a Ring has turned, and its window shows as many keys.
template <class Threads, class Storage> class Decoding {
  using Mask = std::conditional_t<std::same_as<Storage, mha::Ring>, mha::SlidingWindow, mha::Causal>;
  using Layer = mha::MultiHeadAttention<bfloat16, Systolic<Threads>, mha::GroupedQuery<mha::Dynamic>, mha::Causal>;

 public:
  Decoding(int heads, int kv_heads, int keys)
      : keys_(keys),
        layer_({.d_model = 64, .num_heads = heads, .num_kv_heads = kv_heads, .head_dim = dim}),
        cache_(mha::make_cache(layer_, of_keys<Storage>(keys))),
        row_(1, kv_heads, dim),
        q_(1, 1, heads, dim),
        out_(1, 1, heads, dim),
        mask_(mask_of(keys)) {
    cache_.add();
    fill(row_);
    fill(q_);
    mha::Tensor<bfloat16, 3> all(room, kv_heads, dim);
    fill(all);
    const int positions = std::same_as<Storage, mha::Ring> ? 2 * keys + 77 : keys - 1;
    for (int done = 0; done < positions;) {
      const int rows = std::min(room, positions - done);
      const auto some = mha::view(all.data(), rows, kv_heads, dim);
      auto step = cache_.step(rows);
      step.append(0, some, some);
      step.commit();
      done += rows;
    }
  }

  template <class Backend> void step() {
    const mha::SequenceId id = cache_.ids()[0];
    if constexpr (!std::same_as<Storage, mha::Ring>)
      if (cache_.length(id) == keys_ + room) cache_.truncate(id, keys_ - 1);
    auto step = cache_.step(1);
    step.append(0, row_, row_);
    mha::attention_into<Backend>(out_, q_, step.source(0), mask_, workspace_);
    step.commit();
  }

 private:
  static Mask mask_of(int keys) {
    if constexpr (std::same_as<Storage, mha::Ring>)
      return {.left = keys - 1};
    else
      return {};
  }

  int keys_;
  Layer layer_;
  decltype(mha::make_cache(std::declval<const Layer&>(), std::declval<const Storage&>())) cache_;
  mha::Tensor<bfloat16, 3> row_;
  mha::Tensor<bfloat16, 4> q_, out_;
  Mask mask_;
  mha::Workspace workspace_;
};

template <class Threads, class Storage>
void decode(benchmark::State& state, const std::string& name, int heads, int kv_heads, int keys) {
  constexpr bool another = !std::same_as<Storage, mha::Contiguous>;
  Decoding<Threads, Storage> decoding(heads, kv_heads, keys);
  std::optional<Decoding<Threads, mha::Contiguous>> in_one_piece;
  if (another) in_one_piece.emplace(heads, kv_heads, keys);
  const auto ours = [&] { decoding.template step<Systolic<Threads>>(); };
  const auto cpu = [&] { decoding.template step<mha::CpuWith<Threads>>(); };
  const auto contiguous = [&] { in_one_piece->template step<Systolic<Threads>>(); };
  mha::Workspace workspace;
  mha::Tensor<bfloat16, 4> q(1, 1, heads, dim), out(1, 1, heads, dim);
  fill(q);
  mha::Tensor<bfloat16, 4> k(1, kv_heads, keys, dim);  // in memory as the cache has them
  fill(k);
  const auto v = k;
  const auto uncached = [&] {
    const auto given = [&](const auto& t) { return mha::view_bhld(t.data(), 1, kv_heads, keys, dim); };
    mha::attention_into<Systolic<Threads>>(out, q, given(k), given(v), mha::Causal{}, workspace);
  };
  const std::size_t count = std::size_t(keys) * std::size_t(kv_heads) * dim;  // numbers of 16 bits, twice
  const auto memory = bench::numbers_to_read(count);
  const auto read = [&] { bench::read_all<Threads>(memory.data(), count); };

  if (!results.count(name)) order.push_back(name);
  Samples& samples = results[name];
  samples.bytes = 4.0 * static_cast<double>(count);
  const bench::Clock clock = bench::clock_of<Threads>();
  const int our_calls = bench::calls_per_sample(clock, ours), cpu_calls = bench::calls_per_sample(clock, cpu),
            contiguous_calls = another ? bench::calls_per_sample(clock, contiguous) : 0,
            uncached_calls = bench::calls_per_sample(clock, uncached),
            read_calls = bench::calls_per_sample(clock, read);
  const double gflop = 4e-9 * keys * heads * dim;
  const auto unit = mha::detail::systolic::attention_unit<mha::AmxArray>();
  samples.allocations = bench::footprint(ours).count;
  for ([[maybe_unused]] auto _ : state) {
    samples.ours.push_back(bench::seconds_per_call(clock, our_calls, ours));
    if (another) samples.contiguous.push_back(bench::seconds_per_call(clock, contiguous_calls, contiguous));
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
  bench::Table table({"case", "ms", "GB/s", "of reading", "of the limit", "against Cpu", "against Contiguous",
                      "against no cache", "allocations"});
  for (const std::string& name : order) {
    const Samples& s = results.at(name);
    if (s.ours.empty()) continue;
    const double seconds = bench::median(s.ours);
    table.add({name, bench::number(1e3 * seconds, 3), bench::number(1e-9 * s.bytes / seconds, 1),
               bench::number(100 * bench::median_ratio(s.read, s.ours), 0) + " %",
               bench::number(100 * bench::median_ratio(s.limit, s.ours), 0) + " %",
               bench::number(bench::median_ratio(s.cpu, s.ours), 2) + "x",
               s.contiguous.empty() ? "" : bench::number(bench::median_ratio(s.contiguous, s.ours), 2) + "x",
               bench::number(bench::median_ratio(s.uncached, s.ours), 2) + "x", std::to_string(s.allocations)});
  }
  table.print();
}

template <class Threads, class Storage>
void add(const char* storage, const char* threads, int heads, int kv_heads, int keys) {
  const std::string name = "heads:" + std::to_string(heads) + "/" + std::to_string(kv_heads) +
                           "/Lk:" + std::to_string(keys) + storage + "/" + threads;
  bench::add(name, rounds, decode<Threads, Storage>, name, heads, kv_heads, keys);
}
template <class Storage> void add(const char* storage, int heads, int kv_heads, int keys) {
  add<mha::Serial, Storage>(storage, "one", heads, kv_heads, keys);
  add<mha::ThreadPool, Storage>(storage, "all", heads, kv_heads, keys);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int keys : {4096, 32768})
    for (const auto& [heads, kv_heads] : {std::pair{32, 8}, std::pair{32, 1}, std::pair{8, 1}, std::pair{1, 1}}) {
      add<mha::Contiguous>("", heads, kv_heads, keys);
      if (heads < 32) continue;
      add<mha::Paged>("/pages:64", heads, kv_heads, keys);
      add<mha::Ring>("/ring", heads, kv_heads, keys);
    }
  return bench::run_all(argc, argv, print_table);
}
