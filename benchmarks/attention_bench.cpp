// SPDX-License-Identifier: Apache-2.0
// attention() on one thread against the materialised Eigen baseline, and on all threads against one; beside that, what
// the machine allows: as many calls on one thread each, at the same time, that have nothing to do with each other.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "counting_allocator.hpp"
#include "eigen_baseline.hpp"
#include "measure.hpp"
#include "program.hpp"

namespace {

using Tensor = mha::Tensor<float, 4>;
using bench::EigenAttention;
constexpr int batch = 1, heads = 2, rounds = 9;

struct Inputs {
  Tensor q, k, v, out, expected;
  Inputs(int length, int dim)
      : q(batch, length, heads, dim),
        k(batch, length, heads, dim),
        v(batch, length, heads, dim),
        out(batch, length, heads, dim),
        expected(batch, length, heads, dim) {
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    for (Tensor* t : {&q, &k, &v}) std::generate(t->begin(), t->end(), [&] { return normal(gen); });
  }
};

double visible_flop(int length, int dim, bool causal) {
  const mha::Config config{.d_model = heads * dim, .num_heads = heads};
  return causal ? mha::cost(config, batch, length, length, mha::Causal{}).attention_flop()
                : mha::cost(config, batch, length, length).attention_flop();
}

template <class Backend> void ours(Inputs& in, bool causal, mha::Workspace& workspace) {
  if (causal)
    mha::attention_into<Backend>(in.out, in.q, in.k, in.v, mha::Causal{}, workspace);
  else
    mha::attention_into<Backend>(in.out, in.q, in.k, in.v, workspace);
}

/// Samples of one shape; repetitions of the benchmark add to them.
struct Samples {
  int length = 0, dim = 0;
  bool causal = false;
  std::vector<double> ours, eigen, triangular, peak;
  bench::Footprint our_footprint, our_second, eigen_footprint;
};
/// Of each round: rates of one thread (before and after the others, so that a drift of the machine cancels), of all,
/// and of calls side by side, as multiples of one thread's.
struct Scaling {
  int length = 0, dim = 0;
  bool causal = false;
  std::vector<double> one, all, speedup, allowed;
};
std::map<std::string, Samples> against_eigen;
std::map<std::string, Scaling> over_threads;
std::vector<std::string> order, thread_order;  // as they ran

void attention(benchmark::State& state, int length, int dim, bool causal) {
  const std::string key = std::to_string(dim) + "/" + std::to_string(length) + (causal ? "/causal" : "/full");
  const auto [found, is_new] = against_eigen.try_emplace(key);
  if (is_new) order.push_back(key);
  Samples& samples = found->second;
  samples.length = length;
  samples.dim = dim;
  samples.causal = causal;

  Inputs in(length, dim);
  mha::Workspace workspace;
  EigenAttention eigen;
  const auto hidden = causal ? EigenAttention::Causal::hide : EigenAttention::Causal::none;
  const auto run_ours = [&] { ours<mha::CpuWith<mha::Serial>>(in, causal, workspace); };
  const auto run_eigen = [&] { eigen(in.expected.view(), in.q.view(), in.k.view(), in.v.view(), hidden); };
  const auto run_triangular = [&] {
    eigen(in.expected.view(), in.q.view(), in.k.view(), in.v.view(), EigenAttention::Causal::triangular);
  };
  samples.our_footprint = bench::footprint(run_ours);
  samples.our_second = bench::footprint(run_ours);
  samples.eigen_footprint = bench::footprint(run_eigen);
  // A fast wrong answer is no result.
  for (std::size_t i = 0; i < in.out.size(); ++i)
    if (!(std::abs(in.out.data()[i] - in.expected.data()[i]) < 1e-4f)) {
      state.SkipWithError("the results differ");
      return;
    }

  const int our_calls = bench::calls_per_sample(bench::thread_seconds, run_ours);
  const int eigen_calls = bench::calls_per_sample(bench::thread_seconds, run_eigen);
  for ([[maybe_unused]] auto _ : state) {
    samples.ours.push_back(bench::seconds_per_call(bench::thread_seconds, our_calls, run_ours));
    samples.eigen.push_back(bench::seconds_per_call(bench::thread_seconds, eigen_calls, run_eigen));
    if (causal)
      samples.triangular.push_back(bench::seconds_per_call(bench::thread_seconds, eigen_calls, run_triangular));
    samples.peak.push_back(bench::peak_gflops());
    state.SetIterationTime(samples.ours.back());
  }
  const double flop = visible_flop(length, dim, causal) * 1e-9;
  state.counters["ours_GFLOPs"] = flop / bench::median(samples.ours);
  state.counters["eigen_GFLOPs"] = flop / bench::median(samples.eigen);
  state.counters["ratio"] = bench::median_ratio(samples.eigen, samples.ours);
  state.counters["peak_GFLOPs"] = bench::median(samples.peak);
}

void scaling(benchmark::State& state, int length, int dim, bool causal) {
  const std::string key = std::to_string(dim) + "/" + std::to_string(length) + (causal ? "/causal" : "/full");
  const auto [found, is_new] = over_threads.try_emplace(key);
  if (is_new) thread_order.push_back(key);
  Scaling& samples = found->second;
  samples.length = length;
  samples.dim = dim;
  samples.causal = causal;
  const auto threads = static_cast<std::size_t>(mha::ThreadPool{}.workers());
  std::vector<Inputs> in(threads, Inputs(length, dim));
  std::vector<mha::Workspace> workspaces(threads);
  const auto one = [&] { ours<mha::CpuWith<mha::Serial>>(in[0], causal, workspaces[0]); };
  const auto all = [&] { ours<mha::Cpu>(in[0], causal, workspaces[0]); };
  const int calls = 2 * bench::calls_per_sample(bench::wall_seconds, one);
  const auto side_by_side = [&] {
    std::vector<std::thread> others;
    for (std::size_t t = 0; t < threads; ++t)
      others.emplace_back([&, t] {
        for (int i = 0; i < calls; ++i) ours<mha::CpuWith<mha::Serial>>(in[t], causal, workspaces[t]);
      });
    for (std::thread& t : others) t.join();
  };
  all();
  side_by_side();
  for ([[maybe_unused]] auto _ : state) {
    const double before = bench::seconds_per_call(bench::wall_seconds, calls, one);
    const double shared = bench::seconds_per_call(bench::wall_seconds, calls, all);
    const double apart = bench::seconds_per_call(bench::wall_seconds, 1, side_by_side) / calls;
    const double after = bench::seconds_per_call(bench::wall_seconds, calls, one);
    samples.one.push_back((before + after) / 2);
    samples.all.push_back(shared);
    samples.speedup.push_back(samples.one.back() / shared);
    samples.allowed.push_back(static_cast<double>(threads) * samples.one.back() / apart);
    state.SetIterationTime(shared);
  }
  state.counters["speedup"] = bench::median(samples.speedup);
  state.counters["allowed"] = bench::median(samples.allowed);
}

/// Median and the middle half: 1.91× (1.88–1.93).
std::string with_spread(const std::vector<double>& values) {
  return bench::number(bench::median(values), 2) + "× (" + bench::number(bench::quantile(values, 0.25), 2) + "–" +
         bench::number(bench::quantile(values, 0.75), 2) + ")";
}

void print_tables() {
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table table({"D", "L", "mask", "ours GFLOP/s", "% of FMA peak", "Eigen GFLOP/s", "ours : Eigen",
                      "ours : Eigen triangular", "ours MiB", "Eigen MiB", "allocations, 2nd call"});
  for (const std::string& key : order) {
    const Samples& s = against_eigen.at(key);
    if (s.ours.empty()) continue;
    const double flop = visible_flop(s.length, s.dim, s.causal) * 1e-9;
    std::vector<double> of_peak;
    for (std::size_t i = 0; i < s.ours.size(); ++i) of_peak.push_back(100 * flop / s.ours[i] / s.peak[i]);
    const bool counted = bench::counts_allocations;
    table.add(
        {std::to_string(s.dim), std::to_string(s.length), s.causal ? "causal" : "full",
         bench::number(flop / bench::median(s.ours), 1), bench::number(bench::median(of_peak), 0),
         bench::number(flop / bench::median(s.eigen), 1), bench::number(bench::median_ratio(s.eigen, s.ours), 2) + "×",
         s.causal ? bench::number(bench::median_ratio(s.triangular, s.ours), 2) + "×" : "",
         counted ? bench::mebibytes(s.our_footprint.bytes) : "",
         counted ? bench::mebibytes(s.eigen_footprint.bytes) : "", counted ? std::to_string(s.our_second.count) : ""});
  }
  table.print();
  bench::Table threads({"D", "L", "mask", "threads", "one thread GFLOP/s", "all GFLOP/s", "speedup (quartiles)",
                        "unrelated calls side by side", "of what they allow"});
  for (const std::string& key : thread_order) {
    const Scaling& s = over_threads.at(key);
    const double flop = visible_flop(s.length, s.dim, s.causal) * 1e-9;
    threads.add({std::to_string(s.dim), std::to_string(s.length), s.causal ? "causal" : "full",
                 std::to_string(mha::ThreadPool{}.workers()), bench::number(flop / bench::median(s.one), 1),
                 bench::number(flop / bench::median(s.all), 1), with_spread(s.speedup), with_spread(s.allowed),
                 bench::number(100 * bench::median_ratio(s.speedup, s.allowed), 0) + " %"});
  }
  threads.print();
}

}  // namespace

int main(int argc, char** argv) {
  for (const int dim : {64, 128})
    for (const int length : {512, 1024, 2048, 4096})
      for (const bool causal : {false, true}) {
        const std::string shape =
            "/D:" + std::to_string(dim) + "/L:" + std::to_string(length) + (causal ? "/causal" : "/full");
        bench::add("attention" + shape, rounds, attention, length, dim, causal);
        if (length == 512 || length == 2048) bench::add("threads" + shape, 2 * rounds, scaling, length, dim, causal);
      }
  return bench::run_all(argc, argv, print_tables);
}
