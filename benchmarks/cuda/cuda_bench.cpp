// SPDX-License-Identifier: Apache-2.0
// The backend Cuda: attention by length, head size, mask and scalar, dense products, the whole layer and short queries,
// as TFLOP/s or GB/s beside what the card can do at most, sampled in the same rounds. Every result is compared with
// rows by the formula in double before it is timed.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/layer/cost.hpp>

#include "computed.hpp"
#include "formula.hpp"
#include "measure.hpp"
#include "patterns.hpp"

namespace {

namespace gpu = bench::gpu;
using gpu::Row;
using mha::Index;

constexpr int rounds = 9;
constexpr Index q_heads = 64, kv_heads = 8;

template <class T> std::string name_of() {
  if constexpr (std::is_same_v<T, mha::bfloat16>) return "bfloat16";
  if constexpr (std::is_same_v<T, mha::half>) return "half";
  return std::is_same_v<T, float> ? "float" : "double";
}

/// Samples of one benchmark; repetitions add to them.
struct Samples {
  std::vector<std::string> cells;
  double work = 0;  ///< FLOP or bytes of a call
  std::vector<double> seconds, limit, called;

  double rate() const { return work / bench::median(seconds); }
  double percent() const {
    std::vector<double> each;
    for (std::size_t i = 0; i < seconds.size(); ++i) each.push_back(100 * work / seconds[i] / limit[i]);
    return bench::median(each);
  }
};
/// The rows of one table in the order they ran.
struct Family {
  std::vector<std::string> order;
  std::map<std::string, Samples> rows;

  Samples& row(const std::string& name, std::vector<std::string> cells) {
    const auto [found, is_new] = rows.try_emplace(name);
    if (is_new) order.push_back(name);
    found->second.cells = std::move(cells);
    return found->second;
  }
};
Family limits, attention, products, layers, short_queries;

/// Rounds of ours and of the limit; `unit` is 1e12 for TFLOP/s, 1e9 for GB/s.
template <class Run, class Limit>
void sample(benchmark::State& state, Samples& s, const Run& run, int calls, const Limit& limit, double unit,
            const std::function<void()>& also = {}) {
  for ([[maybe_unused]] auto _ : state) {
    if (also) also();
    s.seconds.push_back(gpu::seconds_per_call(1, run) / calls);
    s.limit.push_back(limit());
    state.SetIterationTime(s.seconds.back());
  }
  state.counters[unit == 1e9 ? "GBps" : "TFLOPs"] = s.rate() / unit;
  state.counters["limit"] = bench::median(s.limit) / unit;
  state.counters["percent_of_limit"] = s.percent();
}
template <class Run> auto repeated(const Run& run, int calls) {
  return [&run, calls] {
    for (int i = 0; i < calls; ++i) run();
  };
}

std::string wrong_by(double error) { return "the result is wrong by " + std::to_string(error); }

/// What attention in T is measured against: its tensor cores, or multiply-adds.
template <class T> double arithmetic_limit() {
  if constexpr (sizeof(T) == 2)
    return gpu::dense_flops<T>();
  else
    return gpu::multiply_add_flops<T>().flops;
}

/// The largest error of some rows of out, their queries at the end of the keys.
///
/// Shapes    q, out (B, Lq, Hq, D)  k, v (B, Lk, Hkv, D)
template <class T, class Mask, class Score>
double error_of_rows(const mha::TensorView<const T, 4>& out, const mha::TensorView<const T, 4>& q,
                     const mha::TensorView<const T, 4>& k, const mha::TensorView<const T, 4>& v, const Mask& mask,
                     const Score& score) {
  std::mt19937 gen(11);
  const auto below = [&](Index n) { return std::uniform_int_distribution<Index>(0, n - 1)(gen); };
  double worst = 0;
  for (int r = 0; r < 12; ++r) {
    Index b = below(q.batch()), i = below(q.length()), h = below(q.heads());
    if (r == 0) b = i = h = 0;
    if (r == 1) b = q.batch() - 1, i = q.length() - 1, h = q.heads() - 1;
    const Index g = h / (q.heads() / k.heads());
    const auto line = [&](const auto& t, Index at, Index head, Index rows) {
      return gpu::rows_to_host(t.pointer(b, at, head, 0), t.stride[1], rows, t.dim());
    };
    const Row expected = gpu::attention_row(line(q, i, h, 1), line(k, 0, g, k.length()), line(v, 0, g, v.length()),
                                            mask, score, b, h, k.length() - q.length() + i);
    const double error = gpu::relative_error(line(out, i, h, 1), expected);
    if (error > worst || std::isnan(error)) worst = error;  // a NaN is the worst, and stays
  }
  return worst;
}

/// A benchmark that ends with a sentence instead of the program.
template <class F> void attempt(benchmark::State& state, F&& f) {
  try {
    f();
  } catch (const std::exception& failure) {
    state.SkipWithError(failure.what());
  }
}

// ---- the card ----

void limit(benchmark::State& state, const std::string& what, const std::string& unit_name, double unit,
           const std::function<double()>& measured) {
  attempt(state, [&] {
    Samples& s = limits.row(what, {what, unit_name});
    for ([[maybe_unused]] auto _ : state) {
      s.limit.push_back(measured() / unit);
      state.SetIterationTime(1e-3);
    }
    state.counters["limit"] = bench::median(s.limit);
  });
}

// ---- attention ----

struct Shape {
  Index length, dim;
  std::string pattern;
};

template <class T> void forward(benchmark::State& state, const std::string& name, const Shape& shape) {
  attempt(state, [&] {
    const Index length = shape.length, dim = shape.dim;
    const std::string& pattern = shape.pattern;
    using Tensor = mha::DeviceTensor<T, 4>;
    Tensor q(1, length, q_heads, dim), k(1, length, kv_heads, dim), v(1, length, kv_heads, dim),
        out(1, length, q_heads, dim);
    unsigned seed = 7;
    for (Tensor* t : {&q, &k, &v}) gpu::fill_normal(t->data(), t->size(), seed++, 1, gpu::stream());
    gpu::poison(out);
    mha::cuda::Workspace workspace(gpu::stream());
    const auto run = [&] {
      gpu::attend<T>(pattern, out.view(), std::as_const(q).view(), std::as_const(k).view(), std::as_const(v).view(),
                     workspace);
    };
    run();
    const std::pair<double, double> found = gpu::with_pattern(pattern, [&](const auto& mask, const auto& score) {
      // The masks are alike in all heads, so that the cost of one tells that of all.
      const double flop =
          q_heads * mha::cost({.d_model = dim, .num_heads = 1}, 1, length, length, mask).attention_flop();
      const mha::CallShape all{1, q_heads, length, length, 0};
      return std::pair(flop,
                       error_of_rows<T>(std::as_const(out).view(), std::as_const(q).view(), std::as_const(k).view(),
                                        std::as_const(v).view(), mha::prepared(mask, all), mha::prepared(score, all)));
    });
    // A fast wrong answer is no result.
    if (!(found.second < gpu::tolerance<T>()) || !gpu::is_finite(out))
      return state.SkipWithError(wrong_by(found.second).c_str());
    Samples& s = attention.row(name, {name_of<T>(), std::to_string(dim), std::to_string(length), pattern});
    s.work = found.first;
    const int calls = gpu::calls_per_sample(run);
    sample(state, s, repeated(run, calls), calls, arithmetic_limit<T>, 1e12);
  });
}

// ---- short queries ----

struct Decode {
  Index batch, queries, keys;
  static constexpr Index dim = 128;
};

/// A CUDA graph of one call after another, each with keys and values of its own, as layers have them, so that they come
/// from memory and not from a cache.
template <class T> void decode(benchmark::State& state, const std::string& name, const Decode& shape) {
  attempt(state, [&] {
    const Index batch = shape.batch, queries = shape.queries, keys = shape.keys;
    constexpr Index dim = Decode::dim;
    const std::size_t each = static_cast<std::size_t>(batch) * static_cast<std::size_t>(keys) * kv_heads * dim;
    const double bytes = 2.0 * static_cast<double>(each * sizeof(T));
    const auto copies = static_cast<Index>(std::clamp(3e9 / bytes, 1.0, 32.0));
    mha::cuda::DeviceArray<T> all_k(each * static_cast<std::size_t>(copies)), all_v(all_k.size());
    mha::DeviceTensor<T, 4> q(batch, queries, q_heads, dim), out(batch, queries, q_heads, dim);
    gpu::fill_normal(q.data(), q.size(), 7, 1, gpu::stream());
    gpu::fill_normal(all_k.data(), all_k.size(), 8, 1, gpu::stream());
    gpu::fill_normal(all_v.data(), all_v.size(), 9, 1, gpu::stream());
    const auto of_layer = [&](const mha::cuda::DeviceArray<T>& from, Index layer) {
      return mha::view_blhd(from.data() + static_cast<std::size_t>(layer) * each, batch, keys, kv_heads, dim);
    };
    mha::cuda::Workspace workspace(gpu::stream());
    const auto call = [&](Index layer) {
      gpu::attend<T>("causal", out.view(), std::as_const(q).view(), of_layer(all_k, layer), of_layer(all_v, layer),
                     workspace);
    };
    const auto in_turn = [&] {
      for (Index layer = 0; layer < copies; ++layer) call(layer);
    };
    in_turn();  // the workspace grows before anything is recorded
    const gpu::Graph graph(in_turn);
    gpu::poison(out);
    graph.replay();
    const double error =
        error_of_rows<T>(std::as_const(out).view(), std::as_const(q).view(), of_layer(all_k, copies - 1),
                         of_layer(all_v, copies - 1), mha::Causal{}, mha::NoScore{});
    if (!(error < gpu::tolerance<T>()) || !gpu::is_finite(out)) return state.SkipWithError(wrong_by(error).c_str());
    Samples& s = short_queries.row(name, {name_of<T>(), std::to_string(batch), std::to_string(queries),
                                          std::to_string(keys), std::to_string(copies)});
    s.work = bytes;
    const auto replay = [&] { graph.replay(); };
    const int replays = gpu::calls_per_sample(replay);
    sample(state, s, repeated(replay, replays), replays * copies, gpu::read_bytes, 1e9,
           [&] { s.called.push_back(gpu::seconds_per_call(1, in_turn) / copies); });
    state.counters["us_in_graph"] = 1e6 * bench::median(s.seconds);
    state.counters["us_called"] = 1e6 * bench::median(s.called);
  });
}

// ---- dense products ----

template <class T>
void project(benchmark::State& state, const std::string& name, Index rows, Index depth, Index columns) {
  attempt(state, [&] {
    mha::Tensor<T, 2> w(depth, columns);
    std::mt19937 gen(5);
    std::uniform_real_distribution<float> uniform(-0.03f, 0.03f);
    for (T& x : w) x = static_cast<T>(uniform(gen));
    const auto projection = gpu::make_projection<T>(std::as_const(w).view());
    mha::DeviceTensor<T, 2> x(rows, depth), y(rows, columns);
    gpu::fill_normal(x.data(), x.size(), 3, 1, gpu::stream());
    gpu::poison(y);
    mha::cuda::Workspace workspace(gpu::stream());
    const auto run = [&] { projection->run(std::as_const(x).view(), y.view(), workspace); };
    run();
    double worst = 0;
    for (const Index i : {Index{0}, rows / 2, rows - 1}) {
      const Row from = gpu::rows_to_host(&x.view()(i, 0), depth, 1, depth);
      Row expected(static_cast<std::size_t>(columns), 0.0);
      for (Index e = 0; e < depth; ++e)
        for (Index n = 0; n < columns; ++n)
          expected[static_cast<std::size_t>(n)] += from[static_cast<std::size_t>(e)] * double(w(e, n));
      const double error = gpu::relative_error(gpu::rows_to_host(&y.view()(i, 0), columns, 1, columns), expected);
      if (error > worst || std::isnan(error)) worst = error;
    }
    if (!(worst < gpu::tolerance<T>()) || !gpu::is_finite(y)) return state.SkipWithError(wrong_by(worst).c_str());
    Samples& s = products.row(
        name, {name_of<T>(), std::to_string(rows) + " × " + std::to_string(depth) + " × " + std::to_string(columns)});
    s.work = 2.0 * rows * depth * columns;
    const int calls = gpu::calls_per_sample(run);
    sample(state, s, repeated(run, calls), calls, gpu::dense_flops<T>, 1e12);
  });
}

// ---- the layer ----

void layer(benchmark::State& state, const std::string& name, const mha::Config& config, Index length) {
  using T = mha::bfloat16;
  attempt(state, [&] {
    const auto made = gpu::make_layer(config);
    mha::DeviceTensor<T, 2> x(length, config.d_model), y(length, config.d_model);
    gpu::fill_normal(x.data(), x.size(), 3, 1, gpu::stream());
    gpu::poison(y);
    mha::cuda::Workspace workspace(gpu::stream());
    const auto run = [&] { made->run(x.view(), y.view(), workspace); };
    run();
    const mha::BorrowedWeights<T> w = made->weights();
    double worst = 0;
    for (const Index i : {Index{17}, length - 1}) {
      const Row expected =
          gpu::causal_layer_row(gpu::rows_to_host(x.data(), config.d_model, i + 1, config.d_model), config.d_model,
                                config.num_heads, config.num_kv_heads, w.query, w.key, w.value, w.output);
      const Row value = gpu::rows_to_host(&y.view()(i, 0), config.d_model, 1, config.d_model);
      const double error = gpu::relative_error(value, expected);
      if (error > worst || std::isnan(error)) worst = error;
    }
    constexpr double roundings = 3;  // Q, K, V, the heads and the result are stored in 16 bits
    if (!(worst < roundings * gpu::tolerance<T>()) || !gpu::is_finite(y))
      return state.SkipWithError(wrong_by(worst).c_str());
    Samples& s = layers.row(
        name, {std::to_string(config.d_model),
               std::to_string(config.num_heads) + "/" + std::to_string(config.num_kv_heads), std::to_string(length)});
    s.work = mha::cost<mha::GroupedQuery<mha::Dynamic>, T>(config, 1, length, length, mha::Causal{}).total_flop();
    const int calls = gpu::calls_per_sample(run);
    sample(state, s, repeated(run, calls), calls, gpu::dense_flops<T>, 1e12);
  });
}

// ---- tables ----

std::string in_unit(double value, double unit) { return bench::number(value / unit, value / unit < 100 ? 1 : 0); }

/// Rates beside the limit of the same rounds.
void print(const Family& family, std::vector<std::string> header, const char* unit_name, double unit) {
  const bool called = &family == &short_queries;
  for (const std::string& title : {called ? std::string("µs in a graph") : std::string("ms"), std::string(unit_name),
                                   "limit " + std::string(unit_name), std::string("% of limit")})
    header.push_back(title);
  if (called) header.emplace_back("µs called");
  bench::Table table(header);
  for (const std::string& name : family.order) {
    const Samples& s = family.rows.at(name);
    if (s.seconds.empty()) continue;
    std::vector<std::string> cells = s.cells;
    cells.push_back(bench::number((called ? 1e6 : 1e3) * bench::median(s.seconds), called ? 1 : 3));
    cells.push_back(in_unit(s.rate(), unit));
    cells.push_back(in_unit(bench::median(s.limit), unit));
    cells.push_back(bench::number(s.percent(), 0));
    if (called) cells.push_back(bench::number(1e6 * bench::median(s.called), 1));
    table.add(cells);
  }
  table.print();
}

void print_tables() {
  std::printf("\n%s\n", gpu::card().c_str());
  bench::Table of_card({"the card", "unit", "median", "highest"});
  for (const std::string& name : limits.order) {
    const Samples& s = limits.rows.at(name);
    if (s.limit.empty()) continue;
    const double highest = *std::max_element(s.limit.begin(), s.limit.end());
    of_card.add({s.cells[0], s.cells[1], bench::number(bench::median(s.limit), 1), bench::number(highest, 1)});
  }
  of_card.print();
  print(attention, {"attention, 64/8 heads", "D", "L", "mask or score"}, "TFLOP/s", 1e12);
  print(products, {"product", "M × K × N"}, "TFLOP/s", 1e12);
  print(layers, {"layer, bfloat16, causal: E", "heads", "L"}, "TFLOP/s", 1e12);
  print(short_queries, {"short queries, 64/8 heads, D 128", "B", "Lq", "Lk", "calls in the graph"}, "GB/s", 1e9);
}

// ---- the list ----

template <class F> void add(const std::string& name, F&& f) {
  benchmark::RegisterBenchmark(name.c_str(), std::forward<F>(f))
      ->Iterations(rounds)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void add_limits() {
  const auto one = [](const std::string& what, const std::string& unit_name, double unit, auto measured) {
    std::string name = "limit/" + what;
    std::replace(name.begin(), name.end(), ' ', '_');
    add(name, [=](auto& state) { limit(state, what, unit_name, unit, measured); });
  };
  one("dense bfloat16", "TFLOP/s", 1e12, gpu::dense_flops<mha::bfloat16>);
  one("dense half", "TFLOP/s", 1e12, gpu::dense_flops<mha::half>);
  one("dense float", "TFLOP/s", 1e12, gpu::dense_flops<float>);
  one("dense double", "TFLOP/s", 1e12, gpu::dense_flops<double>);
  one("multiply-adds float", "TFLOP/s", 1e12, [] { return gpu::multiply_add_flops<float>().flops; });
  one("multiply-adds double", "TFLOP/s", 1e12, [] { return gpu::multiply_add_flops<double>().flops; });
  one("clock under them", "MHz", 1, [] { return gpu::multiply_add_flops<float>().megahertz; });
  one("memory read", "GB/s", 1e9, gpu::read_bytes);
  one("memory copied", "GB/s", 1e9, gpu::copy_bytes);
}

template <class T> void add_attention(Index length, Index dim, const std::string& pattern) {
  std::string name =
      "forward/" + name_of<T>() + "/D:" + std::to_string(dim) + "/L:" + std::to_string(length) + "/" + pattern;
  std::replace(name.begin(), name.end(), ' ', '_');
  add(name, [=](auto& state) { forward<T>(state, name, {length, dim, pattern}); });
}
template <class T> void add_product(Index rows, Index depth, Index columns) {
  const std::string name = "projection/" + name_of<T>() + "/M:" + std::to_string(rows) + "/K:" + std::to_string(depth) +
                           "/N:" + std::to_string(columns);
  add(name, [=](auto& state) { project<T>(state, name, rows, depth, columns); });
}

void add_all() {
  add_limits();
  for (const Index dim : {64, 128, 256}) {
    for (const Index length : {512, 1024, 2048, 4096, 8192, 16384, 32768})
      for (const char* const pattern : {"full", "causal"}) add_attention<mha::bfloat16>(length, dim, pattern);
    for (const Index length : {2048, 8192})
      for (const char* const pattern : {"window 256", "functor", "softcap"})
        add_attention<mha::bfloat16>(length, dim, pattern);
    for (const char* const pattern : {"full", "causal"}) {
      add_attention<mha::half>(4096, dim, pattern);
      add_attention<float>(4096, dim, pattern);
      add_attention<double>(2048, dim, pattern);
    }
  }
  for (const Index rows : {512, 4096, 16384}) add_product<mha::bfloat16>(rows, 4096, 6144);
  add_product<mha::half>(4096, 4096, 6144);
  add_product<float>(4096, 4096, 6144);
  add_product<double>(4096, 4096, 6144);
  for (const Index length : {512, 2048, 8192}) {
    const mha::Config config{.d_model = 4096, .num_heads = 32, .num_kv_heads = 8};
    const std::string name = "layer/E:4096/L:" + std::to_string(length);
    add(name, [=](auto& state) { layer(state, name, config, length); });
  }
  for (const Index batch : {1, 8, 64, 256})
    for (const Index keys : {1024, 4096, 32768})
      for (const Index queries : {1, 4, 8}) {
        if (batch * keys > 64 * 32768) continue;
        const std::string name = "short/bfloat16/B:" + std::to_string(batch) + "/Lq:" + std::to_string(queries) +
                                 "/Lk:" + std::to_string(keys);
        add(name, [=](auto& state) { decode<mha::bfloat16>(state, name, {batch, queries, keys}); });
      }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (const mha::Support here = gpu::supported(); !here.ok) {
    std::printf("cuda_bench: nothing is measured: %s\n", here.reason.c_str());
    return 0;
  }
  add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  print_tables();
  return 0;
}
