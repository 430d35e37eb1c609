// SPDX-License-Identifier: Apache-2.0
// The backward pass of layers and blocks on one thread, in percent of the multiply-add peak of the same round, beside
// the forward pass; norms, which have no products, in GB/s.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/block.hpp>
#include <mha/mha.hpp>

#include "measure.hpp"
#include "program.hpp"

namespace {

constexpr int rounds = 15;
using Backend = mha::CpuWith<mha::Serial>;
using Tensor = mha::Tensor<float, 2>;

struct Row {
  double forward_flop = 0, backward_flop = 0, backward_bytes = 0;
  std::vector<double> peak, forward, backward;
};
std::map<std::string, Row> rows;
std::vector<std::string> order;  // as they ran

void fill(Tensor& t) {
  static std::mt19937 gen(7);
  static std::normal_distribution<float> normal;
  std::generate(t.begin(), t.end(), [] { return normal(gen); });
}

template <class Block, class... Extra>
void measure(benchmark::State& state, Row& row, Block& block, int length, int inputs, int outputs,
             const Extra&... extra) {
  Tensor x(length, inputs), y(length, outputs), dy(length, outputs), dx(length, inputs);
  fill(x);
  fill(dy);
  auto tape = block.tape();
  auto gradients = block.gradients();
  mha::Workspace workspace;
  const auto forward = [&] { block(x, tape, extra..., mha::into(y), workspace); };
  const auto backward = [&] { block.backward(dy, tape, gradients, mha::into(dx), workspace); };
  forward();
  const int calls = bench::calls_per_sample(bench::thread_seconds, backward);
  for ([[maybe_unused]] auto _ : state) {
    const double before = bench::peak_gflops<float>();
    row.forward.push_back(bench::seconds_per_call(bench::thread_seconds, calls, forward));
    row.backward.push_back(bench::seconds_per_call(bench::thread_seconds, calls, backward));
    row.peak.push_back((before + bench::peak_gflops<float>()) / 2);
    state.SetIterationTime(row.backward.back());
  }
}

/// run(state, row) measures what the name says.
template <class Run> void add(const std::string& name, const Run& run) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 const auto [found, is_new] = rows.try_emplace(name);
                                 if (is_new) order.push_back(name);
                                 run(state, found->second);
                               })
      ->Iterations(rounds)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

template <class Policy> void add_layer(const std::string& what, int model, int length) {
  add("layer/E:" + std::to_string(model) + "/L:" + std::to_string(length) + "/" + what, [=](auto& state, Row& row) {
    mha::MultiHeadAttention<float, Backend, Policy> layer({.d_model = model, .num_heads = model / 64, .bias = true});
    layer.initialize(mha::XavierUniform{.seed = 1});
    row.forward_flop = layer.cost(1, length, length).total_flop();
    row.backward_flop = layer.backward_cost(1, length, length).total_flop();
    measure(state, row, layer, length, model, model);
  });
}
template <class F> void add_feed_forward(const std::string& what, int model, int hidden, int length) {
  add("feed_forward/E:" + std::to_string(model) + "/L:" + std::to_string(length) + "/" + what,
      [=](auto& state, Row& row) {
        mha::FeedForward<float, Backend, F> block({.d_model = model, .d_hidden = hidden});
        block.initialize(mha::XavierUniform{.seed = 1});
        row.forward_flop = block.cost(length).flop;
        row.backward_flop = block.backward_cost(length).flop;
        measure(state, row, block, length, model, model);
      });
}
void add_linear(int inputs, int outputs, int length) {
  add("linear/" + std::to_string(inputs) + ":" + std::to_string(outputs) + "/L:" + std::to_string(length),
      [=](auto& state, Row& row) {
        mha::Linear<float, Backend> block({.inputs = inputs, .outputs = outputs});
        block.initialize(mha::XavierUniform{.seed = 1});
        row.forward_flop = block.cost(length).flop;
        row.backward_flop = block.backward_cost(length).flop;
        measure(state, row, block, length, inputs, outputs);
      });
}
template <class Norm> void add_norm(const std::string& what, int width, int length) {
  add(what + "/E:" + std::to_string(width) + "/L:" + std::to_string(length), [=](auto& state, Row& row) {
    Norm block({.width = width});
    row.backward_bytes = block.backward_cost(length).bytes;
    measure(state, row, block, length, width, width);
  });
}

void print_table() {
  std::printf("\n%s\nfloat, one thread; medians of %d rounds\n", bench::machine().c_str(), rounds);
  bench::Table products(
      {"call", "backward, ms", "% of peak", "forward, % of peak", "both, % of peak", "backward : forward"});
  bench::Table norms({"call", "backward, ms", "GB/s", "backward : forward"});
  for (const std::string& name : order) {
    const Row& r = rows.at(name);
    if (r.backward.empty()) continue;
    const std::string ms = bench::number(1e3 * bench::median(r.backward), 3);
    const std::string ratio = bench::number(bench::median_ratio(r.backward, r.forward), 2);
    if (r.backward_flop == 0) {
      norms.add({name, ms, bench::number(1e-9 * r.backward_bytes / bench::median(r.backward), 1), ratio});
      continue;
    }
    std::vector<double> backward, forward, both;
    for (std::size_t i = 0; i < r.peak.size(); ++i) {
      backward.push_back(1e-7 * r.backward_flop / r.backward[i] / r.peak[i]);
      forward.push_back(1e-7 * r.forward_flop / r.forward[i] / r.peak[i]);
      both.push_back(1e-7 * (r.forward_flop + r.backward_flop) / (r.forward[i] + r.backward[i]) / r.peak[i]);
    }
    products.add({name, ms, bench::number(bench::median(backward), 1), bench::number(bench::median(forward), 1),
                  bench::number(bench::median(both), 1), ratio});
  }
  products.print();
  norms.print();
}

}  // namespace

int main(int argc, char** argv) {
  add_linear(512, 512, 1024);
  add_linear(512, 2048, 1024);
  add_linear(2048, 512, 1024);
  add_feed_forward<mha::Gelu>("Gelu", 512, 2048, 1024);
  add_feed_forward<mha::SwiGlu>("SwiGlu", 512, 1376, 1024);
  for (const int length : {512, 2048}) {
    add_layer<mha::Full>("full", 512, length);
    add_layer<mha::Causal>("causal", 512, length);
  }
  add_norm<mha::LayerNorm<float, Backend>>("LayerNorm", 512, 1024);
  add_norm<mha::RmsNorm<float, Backend>>("RmsNorm", 512, 1024);
  return bench::run_all(argc, argv, print_table);
}
