// SPDX-License-Identifier: Apache-2.0
// Where a layer's time goes: projections, attention and output by length, and the length from which attention takes
// more than the products, beside the one that counting FLOP gives. Then the same layer cut into 1 to 32 heads.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <Eigen/Core>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "measure.hpp"
#include "program.hpp"

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr int d_model = 512, rounds = 9;

/// Seconds of each stage.
struct Stages {
  double projection = 0, attention = 0, output = 0;
};

/// Cpu on one thread that notes what each stage of a layer's call takes.
struct Staged : mha::CpuWith<mha::Serial> {
  static inline Stages spent;

  template <class Call> void gemm(const Call& call, Workspace& workspace) const {
    add(spent.attention == 0 ? spent.projection : spent.output, [&] { CpuWith::gemm(call, workspace); });
  }
  template <class Call> void attend(const Call& call, Workspace& workspace) const {
    add(spent.attention, [&] { CpuWith::attend(call, workspace); });
  }

 private:
  template <class F> static void add(double& to, F&& f) {
    const double begin = bench::thread_seconds();
    f();
    to += bench::thread_seconds() - begin;
  }
};

Matrix random_rows(int rows) {
  std::mt19937 gen(3);
  std::normal_distribution<float> normal;
  Matrix m(rows, d_model);
  std::generate(m.data(), m.data() + m.size(), [&] { return normal(gen); });
  return m;
}

/// Row i of the layer's result by the formula, in double.
Eigen::VectorXd row_by_formula(const mha::ParameterViews<const float>& p, const Matrix& x, int heads, bool causal,
                               int i) {
  const auto matrix = [](const mha::TensorView<const float, 2>& w) -> Eigen::MatrixXd {
    return Eigen::Map<const Matrix>(w.data, w.extent[0], w.extent[1]).cast<double>();
  };
  const int keys = causal ? i + 1 : static_cast<int>(x.rows()), dim = d_model / heads;
  const Eigen::MatrixXd rows = x.topRows(keys).cast<double>();
  const Eigen::RowVectorXd q = x.row(i).cast<double>() * matrix(p.query.matrix());
  const Eigen::MatrixXd k = rows * matrix(p.key.matrix()), v = rows * matrix(p.value.matrix());
  Eigen::RowVectorXd concat(d_model);
  for (int h = 0; h < heads; ++h) {
    const Eigen::VectorXd s = k.middleCols(h * dim, dim) * q.segment(h * dim, dim).transpose() / std::sqrt(double(dim));
    const Eigen::VectorXd w = (s.array() - s.maxCoeff()).exp();
    concat.segment(h * dim, dim) = w.transpose() * v.middleCols(h * dim, dim) / w.sum();
  }
  return (concat * matrix(p.output.matrix())).transpose();
}

/// Samples of one layer and length; repetitions of the benchmark add to them.
struct Row {
  int length = 0, heads = 0;
  bool causal = false;
  mha::Cost cost;
  std::vector<double> projection, attention, output, total, peak;

  double products() const { return bench::median(projection) + bench::median(output); }
};
std::map<std::string, Row> rows;
std::vector<std::string> over_length, over_heads;  // as they ran

template <class Layer>
void layer(benchmark::State& state, std::vector<std::string>& order, int length, int heads, bool causal) {
  const mha::Config config{.d_model = d_model, .num_heads = heads};
  Layer subject(config);
  subject.initialize(mha::XavierUniform{.seed = 1});
  const Matrix x = random_rows(length);
  Matrix y(length, d_model);
  mha::Workspace workspace;
  const auto run = [&] { subject(x, workspace, mha::into(y)); };
  run();
  for (const int i : {length - 1, length / 3})
    if (!((y.row(i).transpose().cast<double>() - row_by_formula(subject.parameters(), x, heads, causal, i))
              .cwiseAbs()
              .template maxCoeff<Eigen::PropagateNaN>() < 1e-4))
      return state.SkipWithError("the result is wrong");

  const std::string key = std::to_string(length) + "/" + std::to_string(heads) + (causal ? "/causal" : "/full");
  if (std::find(order.begin(), order.end(), key) == order.end()) order.push_back(key);
  Row& row = rows[key];
  row.length = length;
  row.heads = heads;
  row.causal = causal;
  row.cost = causal ? mha::cost(config, 1, length, length, mha::Causal{}) : mha::cost(config, 1, length, length);
  const int calls = bench::calls_per_sample(bench::thread_seconds, run);
  for ([[maybe_unused]] auto _ : state) {
    Stages sum;
    double total = 0;
    for (int c = 0; c < calls; ++c) {
      Staged::spent = {};
      total += bench::seconds_per_call(bench::thread_seconds, 1, run);
      sum.projection += Staged::spent.projection;
      sum.attention += Staged::spent.attention;
      sum.output += Staged::spent.output;
    }
    row.projection.push_back(sum.projection / calls);
    row.attention.push_back(sum.attention / calls);
    row.output.push_back(sum.output / calls);
    row.total.push_back(total / calls);
    row.peak.push_back(bench::peak_gflops());
    state.SetIterationTime(row.total.back());
  }
  state.counters["projection_ms"] = 1e3 * bench::median(row.projection);
  state.counters["attention_ms"] = 1e3 * bench::median(row.attention);
  state.counters["output_ms"] = 1e3 * bench::median(row.output);
  state.counters["attention_of_flop"] = row.cost.attention_flop() / row.cost.total_flop();
  state.counters["total_ms"] = 1e3 * bench::median(row.total);
}

/// The length at which attention takes as long as the products, between two measured ones; 0 if it was not passed.
double crossover(bool causal) {
  const Row* before = nullptr;
  for (const std::string& key : over_length) {
    const Row& row = rows.at(key);
    if (row.causal != causal) continue;
    const auto excess = [](const Row& r) { return std::log(bench::median(r.attention) / r.products()); };
    if (before != nullptr && excess(*before) < 0 && excess(row) >= 0) {
      const double part = excess(*before) / (excess(*before) - excess(row));
      return before->length * std::pow(double(row.length) / before->length, part);
    }
    before = &row;
  }
  return 0;
}

void print_tables() {
  std::printf("\n%s\n", bench::machine().c_str());
  const auto ms = [](const std::vector<double>& seconds) { return bench::number(1e3 * bench::median(seconds), 2); };
  const auto rate = [](const Row& r) { return r.cost.total_flop() * 1e-9 / bench::median(r.total); };
  const auto percent = [&](const Row& r) { return bench::number(100 * rate(r) / bench::median(r.peak), 0); };
  bench::Table stages({"mask", "L", "projections ms", "attention ms", "output ms", "whole layer ms",
                       "attention of the time", "attention of the FLOP", "GFLOP/s", "% of peak"});
  for (const std::string& key : over_length) {
    const Row& r = rows.at(key);
    stages.add({r.causal ? "causal" : "full", std::to_string(r.length), ms(r.projection), ms(r.attention), ms(r.output),
                ms(r.total), bench::number(100 * bench::median_ratio(r.attention, r.total), 0) + " %",
                bench::number(100 * r.cost.attention_flop() / r.cost.total_flop(), 0) + " %", bench::number(rate(r), 1),
                percent(r)});
  }
  stages.print();
  bench::Table crossovers({"mask", "attention takes more FLOP beyond L", "attention takes more time beyond L"});
  for (const bool causal : {false, true})
    if (const double length = crossover(causal); length > 0) {
      const double by_flop = mha::cost({.d_model = d_model, .num_heads = 8}, 1, 1, 1).crossover_length;
      // A causal mask shows (L + 1) / 2 keys per query.
      crossovers.add(
          {causal ? "causal" : "full", bench::number(causal ? 2 * by_flop - 1 : by_flop, 0), bench::number(length, 0)});
    }
  crossovers.print();
  bench::Table heads({"heads", "head size", "parameters", "GFLOP", "projections ms", "attention ms", "output ms",
                      "whole layer ms", "GFLOP/s", "% of peak"});
  for (const std::string& key : over_heads) {
    const Row& r = rows.at(key);
    heads.add({std::to_string(r.heads), std::to_string(d_model / r.heads), std::to_string(r.cost.parameters()),
               bench::number(r.cost.total_flop() * 1e-9, 2), ms(r.projection), ms(r.attention), ms(r.output),
               ms(r.total), bench::number(rate(r), 1), percent(r)});
  }
  heads.print();
}

template <class F> void add(const std::string& name, F&& f) { bench::add(name, rounds, f); }

}  // namespace

int main(int argc, char** argv) {
  using Full = mha::MultiHeadAttention<float, Staged>;
  using Causal = mha::MultiHeadAttention<float, Staged, mha::Causal>;
  for (const int length : {128, 256, 512, 1024, 2048, 4096}) {
    const std::string shape = "stages/L:" + std::to_string(length);
    add(shape + "/full", [=](auto& state) { layer<Full>(state, over_length, length, 8, false); });
    add(shape + "/causal", [=](auto& state) { layer<Causal>(state, over_length, length, 8, true); });
  }
  for (const int heads : {1, 2, 4, 8, 16, 32})
    add("heads/h:" + std::to_string(heads), [=](auto& state) { layer<Full>(state, over_heads, 1024, heads, false); });
  return bench::run_all(argc, argv, print_tables);
}
