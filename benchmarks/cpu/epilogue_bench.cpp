// SPDX-License-Identifier: Apache-2.0
// What an epilogue adds to a product by packed weights, on one thread: activations, a residual, gated pairs; and the
// activations alone on a block that lies in the cache.
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "../measure.hpp"
#include "../program.hpp"

namespace {

using Backend = mha::CpuWith<mha::Serial>;
using Packed = decltype(Backend{}.pack(std::span<const mha::DenseWeights<float>>()));
using mha::Index;

struct Size {
  Index rows, depth, columns;
};

/// A user's activation, of the maths of mha.
struct Mish {
  template <class S> S operator()(const S& x) const {
    const S e = mha::exp(mha::min(x, 20)), n = e * (e + S(2));
    return x * n / (n + S(2));
  }
};

mha::Tensor<float, 2> random(Index rows, Index columns, unsigned seed) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal;
  mha::Tensor<float, 2> m(rows, columns);
  for (float& x : m) x = normal(gen) / std::sqrt(static_cast<float>(columns));
  return m;
}

/// x (rows, depth) · w (depth, columns), and the pair of it and another.
struct Product {
  Size size;
  mha::Tensor<float, 2> x, gate, up, residual, c, other;
  Packed packed;
  mha::Workspace workspace;

  explicit Product(Size s)
      : size(s),
        x(random(s.rows, s.depth, 1)),
        gate(random(s.depth, s.columns, 2)),
        up(random(s.depth, s.columns, 3)),
        residual(random(s.rows, s.columns, 4)),
        c(s.rows, s.columns),
        other(s.rows, s.columns),
        packed(pack()) {}

  void bare(bool pair) {
    const mha::TensorView<float, 2> to[] = {c.view(), other.view()};
    Backend{}.gemm(call(std::span(to, pair ? 2u : 1u)), workspace);
  }
  template <class F> void with(F f, bool adds) {
    const mha::TensorView<float, 2> to[] = {c.view()};
    mha::Epilogue<float, F> epilogue{f, {}};
    if (adds) epilogue.residual = std::as_const(residual).view();
    Backend{}.gemm(call(to), epilogue, workspace);
  }

 private:
  mha::PackedGemmCall<float, Packed> call(std::span<const mha::TensorView<float, 2>> to) const {
    return {x.view(), packed, 0, to};
  }
  Packed pack() const {
    const mha::DenseWeights<float> parts[] = {{gate.view(), {}}, {up.view(), {}}};
    return Backend{}.pack(std::span<const mha::DenseWeights<float>>(parts));
  }
};

struct Row {
  double results = 0;  ///< elements of a product
  std::vector<double> bare, with, alone;
};
std::map<std::string, Row> table_rows;

/// The activation alone, on a block of 128 rows of a panel.
template <class F> double activation_seconds(F f) {
  constexpr Index rows = 128, columns = mha::detail::simd::panel_columns<float>;
  const auto start = random(rows, columns, 5);
  auto c = start;
  for (float& x : c) x *= 10;
  const mha::IsaLevel level = mha::current_isa();
  const mha::detail::simd::AnyEpilogue<float> epilogue(mha::Epilogue<float, F>{f, {}}, level);
  const auto call = [&] { epilogue.apply(level, c.data(), columns, start.data(), columns, 0, 0, rows, columns); };
  return bench::seconds_per_call(bench::thread_seconds, bench::calls_per_sample(bench::thread_seconds, call), call) /
         (rows * columns);
}

/// One round samples the bare product, the one with its epilogue, and the activation alone.
template <class F> void measure(benchmark::State& state, Size size, F f, bool adds, const std::string& name) {
  Product p(size);
  Row& row = table_rows[name];
  row.results = static_cast<double>(size.rows) * size.columns;
  const auto bare = [&] { p.bare(mha::detail::is_gated<F>); };
  const auto with = [&] { p.with(f, adds); };
  const auto sample = [](std::vector<double>& to, const auto& call) {
    to.push_back(
        bench::seconds_per_call(bench::thread_seconds, bench::calls_per_sample(bench::thread_seconds, call), call));
  };
  for ([[maybe_unused]] auto _ : state) {
    sample(row.bare, bare);
    sample(row.with, with);
    row.alone.push_back(activation_seconds(f));
    state.SetIterationTime(row.with.back());
  }
}

template <class F> void add(Size size, const char* label, F f, bool adds) {
  const std::string name = std::to_string(size.rows) + " × " + std::to_string(size.depth) + " → " +
                           std::to_string(size.columns) + ", " + label;
  benchmark::RegisterBenchmark(("epilogue/" + name).c_str(),
                               [=](benchmark::State& state) { measure(state, size, f, adds, name); })
      ->Iterations(9)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void print_table() {
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table table({"rows × K → N, epilogue", "ms", "to the bare product", "activation alone, ns an element"});
  for (const auto& [name, r] : table_rows) {
    if (r.with.empty()) continue;
    table.add({name, bench::number(1e3 * bench::median(r.with), 2),
               bench::number(bench::median_ratio(r.with, r.bare), 3) + "×",
               bench::number(1e9 * bench::median(r.alone), 2)});
  }
  table.print();
}

}  // namespace

int main(int argc, char** argv) {
  for (const Size size : {Size{512, 768, 3072}, Size{512, 2048, 5632}, Size{1, 2048, 5632}}) {
    add(size, "residual", mha::Identity{}, true);
    add(size, "Relu", mha::Relu{}, false);
    add(size, "Gelu", mha::Gelu{}, false);
    add(size, "Gelu and residual", mha::Gelu{}, true);
    add(size, "GeluTanh", mha::GeluTanh{}, false);
    add(size, "Silu", mha::Silu{}, false);
    add(size, "a user's Mish", Mish{}, false);
    add(size, "SwiGlu, to both products", mha::SwiGlu{}, false);
    add(size, "GeGlu, to both products", mha::GeGlu{}, false);
  }
  return bench::run_all(argc, argv, print_table);
}
