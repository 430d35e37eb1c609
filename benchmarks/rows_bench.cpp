// SPDX-License-Identifier: Apache-2.0
// What a model does to its rows beside products and attention, on one thread: turning them to their position, packing
// column-major ones, the table of a relative bias, norms. GB/s are of what must be read and written, beside std::memcpy
// of the same bytes in the same round.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/block.hpp>
#include <mha/mha.hpp>

#include "measure.hpp"

namespace {

constexpr int rounds = 9;

struct Row {
  std::string what;
  double bytes = 0;
  std::vector<double> seconds, copying;
};
std::vector<Row> rows;

/// Rounds of f, which moves so many bytes, and of memcpy: half of them are read, half are written. `right` looks at
/// what the first call has done: where f works in place, many calls in 16 bits move the numbers by their roundings.
void measure(benchmark::State& state, const std::string& what, double bytes, const std::function<void()>& f,
             const std::function<bool()>& right) {
  f();
  if (!right()) return state.SkipWithError("the result is wrong");
  const auto from = bench::numbers_to_read(static_cast<std::size_t>(bytes / 2) / sizeof(float));
  auto to = from;
  const auto copy = [&] {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  };
  const int calls = bench::calls_per_sample(bench::thread_seconds, f);
  const int copies = bench::calls_per_sample(bench::thread_seconds, copy);
  Row row{what, bytes, {}, {}};
  for ([[maybe_unused]] auto _ : state) {
    row.seconds.push_back(bench::seconds_per_call(bench::thread_seconds, calls, f));
    row.copying.push_back(bench::seconds_per_call(bench::thread_seconds, copies, copy));
    state.SetIterationTime(row.seconds.back());
  }
  state.counters["GB/s"] = bytes * 1e-9 / bench::median(row.seconds);
  rows.push_back(std::move(row));
}

/// Queries (1, L, H, D) at positions from 1000 on.
template <class T, class Rotary> void rotary(benchmark::State& state, const char* what, int length) {
  constexpr int heads = 8, dim = 64;
  mha::Tensor<T, 4> x(1, length, heads, dim);
  for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = T(std::sin(float(i)));
  const auto given = x;
  const std::string name = std::string(what) + ", L " + std::to_string(length);
  measure(
      state, name, 2.0 * double(x.size() * sizeof(T)), [&] { Rotary{}.apply(x.view(), mha::Origins(1000)); },
      [&] {
        constexpr int other = std::is_same_v<Rotary, mha::Rotary<mha::Interleaved>> ? 1 : dim / 2;  // of pair 0
        for (int l = 0; l < length; ++l)
          for (int h = 0; h < heads; ++h) {
            const double a = double(float(given(0, l, h, 0))), b = double(float(given(0, l, h, other)));
            const double turned = a * std::cos(1000.0 + l) - b * std::sin(1000.0 + l);
            if (!(std::fabs(double(float(x(0, l, h, 0))) - turned) < 0.01)) return false;
            double before = 0, after = 0;  // turning keeps the length of every row
            for (int d = 0; d < dim; ++d) {
              before += std::pow(double(float(given(0, l, h, d))), 2);
              after += std::pow(double(float(x(0, l, h, d))), 2);
            }
            if (!(std::fabs(after / before - 1) < 0.01)) return false;
          }
        return true;
      });
}

/// A column-major (rows, columns) matrix into contiguous rows.
void columns(benchmark::State& state, int count, int width) {
  mha::Tensor<float, 2> from(width, count), to(count, width);
  for (std::size_t i = 0; i < from.size(); ++i) from.data()[i] = float(i % 8191);
  const auto source = mha::transposed(std::as_const(from).view());  // (rows, columns)
  measure(
      state, "column-major (" + std::to_string(count) + ", " + std::to_string(width) + ") to rows",
      2.0 * double(from.size() * sizeof(float)),
      [&] { mha::detail::run_serially(mha::detail::copy_items(source, to.view())); },
      [&] {
        for (int i = 0; i < count; i += 7)
          for (int j = 0; j < width; j += 5)
            if (to(i, j) != from(j, i)) return false;
        return true;
      });
}

/// The bias of every distance and head, as a call makes it.
void relative_bias(benchmark::State& state, int length) {
  constexpr int heads = 8;
  const mha::RelativeBias bias(std::vector<float>(32 * heads, 0.5f));
  const mha::CallShape shape{1, heads, length, length, 0};
  measure(
      state, "RelativeBias' table, L " + std::to_string(length), 2.0 * heads * (2.0 * length - 1) * sizeof(float),
      [&] { benchmark::DoNotOptimize(bias.prepared(shape)); },
      [&] {
        const auto table = bias.prepared(shape);
        for (int h = 0; h < heads; ++h)
          for (int k = 0; k < length; ++k)
            if (table(1.f, 0, h, length - 1, k) != 1.5f) return false;
        return true;
      });
}

/// A norm of x (rows, width); with a residual it also stores the sum, as a block does before its next branch.
template <class Norm> void norm(benchmark::State& state, const char* what, int count, int width, bool add) {
  using T = typename Norm::Scalar;
  using A = mha::Accumulator<T>;
  const Norm norm({.width = width}, mha::CpuWith<mha::Serial>());
  mha::Tensor<T, 2> x(count, width), r(count, width), sum(count, width), y(count, width);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x.data()[i] = T(A(std::sin(double(i))));
    r.data()[i] = T(A(std::cos(0.3 * double(i))));
  }
  mha::Workspace workspace;
  const std::string name = std::string(what) + " (" + std::to_string(count) + ", " + std::to_string(width) + ")" +
                           (add ? ", residual and sum" : "");
  measure(
      state, name, (add ? 4.0 : 2.0) * double(x.size() * sizeof(T)),
      [&] {
        if (add)
          norm(x, mha::residual(r), mha::sum_into(sum), mha::into(y), workspace);
        else
          norm(x, mha::into(y), workspace);
      },
      [&] {
        double squares = 0;
        for (int j = 0; j < width; ++j) squares += double(A(y(count - 1, j))) * double(A(y(count - 1, j)));
        return std::fabs(squares / width - 1) < 0.01;
      });
}

template <class F> void add(const std::string& name, F&& f) {
  benchmark::RegisterBenchmark(name.c_str(), f)->Iterations(rounds)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  for (const int length : {1, 512}) {
    const std::string l = "/L:" + std::to_string(length);
    add("rotary/halves" + l, [=](auto& s) { rotary<float, mha::Rotary<>>(s, "Rotary<Halves>, float", length); });
    add("rotary/interleaved" + l,
        [=](auto& s) { rotary<float, mha::Rotary<mha::Interleaved>>(s, "Rotary<Interleaved>, float", length); });
    add("rotary/bfloat16" + l,
        [=](auto& s) { rotary<mha::bfloat16, mha::Rotary<>>(s, "Rotary<Halves>, bfloat16", length); });
  }
  for (const auto& [count, width] : {std::pair{512, 512}, std::pair{2048, 512}, std::pair{2000, 500}})
    add("columns/" + std::to_string(count) + "x" + std::to_string(width),
        [count = count, width = width](auto& s) { columns(s, count, width); });
  for (const int length : {1, 512, 4096})
    add("relative_bias/L:" + std::to_string(length), [=](auto& s) { relative_bias(s, length); });
  using On = mha::CpuWith<mha::Serial>;
  for (const auto& [count, width] : {std::pair{512, 768}, std::pair{512, 2048}, std::pair{1, 4096}})
    for (const bool residual : {false, true}) {
      const std::string size =
          "/" + std::to_string(count) + "x" + std::to_string(width) + (residual ? "/residual" : "");
      const auto of = [=, count = count, width = width](auto f, const char* what) {
        return [=](auto& s) { f(s, what, count, width, residual); };
      };
      add("norm/layer" + size, of(norm<mha::LayerNorm<float, On>>, "LayerNorm, float"));
      add("norm/rms" + size, of(norm<mha::RmsNorm<float, On>>, "RmsNorm, float"));
      add("norm/rms_bfloat16" + size, of(norm<mha::RmsNorm<mha::bfloat16, On>>, "RmsNorm, bfloat16"));
    }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table table({"rows", "µs", "GB/s", "memcpy : ours"});
  for (const Row& r : rows)
    table.add({r.what, bench::number(1e6 * bench::median(r.seconds), 2),
               bench::number(r.bytes * 1e-9 / bench::median(r.seconds), 1),
               bench::number(bench::median_ratio(r.copying, r.seconds), 2)});
  table.print();
  return 0;
}
