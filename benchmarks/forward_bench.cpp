// SPDX-License-Identifier: Apache-2.0
// attention() by length, head size, mask, scalar and threads, as GFLOP/s of visible work and percent of the peak.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "measure.hpp"
#include "patterns.hpp"

namespace {

constexpr int heads = 2;

struct Shape {
  int length, dim;
  std::string pattern, scalar;
  int threads;

  std::string name() const {
    std::string p = pattern;
    std::replace(p.begin(), p.end(), ' ', '_');
    return "forward/" + scalar + "/D:" + std::to_string(dim) + "/L:" + std::to_string(length) + "/" + p +
           "/threads:" + std::to_string(threads);
  }
};

/// Samples of one shape; repetitions of the benchmark add to them.
struct Samples {
  double gflop = 0;
  std::vector<double> seconds, peak;

  double rate() const { return gflop / bench::median(seconds); }
  double percent() const {
    std::vector<double> each;
    for (std::size_t i = 0; i < seconds.size(); ++i) each.push_back(100 * gflop / seconds[i] / peak[i]);
    return bench::median(each);
  }
};
std::map<std::string, Samples> measured;
std::vector<Shape> order;  // as they ran

template <class T> void forward(benchmark::State& state, const Shape& shape) {
  using Tensor = mha::Tensor<T, 4>;
  Tensor q(1, shape.length, heads, shape.dim), k(q), v(q), out(q);
  std::mt19937 gen(7);
  std::normal_distribution<float> normal;
  for (Tensor* t : {&q, &k, &v}) std::generate(t->begin(), t->end(), [&] { return T(normal(gen)); });
  bench::OneOrAll::all = shape.threads > 1;
  const bench::Clock clock = shape.threads > 1 ? bench::wall_seconds : bench::thread_seconds;
  mha::Workspace workspace;

  bench::with_pattern(shape.pattern, shape.length, [&](const auto& mask, const auto& score) {
    const auto run = [&] { mha::attention_into<mha::CpuWith<bench::OneOrAll>>(out, q, k, v, mask, score, workspace); };
    run();
    // A fast wrong answer is no result.
    if (!(bench::error_of_rows<T>(q.view(), k.view(), v.view(), out.view(), mask, score) < bench::tolerance<T>()))
      return state.SkipWithError("the result is wrong");

    const auto [found, is_new] = measured.try_emplace(shape.name());
    if (is_new) order.push_back(shape);
    Samples& samples = found->second;
    const double pairs = mha::visible_pairs(mask, {1, heads, shape.length, shape.length, 0});
    samples.gflop = 4e-9 * pairs * heads * shape.dim;
    const int calls = bench::calls_per_sample(clock, run);
    for ([[maybe_unused]] auto _ : state) {
      samples.seconds.push_back(bench::seconds_per_call(clock, calls, run));
      samples.peak.push_back(bench::peak_gflops_of<mha::Accumulator<T>>(shape.threads));
      state.SetIterationTime(samples.seconds.back());
    }
    state.counters["GFLOPs"] = samples.rate();
    state.counters["peak_GFLOPs"] = bench::median(samples.peak);
    state.counters["percent_of_peak"] = samples.percent();
  });
}

void run(benchmark::State& state, const Shape& shape) {
  if (shape.scalar == "double") return forward<double>(state, shape);
  if (shape.scalar == "bfloat16") return forward<mha::bfloat16>(state, shape);
  if (shape.scalar == "half") return forward<mha::half>(state, shape);
  return forward<float>(state, shape);
}

/// Those of the grid that run when no filter asks for others.
bool by_default(const Shape& s) {
  const bool plain = s.pattern == "full" || s.pattern == "causal", usual = s.dim == 64 || s.dim == 128;
  if (s.scalar == "float" && s.threads == 1) return usual ? s.length < 8192 || plain : plain;
  return usual && plain && (s.length == 2048 || (s.scalar == "float" && s.length == 512));
}

std::vector<Shape> grid() {
  std::vector<Shape> shapes;
  std::vector<int> threads{1};
  if (mha::ThreadPool{}.workers() > 1) threads.push_back(mha::ThreadPool{}.workers());
  for (const int n : threads)
    for (const char* const scalar : {"float", "double", "bfloat16", "half"})
      for (const int dim : {32, 64, 80, 96, 128, 256})
        for (const int length : {512, 2048, 8192})
          for (const char* const pattern : bench::patterns)
            if (dim == 64 || dim == 128 || length == 2048) shapes.push_back({length, dim, pattern, scalar, n});
  return shapes;
}

void print_table() {
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table table({"scalar", "D", "L", "mask or score", "threads", "GFLOP/s", "% of peak", "peak GFLOP/s"});
  for (const Shape& shape : order) {
    const Samples& s = measured.at(shape.name());
    if (s.seconds.empty()) continue;
    table.add({shape.scalar, std::to_string(shape.dim), std::to_string(shape.length), shape.pattern,
               std::to_string(shape.threads), bench::number(s.rate(), 1), bench::number(s.percent(), 0),
               bench::number(bench::median(s.peak), 0)});
  }
  table.print();
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const bool asked = !benchmark::GetBenchmarkFilter().empty();
  for (const Shape& shape : grid())
    if (asked || by_default(shape))
      benchmark::RegisterBenchmark(shape.name().c_str(), run, shape)
          ->Iterations(shape.length == 8192 ? 5 : 9)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  print_table();
  return 0;
}
