// SPDX-License-Identifier: Apache-2.0
// Dense products by packed weights: against Eigen called directly, the arithmetic peak, and for one row the bandwidth.
#include <algorithm>
#include <cstdio>
#include <Eigen/Core>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "measure.hpp"
#include "program.hpp"

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Backend = mha::CpuWith<mha::Serial>;
using Packed = decltype(Backend{}.pack(std::span<const mha::DenseWeights<float>>()));

/// x (rows, d) · w (d, d), every way there is.
struct Product {
  Matrix x, w, y, expected;
  Packed packed;
  mha::Workspace workspace;

  Product(int rows, int d) : x(random(rows, d, 1)), w(random(d, d, 2)), y(rows, d), expected(rows, d), packed(pack()) {}

  void run_packed() {
    const mha::TensorView<float, 2> to[] = {mha::view(y)};
    Backend{}.gemm(mha::PackedGemmCall<float, Packed>{mha::view(std::as_const(x)), packed, 0, to}, workspace);
  }
  void run_loose() {
    Backend{}.gemm(mha::GemmCall<float>{mha::view(std::as_const(x)), mha::view(std::as_const(w)), {}, mha::view(y)},
                   workspace);
  }
  void run_eigen() { expected.noalias() = x * w; }

 private:
  Packed pack() const {
    const mha::DenseWeights<float> parts[] = {{mha::view(w), {}}};
    return Backend{}.pack(std::span<const mha::DenseWeights<float>>(parts));
  }
  static Matrix random(int rows, int columns, unsigned seed) {
    std::mt19937 gen(seed);
    std::normal_distribution<float> normal;
    Matrix m(rows, columns);
    std::generate(m.data(), m.data() + m.size(), [&] { return normal(gen); });
    return m;
  }
};

struct Row {
  int rows = 0, d = 0;
  std::vector<double> packed, loose, eigen, peak, bandwidth;
  double flop() const { return 2.0 * rows * d * d; }
  double bytes() const { return 4.0 * d * d; }
};
std::map<std::pair<int, int>, Row> table_rows;

/// One round samples each way and the limits in turn, so that all see the same machine.
void measure(benchmark::State& state, int rows, int d) {
  Product p(rows, d);
  Row& row = table_rows[{d, rows}];
  row.rows = rows;
  row.d = d;
  const auto packed = [&] { p.run_packed(); };
  const auto loose = [&] { p.run_loose(); };
  const auto eigen = [&] { p.run_eigen(); };
  packed();
  eigen();
  if (!((p.y - p.expected).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-3f * static_cast<float>(d)))
    return state.SkipWithError("the results differ");
  const auto numbers = bench::numbers_to_read(static_cast<std::size_t>(p.w.size()));
  const auto sample = [](std::vector<double>& to, const auto& f) {
    to.push_back(bench::seconds_per_call(bench::thread_seconds, bench::calls_per_sample(bench::thread_seconds, f), f));
  };
  for ([[maybe_unused]] auto _ : state) {
    row.peak.push_back(bench::peak_gflops());
    sample(row.packed, packed);
    sample(row.eigen, eigen);
    sample(row.loose, loose);
    row.bandwidth.push_back(bench::read_gbps(numbers.data(), numbers.size()));
    state.SetIterationTime(row.packed.back());
  }
}

void print_table() {
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table table({"rows × d × d", "packed GFLOP/s", "% of FMA peak", "weights GB/s", "% of reading them",
                      "Eigen GFLOP/s", "packed : Eigen", "unpacked : Eigen"});
  for (const auto& [key, r] : table_rows) {
    if (r.packed.empty()) continue;
    std::vector<double> of_peak, of_bandwidth;
    for (std::size_t i = 0; i < r.packed.size(); ++i) {
      of_peak.push_back(r.flop() * 1e-7 / r.packed[i] / r.peak[i]);
      of_bandwidth.push_back(r.bytes() * 1e-7 / r.packed[i] / r.bandwidth[i]);
    }
    const double seconds = bench::median(r.packed);
    table.add({std::to_string(r.rows) + " × " + std::to_string(r.d) + "²", bench::number(r.flop() * 1e-9 / seconds, 1),
               bench::number(bench::median(of_peak), 0), bench::number(r.bytes() * 1e-9 / seconds, 1),
               bench::number(bench::median(of_bandwidth), 0),
               bench::number(r.flop() * 1e-9 / bench::median(r.eigen), 1),
               bench::number(bench::median_ratio(r.eigen, r.packed), 2) + "×",
               bench::number(bench::median_ratio(r.eigen, r.loose), 2) + "×"});
  }
  table.print();
}

}  // namespace

int main(int argc, char** argv) {
  for (const int d : {512, 2048, 4096})
    for (const int rows : {1, 4, 16, 1024}) {
      const std::string name = "projection/d:" + std::to_string(d) + "/rows:" + std::to_string(rows);
      bench::add(name, d == 4096 && rows > 16 ? 5 : 9, [=](benchmark::State& state) { measure(state, rows, d); });
    }
  return bench::run_all(argc, argv, print_table);
}
