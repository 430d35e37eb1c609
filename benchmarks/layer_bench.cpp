// SPDX-License-Identifier: Apache-2.0
// The whole layer, on one thread and on all, against the same layer written with Eigen alone on one thread.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <Eigen/Core>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "counting_allocator.hpp"
#include "eigen_baseline.hpp"
#include "measure.hpp"
#include "program.hpp"

namespace {

using Matrix = bench::EigenAttention::Matrix;
constexpr int head_dim = 64, rounds = 9;

Matrix random_rows(int rows, int columns, unsigned seed) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal;
  Matrix m(rows, columns);
  std::generate(m.data(), m.data() + m.size(), [&] { return normal(gen); });
  return m;
}

/// The layer by its formula: four dense products and the materialised softmax, temporaries kept from call to call.
class EigenLayer {
 public:
  explicit EigenLayer(const mha::ParameterViews<const float>& p)
      : w_q_(copy(p.query.matrix())),
        w_k_(copy(p.key.matrix())),
        w_v_(copy(p.value.matrix())),
        w_o_(copy(p.output.matrix())) {}

  void operator()(const Matrix& x, Matrix& y, bool causal) {
    const int length = static_cast<int>(x.rows()), d_model = static_cast<int>(x.cols());
    q_.noalias() = x * w_q_;
    k_.noalias() = x * w_k_;
    v_.noalias() = x * w_v_;
    heads_.resize(length, d_model);
    const auto by_head = [&](Matrix& m) { return mha::view_blhd(m.data(), 1, length, d_model / head_dim, head_dim); };
    attention_(by_head(heads_), by_head(q_), by_head(k_), by_head(v_),
               causal ? bench::EigenAttention::Causal::hide : bench::EigenAttention::Causal::none);
    y.noalias() = heads_ * w_o_;
  }

 private:
  static Matrix copy(const mha::TensorView<const float, 2>& w) {
    return Eigen::Map<const Matrix>(w.data, w.extent[0], w.extent[1]);
  }

  Matrix w_q_, w_k_, w_v_, w_o_, q_, k_, v_, heads_;
  bench::EigenAttention attention_;
};

struct Row {
  std::string what, shape;
  double flop = 0;
  int threads = 1;
  std::vector<double> ours, eigen, peak;
  std::size_t bytes = 0, eigen_bytes = 0, second_count = 0;
};
std::map<std::string, Row> rows;
std::vector<std::string> order;

/// One round samples ours, Eigen's and the peak in turn; ours by the wall clock where it uses more than one thread.
template <class Ours, class Eigens>
void compare(benchmark::State& state, Row& row, bench::Clock clock, Ours&& ours, Eigens&& eigens) {
  const int our_calls = bench::calls_per_sample(clock, ours);
  const int eigen_calls = bench::calls_per_sample(bench::thread_seconds, eigens);
  for ([[maybe_unused]] auto _ : state) {
    row.ours.push_back(bench::seconds_per_call(clock, our_calls, ours));
    row.eigen.push_back(bench::seconds_per_call(bench::thread_seconds, eigen_calls, eigens));
    row.peak.push_back(bench::peak_gflops());
    state.SetIterationTime(row.ours.back());
  }
  state.counters["ours_GFLOPs"] = row.flop * 1e-9 / bench::median(row.ours);
  state.counters["eigen_GFLOPs"] = row.flop * 1e-9 / bench::median(row.eigen);
  state.counters["ratio"] = bench::median_ratio(row.eigen, row.ours);
}

Row& row_of(const std::string& what, const std::string& shape, double flop) {
  const auto [found, is_new] = rows.try_emplace(what + shape);
  if (is_new) order.push_back(what + shape);
  found->second.what = what;
  found->second.shape = shape;
  found->second.flop = flop;
  return found->second;
}

template <class Layer>
void whole_layer(benchmark::State& state, const char* mask, int d_model, int length, bool causal, int threads) {
  Layer layer({.d_model = d_model, .num_heads = d_model / head_dim});
  layer.initialize(mha::XavierUniform{.seed = 1});
  EigenLayer eigen(layer.parameters());
  const Matrix x = random_rows(length, d_model, 3);
  Matrix y(length, d_model), expected(length, d_model);
  mha::Workspace workspace;
  Row& row = row_of(std::string("layer, ") + mask + ", threads " + std::to_string(threads),
                    "E " + std::to_string(d_model) + ", L " + std::to_string(length),
                    layer.cost(1, length, length).total_flop());
  row.threads = threads;
  const auto ours = [&] { layer(x, workspace, mha::into(y)); };
  const auto eigens = [&] { eigen(x, expected, causal); };
  row.bytes = bench::footprint(ours).bytes;
  row.second_count = bench::footprint(ours).count;
  row.eigen_bytes = bench::footprint(eigens).bytes;
  if (!((y - expected).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-4f))
    return state.SkipWithError("the results differ");
  compare(state, row, threads == 1 ? bench::thread_seconds : bench::wall_seconds, ours, eigens);
}

void print_table() {
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table table({"what", "shape", "ours GFLOP/s", "% of FMA peak", "Eigen GFLOP/s", "ours : Eigen", "ours MiB",
                      "Eigen MiB", "allocations, 2nd call"});
  for (const std::string& key : order) {
    const Row& r = rows.at(key);
    if (r.ours.empty()) continue;
    std::vector<double> of_peak;
    for (std::size_t i = 0; i < r.ours.size(); ++i)
      of_peak.push_back(r.flop * 1e-7 / r.ours[i] / r.peak[i] / r.threads);
    const bool counted = bench::counts_allocations;
    table.add({r.what, r.shape, bench::number(r.flop * 1e-9 / bench::median(r.ours), 1),
               bench::number(bench::median(of_peak), 0), bench::number(r.flop * 1e-9 / bench::median(r.eigen), 1),
               bench::number(bench::median_ratio(r.eigen, r.ours), 2) + "×", counted ? bench::mebibytes(r.bytes) : "",
               counted ? bench::mebibytes(r.eigen_bytes) : "", counted ? std::to_string(r.second_count) : ""});
  }
  table.print();
}

template <class F> void add(const std::string& name, F&& f) { bench::add(name, rounds, f); }

}  // namespace

int main(int argc, char** argv) {
  using One = mha::CpuWith<mha::Serial>;
  const int all = mha::ThreadPool{}.workers();
  for (const auto& [d_model, length] : {std::pair{512, 128}, {512, 512}, {512, 2048}, {1024, 2048}}) {
    const std::string shape = "layer/E:" + std::to_string(d_model) + "/L:" + std::to_string(length);
    const auto both = [&, d = d_model, l = length]<class B>(B, int threads) {
      const std::string end = "/threads:" + std::to_string(threads);
      add(shape + "/full" + end,
          [=](auto& state) { whole_layer<mha::MultiHeadAttention<float, B>>(state, "full", d, l, false, threads); });
      add(shape + "/causal" + end, [=](auto& state) {
        whole_layer<mha::MultiHeadAttention<float, B, mha::Causal>>(state, "causal", d, l, true, threads);
      });
    };
    both(One{}, 1);
    if (all > 1) both(mha::Cpu{}, all);
  }
  return bench::run_all(argc, argv, print_table);
}
