// SPDX-License-Identifier: Apache-2.0
// The backend EigenCpu on one thread: attention, forward and backward, and a layer beside Cpu, and attention beside the
// materialised Eigen baseline. It runs with the instruction set that it is compiled for: eigen_native_bench is the same
// by -march=native.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/eigen.hpp>
#include <mha/mha.hpp>

#include "eigen_baseline.hpp"
#include "measure.hpp"
#include "program.hpp"

namespace {

using Eigens = mha::EigenCpuWith<mha::Serial>;
using Ours = mha::CpuWith<mha::Serial>;
using bench::EigenAttention;
constexpr int rounds = 9;

struct Row {
  std::string what, shape;
  double flop = 0;
  std::vector<double> eigens, ours, baseline, peak;  // seconds of a call; GFLOP/s
};
std::vector<Row> table;

Row& row_of(const std::string& what, const std::string& shape, double flop) {
  const auto same = [&](const Row& r) { return r.what == what && r.shape == shape; };
  const auto found = std::find_if(table.begin(), table.end(), same);
  return found != table.end() ? *found : table.emplace_back(Row{what, shape, flop, {}, {}, {}, {}});
}

template <class X> void fill(X& x, unsigned seed) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal;
  std::generate(x.begin(), x.end(), [&] { return normal(gen); });
}

/// A fast wrong answer is no result.
template <class X> bool agree(const X& a, const X& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) { return std::abs(x - y) < 1e-4f; });
}

/// One round samples EigenCpu, Cpu, the baseline if there is one, and the peak in turn.
void compare(benchmark::State& state, Row& row, const std::function<void()>& eigens, const std::function<void()>& ours,
             const std::function<void()>& baseline) {
  const auto seconds = [](int calls, const auto& f) {
    return bench::seconds_per_call(bench::thread_seconds, calls, f);
  };
  const auto calls = [](const auto& f) { return bench::calls_per_sample(bench::thread_seconds, f); };
  const int of_eigens = calls(eigens), of_ours = calls(ours), of_baseline = baseline ? calls(baseline) : 0;
  for ([[maybe_unused]] auto _ : state) {
    row.eigens.push_back(seconds(of_eigens, eigens));
    row.ours.push_back(seconds(of_ours, ours));
    if (baseline) row.baseline.push_back(seconds(of_baseline, baseline));
    row.peak.push_back(bench::peak_gflops());
    state.SetIterationTime(row.eigens.back());
  }
  state.counters["GFLOPs"] = row.flop * 1e-9 / bench::median(row.eigens);
  state.counters["peak_GFLOPs"] = bench::median(row.peak);
  state.counters["cpu_ratio"] = bench::median_ratio(row.ours, row.eigens);
  if (baseline) state.counters["baseline_ratio"] = bench::median_ratio(row.baseline, row.eigens);
}

template <class... Mask> void call(benchmark::State& state, int length, int dim, const Mask&... mask) {
  constexpr bool causal = sizeof...(Mask) != 0;
  constexpr int heads = 2;
  using Tensor = mha::Tensor<float, 4>;
  Tensor q(1, length, heads, dim), k = q, v = q, by_eigens = q, by_ours = q, by_baseline = q;
  fill(q, 7), fill(k, 8), fill(v, 9);
  mha::Workspace workspace, of_ours;
  EigenAttention materialised;
  const std::string shape = "D " + std::to_string(dim) + ", L " + std::to_string(length);
  Row& row =
      row_of(causal ? "attention, causal" : "attention, full", shape,
             mha::cost({.d_model = heads * dim, .num_heads = heads}, 1, length, length, mask...).attention_flop());
  const auto eigens = [&] { mha::attention_into<Eigens>(by_eigens, q, k, v, mask..., workspace); };
  const auto ours = [&] { mha::attention_into<Ours>(by_ours, q, k, v, mask..., of_ours); };
  const auto baseline = [&] {
    materialised(by_baseline.view(), q.view(), k.view(), v.view(),
                 causal ? EigenAttention::Causal::triangular : EigenAttention::Causal::none);
  };
  eigens(), ours(), baseline();
  if (!agree(by_eigens, by_ours) || !agree(by_eigens, by_baseline)) return state.SkipWithError("the results differ");
  compare(state, row, eigens, ours, baseline);
}

template <class... Mask> void backward(benchmark::State& state, int length, int dim, const Mask&... mask) {
  constexpr int heads = 2;
  using Tensor = mha::Tensor<float, 4>;
  Tensor q(1, length, heads, dim), k = q, v = q, d_out = q;
  fill(q, 7), fill(k, 8), fill(v, 9), fill(d_out, 10);
  const std::string shape = "D " + std::to_string(dim) + ", L " + std::to_string(length);
  const double forward =
      mha::cost({.d_model = heads * dim, .num_heads = heads}, 1, length, length, mask...).attention_flop();
  Row& row = row_of(sizeof...(Mask) != 0 ? "backward, causal" : "backward, full", shape, 2.5 * forward);
  const auto on = [&]<class B>(const B&, auto& tape, Tensor& out, std::array<Tensor, 3>& to,
                               mha::Workspace& workspace) {
    mha::attention_into<B>(out, q, k, v, mask..., mha::record(tape), workspace);
    return [&] { mha::attention_backward_into({to[0], to[1], to[2]}, d_out, q, k, v, out, tape, mask..., workspace); };
  };
  mha::AttentionTape<float, Eigens> eigen_tape;
  mha::AttentionTape<float, Ours> our_tape;
  Tensor eigen_out = q, our_out = q;
  std::array<Tensor, 3> by_eigens{q, q, q}, by_ours{q, q, q};
  mha::Workspace workspace, of_ours;
  const auto eigens = on(Eigens{}, eigen_tape, eigen_out, by_eigens, workspace);
  const auto ours = on(Ours{}, our_tape, our_out, by_ours, of_ours);
  eigens(), ours();
  for (std::size_t i = 0; i < 3; ++i)
    if (!agree(by_eigens[i], by_ours[i])) return state.SkipWithError("the results differ");
  compare(state, row, eigens, ours, {});
}

void layer(benchmark::State& state, int d_model, int length) {
  const mha::Config config{.d_model = d_model, .num_heads = d_model / 64};
  mha::MultiHeadAttention<float, Eigens, mha::Causal> eigen_layer(config);
  mha::MultiHeadAttention<float, Ours, mha::Causal> our_layer(config);
  eigen_layer.initialize(mha::XavierUniform{.seed = 1});
  our_layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<float, 2> x(length, d_model), by_eigens = x, by_ours = x;
  fill(x, 3);
  mha::Workspace workspace, of_ours;
  const auto eigens = [&] { eigen_layer(x, workspace, mha::into(by_eigens)); };
  const auto ours = [&] { our_layer(x, of_ours, mha::into(by_ours)); };
  eigens(), ours();
  if (!agree(by_eigens, by_ours)) return state.SkipWithError("the results differ");
  compare(state,
          row_of("layer, causal", "E " + std::to_string(d_model) + ", L " + std::to_string(length),
                 eigen_layer.cost(1, length, length).total_flop()),
          eigens, ours, {});
}

void print_table() {
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table printed(
      {"what", "shape", "EigenCpu GFLOP/s", "% of FMA peak", "EigenCpu : materialised Eigen", "EigenCpu : Cpu"});
  for (const Row& r : table) {
    if (r.eigens.empty()) continue;
    std::vector<double> of_peak;
    for (std::size_t i = 0; i < r.eigens.size(); ++i) of_peak.push_back(r.flop * 1e-7 / r.eigens[i] / r.peak[i]);
    const auto ratio = [&](const std::vector<double>& other) {
      return other.empty() ? std::string() : bench::number(bench::median_ratio(other, r.eigens), 2) + "×";
    };
    printed.add({r.what, r.shape, bench::number(r.flop * 1e-9 / bench::median(r.eigens), 1),
                 bench::number(bench::median(of_peak), 0), ratio(r.baseline), ratio(r.ours)});
  }
  printed.print();
}

}  // namespace

int main(int argc, char** argv) {
  for (const int dim : {64, 128})
    for (const int length : {512, 2048}) {
      const std::string shape = "attention/D:" + std::to_string(dim) + "/L:" + std::to_string(length);
      bench::add(shape + "/full", rounds, [=](auto& state) { call(state, length, dim); });
      bench::add(shape + "/causal", rounds, [=](auto& state) { call(state, length, dim, mha::Causal{}); });
      const std::string back = "backward/D:" + std::to_string(dim) + "/L:" + std::to_string(length);
      bench::add(back + "/full", rounds, [=](auto& state) { backward(state, length, dim); });
      bench::add(back + "/causal", rounds, [=](auto& state) { backward(state, length, dim, mha::Causal{}); });
    }
  for (const auto& [d_model, length] : {std::pair{512, 128}, {512, 2048}})
    bench::add("layer/E:" + std::to_string(d_model) + "/L:" + std::to_string(length) + "/causal", rounds,
               [d = d_model, l = length](auto& state) { layer(state, d, l); });
  return bench::run_all(argc, argv, print_table);
}
