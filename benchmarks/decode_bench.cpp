// SPDX-License-Identifier: Apache-2.0
// Few queries over many keys, the shape of decoding: bytes of keys and values per second against the lower of reading
// the same memory and the multiply-add peak, on one thread and on all, and against one query row. Sampled in turns.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "measure.hpp"
#include "program.hpp"

namespace {

constexpr int rounds = 9;

struct Shape {
  int heads, kv_heads, queries, keys;
  int dim = 128, value_dim = 128;
  bool values_in_keys = false;  ///< the first value_dim numbers of a key are its value
};
/// DeepSeek's latent rows, which all heads share as keys and as values.
constexpr Shape latent(int heads, int queries, int keys) { return {heads, 1, queries, keys, 576, 512, true}; }

/// Queries of T over keys and values of one layer, stored as S: (1, Lk, Hkv, D) seen in (B, H, L, D) memory as caches
/// keep them.
template <class T, class S> struct Inputs {
  mha::Tensor<T, 4> q, out;
  mha::Tensor<S, 4> k, v;
  explicit Inputs(const Shape& s)
      : q(1, s.queries, s.heads, s.dim),
        out(1, s.queries, s.heads, s.value_dim),
        k(1, s.kv_heads, s.keys, mha::row_elements<S>(s.dim)),
        v(1, s.kv_heads, s.values_in_keys ? 0 : s.keys, mha::row_elements<S>(s.value_dim)) {
    std::uint32_t number = 1;
    const auto next = [&number] {
      number = number * 1664525u + 1013904223u;
      return static_cast<float>(number >> 8) * 0x1p-23f - 1;
    };
    std::generate(q.begin(), q.end(), [&] { return static_cast<T>(next()); });
    std::vector<float> row;
    for (auto* t : {&k, &v}) {
      const mha::Index width = t->extent(3);
      row.resize(static_cast<std::size_t>(width - mha::row_lead<S>));
      for (S* to = t->begin(); to != t->end(); to += width) {
        std::generate(row.begin(), row.end(), next);
        if constexpr (std::is_same_v<S, mha::scaled_int8>)
          mha::quantize_row(row.data(), width - mha::row_lead<S>, to + mha::row_lead<S>);
        else
          std::transform(row.begin(), row.end(), to, [](float x) { return static_cast<S>(x); });
      }
    }
  }
};

/// Seconds of a round: one row, all rows, and what they take at least.
struct Samples {
  std::vector<double> one_row, ours, read, limit;
};
struct Result {
  double bytes = 0, flop = 0;
  std::array<Samples, 2> samples{};  // one thread, all
};
std::map<std::string, Result> results;
std::vector<std::string> order;

/// A round on some threads; run once before it is sampled.
template <class T, class S, class Threads> class Round {
 public:
  Round(Inputs<T, S>& in, const Shape& shape, const Result& result) : in_(in), shape_(shape), flop_(result.flop) {
    our_calls_ = bench::calls_per_sample(clock_, [&] { attend(shape_.queries); });
    one_calls_ = bench::calls_per_sample(clock_, [&] { attend(1); });
    read_calls_ = bench::calls_per_sample(clock_, [&] { read(); });
  }
  void sample(Samples& to) {
    to.one_row.push_back(bench::seconds_per_call(clock_, one_calls_, [&] { attend(1); }));
    to.ours.push_back(shape_.queries == 1 ? to.one_row.back() : bench::seconds_per_call(clock_, our_calls_, [&] {
      attend(shape_.queries);
    }));
    to.read.push_back(bench::seconds_per_call(clock_, read_calls_, [&] { read(); }));
    to.limit.push_back(std::max(to.read.back(), 1e-9 * flop_ / bench::peak_gflops_of(Threads{}.workers())));
  }

 private:
  void attend(int queries) {
    const auto part = [&](const mha::TensorView<T, 4>& rows) {
      auto last = rows;
      last.extent[1] = queries;
      return last;
    };
    const auto numbers = [&](const mha::Tensor<S, 4>& rows, mha::Index dim) {
      auto view = mha::view_bhld(rows.data() + mha::row_lead<S>, 1, shape_.kv_heads, shape_.keys, rows.extent(3));
      view.extent[3] = dim;
      return view;
    };
    const mha::ContiguousKv<S> kv{numbers(in_.k, shape_.dim),
                                  numbers(shape_.values_in_keys ? in_.k : in_.v, shape_.value_dim)};
    mha::attention_into<mha::CpuWith<Threads>>(part(in_.out.view()), part(in_.q.view()), kv, mha::Causal{}, workspace_);
  }
  void read() {
    for (const auto* t : {&in_.k, &in_.v})
      bench::read_all<Threads>(reinterpret_cast<const float*>(t->data()), t->size() * sizeof(S) / sizeof(float));
  }

  Inputs<T, S>& in_;
  Shape shape_;
  double flop_;
  int our_calls_ = 1, one_calls_ = 1, read_calls_ = 1;
  mha::Workspace workspace_;
  static constexpr bench::Clock clock_ = bench::clock_of<Threads>();
};

template <class T, class S> void decode(benchmark::State& state, const std::string& name, const Shape& s) {
  Inputs<T, S> in(s);
  if (!results.count(name)) order.push_back(name);
  Result& result = results[name];
  result.bytes = static_cast<double>((in.k.size() + in.v.size()) * sizeof(S));
  result.flop = 2.0 * s.heads * (s.dim + s.value_dim) * s.queries * (s.keys - 0.5 * (s.queries - 1));
  Round<T, S, mha::Serial> one(in, s, result);
  Round<T, S, mha::ThreadPool> all(in, s, result);
  for ([[maybe_unused]] auto _ : state) {
    one.sample(result.samples[0]);
    all.sample(result.samples[1]);
    state.SetIterationTime(result.samples[0].ours.back());
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string threads = i == 0 ? "one" : "all";
    const Samples& r = result.samples[i];
    state.counters["GBps_" + threads] = 1e-9 * result.bytes / bench::median(r.ours);
    state.counters["of_limit_" + threads] = bench::median_ratio(r.limit, r.ours);
  }
}

void print_table() {
  std::printf("\n%s\nhead size 128, of latent rows 576 with values of 512 in them; causal\n", bench::machine().c_str());
  bench::Table table({"case", "threads", "ms", "ours GB/s", "reading GB/s", "of reading", "GFLOP/s", "of the limit",
                      "of the one-row rate in bytes", "speed-up"});
  const auto percent = [](double ratio) { return bench::number(100 * ratio, 0) + " %"; };
  for (const std::string& name : order) {
    const Result& result = results.at(name);
    for (std::size_t i = 0; i < 2; ++i) {
      const Samples& s = result.samples[i];
      if (s.ours.empty()) continue;
      const double seconds = bench::median(s.ours);
      table.add({name, i == 0 ? "1" : std::to_string(mha::ThreadPool{}.workers()), bench::number(1e3 * seconds, 3),
                 bench::number(1e-9 * result.bytes / seconds, 1),
                 bench::number(1e-9 * result.bytes / bench::median(s.read), 1),
                 percent(bench::median_ratio(s.read, s.ours)), bench::number(1e-9 * result.flop / seconds, 1),
                 percent(bench::median_ratio(s.limit, s.ours)), percent(bench::median_ratio(s.one_row, s.ours)),
                 i == 0 ? "" : bench::number(bench::median_ratio(result.samples[0].ours, s.ours), 2) + "×"});
    }
  }
  table.print();
}

template <class T, class S = T> void add(const char* scalar, const Shape& s) {
  const std::string name = std::string(scalar) + (s.values_in_keys ? "/latent" : "") +
                           "/heads:" + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) +
                           "/Lk:" + std::to_string(s.keys) + "/Lq:" + std::to_string(s.queries);
  bench::add(name, rounds, decode<T, S>, name, s);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int keys : {4096, 32768})
    for (const int kv_heads : {32, 8, 1}) {
      if (kv_heads == 32 && keys > 4096) continue;  // 1 GiB
      for (const int queries : {1, 2, 4, 8, 16}) {
        add<float>("f32", {32, kv_heads, queries, keys});
        add<mha::bfloat16>("bf16", {32, kv_heads, queries, keys});
        add<float, mha::scaled_int8>("int8", {32, kv_heads, queries, keys});
      }
    }
  for (const int keys : {4096, 32768})
    for (const int heads : {16, 128}) {
      add<float>("f32", latent(heads, 1, keys));
      add<mha::bfloat16>("bf16", latent(heads, 1, keys));
      add<float, mha::scaled_int8>("int8", latent(heads, 1, keys));
    }
  return bench::run_all(argc, argv, print_table);
}
