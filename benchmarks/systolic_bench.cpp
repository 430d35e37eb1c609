// SPDX-License-Identifier: Apache-2.0
// Dense products on the matrix unit: against the unit's measured peak, against Cpu in float32 and against Eigen in the
// same rounds, one thread. Random numbers throughout: on zeros a matrix unit draws less power and runs faster.
#include <cstdio>
#include <Eigen/Core>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/systolic.hpp>

#include "measure.hpp"
#include "unit_peak.hpp"

namespace {

using mha::AmxArray;
using mha::bfloat16;
using mha::Index;
using mha::MatrixUnit;
using mha::Serial;
using mha::Tensor;
using mha::TensorView;

constexpr int rounds = 9;

template <class T> Tensor<T, 2> random_matrix(Index rows, Index columns) {
  std::mt19937 gen(7);
  std::normal_distribution<float> normal;
  Tensor<T, 2> m(rows, columns);
  for (T& x : m) x = T(normal(gen));
  return m;
}

/// One dense product with weights packed before.
template <class T, class Precision> class Dense {
 public:
  Dense(Index m, Index n, Index k)
      : a_(random_matrix<T>(m, k)),
        b_(random_matrix<T>(k, n)),
        c_(m, n),
        weights_{read(b_), {}},
        packed_(std::span<const mha::DenseWeights<T>>(&weights_, 1), Serial{}) {}

  void operator()() {
    const TensorView<T, 2> to = c_.view();
    mha::Systolic<AmxArray, Precision, Serial>{}.gemm(
        mha::PackedGemmCall<T, Packed>{read(a_), packed_, 0, std::span<const TensorView<T, 2>>(&to, 1)}, workspace_);
    benchmark::DoNotOptimize(c_.data());
  }

 private:
  using Packed = mha::detail::systolic::PackedWeights<T, Precision>;
  static TensorView<const T, 2> read(const Tensor<T, 2>& t) { return t.view(); }

  const Tensor<T, 2> a_, b_;
  Tensor<T, 2> c_;
  const mha::DenseWeights<T> weights_;
  const Packed packed_;
  mha::Workspace workspace_;
};

std::vector<double> samples(const std::vector<double>& seconds, double work) {
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(work / s);
  return rates;
}

bench::Table& table() {
  static bench::Table t({"M × N × K", "bf16 GFLOP/s", "of the unit's peak", "float high", "highest", "Cpu float32",
                         "Eigen float32", "bf16 : Cpu", "high : Eigen", "weights GB/s"});
  return t;
}

void dense(benchmark::State& state) {
  const auto m = static_cast<Index>(state.range(0)), n = static_cast<Index>(state.range(1)),
             k = static_cast<Index>(state.range(2));
  Dense<bfloat16, mha::DefaultPrecision> plain(m, n, k);
  Dense<float, mha::HighPrecision> high(m, n, k);
  Dense<float, mha::HighestPrecision> highest(m, n, k);
  const Tensor<float, 2> a = random_matrix<float>(m, k), b = random_matrix<float>(k, n);
  Tensor<float, 2> c(m, n);
  mha::Workspace workspace;
  const auto cpu = [&] {
    mha::CpuWith<Serial>{}.gemm(mha::GemmCall<float>{a.view(), b.view(), {}, c.view()}, workspace);
  };
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Matrix ea = Eigen::Map<const Matrix>(a.data(), m, k), eb = Eigen::Map<const Matrix>(b.data(), k, n), ec(m, n);
  const auto eigen = [&] { ec.noalias() = ea * eb; };

  const bench::Clock clock = bench::thread_seconds;
  const double gflop = 2e-9 * m * n * k;
  const auto unit = mha::detail::systolic::dense_unit<AmxArray>();
  std::vector<double> seconds[5], peaks;
  const auto measure = [&](int i, auto& f) {
    seconds[i].push_back(bench::seconds_per_call(clock, bench::calls_per_sample(clock, f), f));
  };
  for (auto _ : state)
    for (int round = 0; round < rounds; ++round) {
      peaks.push_back(bench::unit_peak_gflops(unit));
      measure(0, plain);
      measure(1, high);
      measure(2, highest);
      measure(3, cpu);
      measure(4, eigen);
    }
  std::vector<double> rates[5];
  for (int i = 0; i < 5; ++i) rates[i] = samples(seconds[i], gflop);
  const auto rate = [&](int i) { return bench::number(bench::median(rates[i]), 1); };
  table().add({std::to_string(m) + " × " + std::to_string(n) + " × " + std::to_string(k), rate(0),
               bench::number(100 * bench::median_ratio(rates[0], peaks), 0) + " %", rate(1), rate(2), rate(3), rate(4),
               bench::number(bench::median_ratio(rates[0], rates[3]), 2) + "×",
               bench::number(bench::median_ratio(rates[1], rates[4]), 2) + "×",
               bench::number(2e-9 * n * k / bench::median(seconds[0]), 1)});
  state.counters["ours_GFLOPs"] = bench::median(rates[0]);
  state.counters["peak_GFLOPs"] = bench::median(peaks);
}
BENCHMARK(dense)
    ->ArgNames({"M", "N", "K"})
    ->Args({512, 512, 512})
    ->Args({1024, 1024, 1024})
    ->Args({2048, 2048, 2048})
    ->Args({1024, 512, 512})
    ->Args({1024, 2048, 2048})
    ->Args({16, 2048, 2048})
    ->Args({4, 2048, 2048})
    ->Args({1, 2048, 2048})
    ->Args({1, 4096, 4096})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  std::printf("%s; matrix unit %s%s%s\n", bench::machine().c_str(), to_string(mha::current_unit()),
              mha::missing(MatrixUnit::amx).empty() ? "" : "; no amx: ", mha::missing(MatrixUnit::amx).c_str());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  table().print();
  return 0;
}
