// SPDX-License-Identifier: Apache-2.0
// Attention on the matrix unit: GFLOP/s of visible work, the share of the unit's own peak on random numbers, and the
// ratio to Cpu in float32 on the same thread, all in one round.
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "measure.hpp"
#include "unit_peak.hpp"

namespace {

template <class Threads> using Systolic = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, Threads>;
constexpr int heads = 4, rounds = 9;

template <class T> struct Inputs {
  mha::Tensor<T, 4> q, k, v, out;
  Inputs(int length, int dim)
      : q(1, length, heads, dim), k(1, length, heads, dim), v(1, length, heads, dim), out(1, length, heads, dim) {
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    for (auto* t : {&q, &k, &v})
      for (T& x : *t) x = T(normal(gen));
  }
};

struct Samples {
  int length = 0, dim = 0;
  bool causal = false;
  std::vector<double> one, all, cpu, peak;
};
std::map<std::string, Samples> table;
std::vector<std::string> order;

double visible_flop(const Samples& s) {
  const double pairs = s.causal ? 0.5 * s.length * (s.length + 1.0) : double(s.length) * s.length;
  return 4 * pairs * s.dim * heads;
}

template <class Backend, class T> void run(Inputs<T>& in, bool causal, mha::Workspace& workspace) {
  if (causal)
    mha::attention_into<Backend>(in.out, in.q, in.k, in.v, mha::Causal{}, workspace);
  else
    mha::attention_into<Backend>(in.out, in.q, in.k, in.v, workspace);
}

void attention(benchmark::State& state, int length, int dim, bool causal) {
  const std::string key = std::to_string(dim) + "/" + std::to_string(length) + (causal ? "/causal" : "/full");
  const auto [found, is_new] = table.try_emplace(key);
  if (is_new) order.push_back(key);
  Samples& s = found->second;
  s.length = length;
  s.dim = dim;
  s.causal = causal;

  Inputs<mha::bfloat16> in(length, dim);
  Inputs<float> wide(length, dim);
  mha::Workspace workspace;
  const auto one = [&] { run<Systolic<mha::Serial>>(in, causal, workspace); };
  const auto all = [&] { run<Systolic<mha::ThreadPool>>(in, causal, workspace); };
  const auto cpu = [&] { run<mha::CpuWith<mha::Serial>>(wide, causal, workspace); };
  one();
  cpu();
  // A fast wrong answer is no result.
  for (std::size_t i = 0; i < in.out.size(); ++i)
    if (!(std::abs(float(in.out.data()[i]) - wide.out.data()[i]) < 0.1f)) {
      state.SkipWithError("the results differ");
      return;
    }
  const auto unit = mha::detail::systolic::attention_unit<mha::AmxArray>();
  const int one_calls = bench::calls_per_sample(bench::thread_seconds, one);
  const int all_calls = bench::calls_per_sample(bench::wall_seconds, all);
  for ([[maybe_unused]] auto _ : state) {
    s.one.push_back(bench::seconds_per_call(bench::thread_seconds, one_calls, one));
    s.all.push_back(bench::seconds_per_call(bench::wall_seconds, all_calls, all));
    s.cpu.push_back(bench::seconds_per_call(bench::thread_seconds, 1, cpu));
    s.peak.push_back(bench::unit_peak_gflops(unit));
    state.SetIterationTime(s.one.back());
  }
  const double flop = visible_flop(s) * 1e-9;
  state.counters["ours_GFLOPs"] = flop / bench::median(s.one);
  state.counters["all_threads_GFLOPs"] = flop / bench::median(s.all);
  state.counters["against_cpu"] = bench::median_ratio(s.cpu, s.one);
  state.counters["unit_peak_GFLOPs"] = bench::median(s.peak);
}

void print_table() {
  std::printf("\n%s; matrix unit %s\nbfloat16, %d heads\n", bench::machine().c_str(), to_string(mha::current_unit()),
              heads);
  bench::Table lines({"D", "L", "mask", "1 thread GFLOP/s", "of unit peak", "against Cpu float32",
                      std::to_string(mha::ThreadPool{}.workers()) + " threads GFLOP/s", "scaling"});
  for (const std::string& key : order) {
    const Samples& s = table.at(key);
    if (s.one.empty()) continue;
    const double flop = visible_flop(s) * 1e-9, one = flop / bench::median(s.one);
    lines.add({std::to_string(s.dim), std::to_string(s.length), s.causal ? "causal" : "full", bench::number(one, 0),
               bench::number(100 * one / bench::median(s.peak), 0) + " %",
               bench::number(bench::median_ratio(s.cpu, s.one), 1) + "x", bench::number(flop / bench::median(s.all), 0),
               bench::number(bench::median_ratio(s.one, s.all), 2) + "x"});
  }
  lines.print();
}

}  // namespace

int main(int argc, char** argv) {
  for (const int dim : {64, 128})
    for (const int length : {512, 2048, 4096})
      for (const bool causal : {false, true}) {
        const std::string name = "SystolicAttention/D" + std::to_string(dim) + "/L" + std::to_string(length) +
                                 (causal ? "/causal" : "/full");
        benchmark::RegisterBenchmark(name.c_str(), attention, length, dim, causal)
            ->UseManualTime()
            ->Iterations(rounds)
            ->Unit(benchmark::kMillisecond);
      }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  print_table();
}
