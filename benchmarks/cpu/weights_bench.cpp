// SPDX-License-Identifier: Apache-2.0
// Weights in 16, 8 and 4 bits under float rows: a Linear by them and by float weights, and one row through a LLaMA
// block (E 2048, 32 query and 4 key/value heads, SwiGLU of 5632), whose weights memory has to deliver. GB/s are of the
// weights alone, with the scales of those in 8 and 4 bits, beside what the same threads read in the same round. One row
// on all threads against one thread, beside what threads bring to reading.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/block.hpp>
#include <mha/mha.hpp>

#include "../measure.hpp"
#include "../program.hpp"

namespace {

using mha::Index;
constexpr int rounds = 9;

struct Row {
  std::string what;
  double bytes = 0;  ///< of the weights
  std::vector<double> seconds, wide, reading;
};
std::vector<Row> rows;

template <class W> mha::Tensor<W, 2> weights(Index in, Index out) {
  mha::Tensor<W, 2> w(in, out);
  const float scale = 1 / std::sqrt(float(in));
  std::uint32_t state = 1;
  for (W& x : w) {
    state = state * 1664525u + 1013904223u;
    x = W((float(state >> 8) * 0x1p-23f - 1) * scale);
  }
  return w;
}
template <class W> inline constexpr const char* scalar = "float";
template <> inline constexpr const char* scalar<mha::half> = "half";
template <> inline constexpr const char* scalar<mha::bfloat16> = "bfloat16";
template <> inline constexpr const char* scalar<mha::scaled_int8> = "int8";
template <> inline constexpr const char* scalar<mha::scaled_int4> = "int4";

/// What weights in W are made of: float numbers where they are rounded.
template <class W> inline constexpr bool rounded = mha::weights_per_scale<W> != 0;
template <class W> using Source = std::conditional_t<rounded<W>, float, W>;

/// Bytes of so many numbers in W, scales among them.
template <class W> double bytes_of(double numbers) { return mha::detail::bytes_of_weight<W>() * numbers; }

/// The part computes by weights in W from now on.
template <class W, class Part, class Weights> void give(Part& part, const Weights& weights) {
  if constexpr (rounded<W>)
    part.template quantize<W>(weights);
  else
    part.borrow(weights);
}

/// Rounds of f, of the same by float weights, and of reading memory; on one thread by its own clock.
template <class Threads>
void measure(benchmark::State& state, const std::string& what, double bytes, const std::function<void()>& f,
             const std::function<void()>& wide) {
  const bench::Clock clock = bench::clock_of<Threads>();
  static const auto memory = bench::numbers_to_read(std::size_t{1} << 25);
  const auto read = [&] { bench::read_all<Threads>(memory.data(), memory.size()); };
  const auto sample = [&](const auto& g, int calls) { return bench::seconds_per_call(clock, calls, g); };
  const int calls = bench::calls_per_sample(clock, f), wide_calls = bench::calls_per_sample(clock, wide),
            reads = bench::calls_per_sample(clock, read);
  Row row{what, bytes, {}, {}, {}};
  for ([[maybe_unused]] auto _ : state) {
    row.seconds.push_back(sample(f, calls));
    row.wide.push_back(sample(wide, wide_calls));
    row.reading.push_back(sample(read, reads) / double(memory.size() * sizeof(float)));  // of a byte
    state.SetIterationTime(row.seconds.back());
  }
  state.counters["GB/s"] = bytes * 1e-9 / bench::median(row.seconds);
  rows.push_back(std::move(row));
}

template <class Threads> std::string threads() {
  const Index n = Threads{}.workers();
  return std::to_string(n) + (n == 1 ? " thread" : " threads");
}

template <class W, class Threads> void linear(benchmark::State& state, Index count, Index in, Index out) {
  using Linear = mha::Linear<float, mha::CpuWith<Threads>>;
  const mha::LinearConfig config{.inputs = in, .outputs = out, .bias = false};
  Linear narrow(config), wide(config);
  mha::Linear<float, mha::Reference> reference(config);
  const auto w = weights<Source<W>>(in, out);
  const auto same = weights<float>(in, out);
  give<W>(narrow, mha::BorrowedLinear<Source<W>>{.weight = w});
  give<W>(reference, mha::BorrowedLinear<Source<W>>{.weight = w});
  wide.borrow({.weight = same});
  mha::Tensor<float, 2> x(count, in), y(count, out);
  for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = std::sin(float(i));
  mha::Workspace workspace;
  narrow(x, mha::into(y), workspace);
  double sum = 0;
  for (Index i = 0; i < in; ++i) sum += double(x(0, i)) * double(reference.parameters().weight(i, 1));
  if (!(std::abs(sum - double(y(0, 1))) < 1e-3)) return state.SkipWithError("the result is wrong");
  measure<Threads>(
      state,
      std::to_string(count) + " × " + std::to_string(in) + " → " + std::to_string(out) + ", " + scalar<W> + ", " +
          threads<Threads>(),
      bytes_of<W>(double(w.size())), [&] { narrow(x, mha::into(y), workspace); },
      [&] { wide(x, mha::into(y), workspace); });
}

/// One row, which sees itself alone: what a token costs beside its keys.
template <class W, class B> struct Block {
  static constexpr Index E = 2048, H = 5632, keys = 256;
  mha::MultiHeadAttention<float, B, mha::GroupedQuery<4>, mha::Rotary<>> attention{{.d_model = E, .num_heads = 32}};
  mha::FeedForward<float, B, mha::SwiGlu> feed_forward{{.d_model = E, .d_hidden = H, .bias = false}};
  mha::RmsNorm<float, B> norm1{{.width = E}}, norm2{{.width = E}};
  typename B::Workspace workspace;
  double bytes = bytes_of<W>(2. * E * (E + keys) + 3. * E * H);

  Block() {
    using S = Source<W>;
    const auto square = weights<S>(E, E), key = weights<S>(E, keys), up = weights<S>(E, H), down = weights<S>(H, E);
    give<W>(attention, mha::BorrowedWeights<S>{.query = square, .key = key, .value = key, .output = square});
    give<W>(feed_forward.up(), mha::BorrowedLinear<S>{.weight = up, .gate = up});
    give<W>(feed_forward.down(), mha::BorrowedLinear<S>{.weight = down});
    if constexpr (mha::PacksWeights<B, float>) {
      attention.drop_unpacked();
      feed_forward.drop_unpacked();
    }
  }
  void operator()(mha::Tensor<float, 2>& x, mha::Tensor<float, 2>& h, mha::Tensor<float, 2>& r) {
    norm1(x, mha::into(h), workspace);
    attention(h, mha::into(r), workspace);
    norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);
    feed_forward(h, mha::residual(x), mha::into(x), workspace);
  }
};

template <class W, class Threads> void block(benchmark::State& state) {
  Block<W, mha::CpuWith<Threads>> narrow;
  Block<float, mha::CpuWith<Threads>> wide;
  mha::Tensor<float, 2> x(1, 2048), h(1, 2048), r(1, 2048);
  for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = std::sin(float(i));
  auto other = x, expected = x;
  narrow(x, h, r);
  Block<W, mha::Reference>()(expected, h, r);
  for (Index e = 0; e < x.extent(1); ++e)
    if (!(std::abs(x(0, e) - expected(0, e)) < 1e-3f)) return state.SkipWithError("the result is wrong");
  measure<Threads>(
      state, std::string("one row through a LLaMA block, ") + scalar<W> + ", " + threads<Threads>(), narrow.bytes,
      [&] { narrow(x, h, r); }, [&] { wide(other, h, r); });
}

/// One row by square weights, and reading as many bytes, on one thread and on all.
struct Scaling {
  std::string what;
  std::vector<double> one{}, all{}, read_one{}, read_all{};
};
std::vector<Scaling> scalings;

template <class W, class Threads> class OneRow {
 public:
  explicit OneRow(const mha::Tensor<Source<W>, 2>& w)
      : w_(w),
        linear_({.inputs = w.extent(0), .outputs = w.extent(1), .bias = false}),
        x_(1, w.extent(0)),
        y_(1, w.extent(1)) {
    give<W>(linear_, mha::BorrowedLinear<Source<W>>{.weight = w});
    std::fill(x_.begin(), x_.end(), 1.f);
    calls_ = bench::calls_per_sample(bench::wall_seconds, [&] { multiply(); });
    reads_ = bench::calls_per_sample(bench::wall_seconds, [&] { read(); });
  }
  void sample(std::vector<double>& products, std::vector<double>& reading) {
    multiply();
    products.push_back(bench::seconds_per_call(bench::wall_seconds, calls_, [&] { multiply(); }));
    read();
    reading.push_back(bench::seconds_per_call(bench::wall_seconds, reads_, [&] { read(); }));
  }

 private:
  void multiply() { linear_(x_, mha::into(y_), workspace_); }
  void read() {
    const double bytes = bytes_of<W>(double(w_.size()));  // of rounded weights a part of what they were made of
    bench::read_all<Threads>(reinterpret_cast<const float*>(w_.data()), std::size_t(bytes) / sizeof(float));
  }

  const mha::Tensor<Source<W>, 2>& w_;
  mha::Linear<float, mha::CpuWith<Threads>> linear_;
  mha::Tensor<float, 2> x_, y_;
  mha::Workspace workspace_;
  int calls_ = 1, reads_ = 1;
};

template <class W> void one_row(benchmark::State& state, Index E) {
  const auto w = weights<Source<W>>(E, E);
  OneRow<W, mha::Serial> one(w);
  OneRow<W, mha::ThreadPool> all(w);
  Scaling row{std::to_string(E) + " → " + std::to_string(E) + ", " + scalar<W>};
  for ([[maybe_unused]] auto _ : state) {
    one.sample(row.one, row.read_one);
    all.sample(row.all, row.read_all);
    state.SetIterationTime(row.all.back());
  }
  state.counters["speed_up"] = bench::median_ratio(row.one, row.all);
  state.counters["of_reading"] = bench::median_ratio(row.read_one, row.read_all);
  scalings.push_back(std::move(row));
}

template <class F> void add(const std::string& name, F&& f) { bench::add(name, rounds, f); }

template <class W, class Threads> void add_by(const std::string& threads) {
  const std::string suffix = std::string("/") + scalar<W> + threads;
  for (const auto& [count, in, out] : {std::array<Index, 3>{1, 4096, 4096}, {8, 4096, 4096}, {512, 768, 3072}})
    add("linear/" + std::to_string(count) + "x" + std::to_string(in) + "x" + std::to_string(out) + suffix,
        [count = count, in = in, out = out](auto& s) { linear<W, Threads>(s, count, in, out); });
  add("llama_block/1" + suffix, [](auto& s) { block<W, Threads>(s); });
}

template <class... W> void add_narrow() {
  (add_by<W, mha::Serial>("/serial"), ...);
  (add_by<W, mha::ThreadPool>("/threads"), ...);
}
template <class... W> void add_one_row(Index E) {
  (add("one_row/" + std::to_string(E) + "/" + scalar<W>, [E](auto& s) { one_row<W>(s, E); }), ...);
}

}  // namespace

int main(int argc, char** argv) {
  add_narrow<mha::bfloat16, mha::half, mha::scaled_int8, mha::scaled_int4>();
  for (const Index E : {2048, 4096}) add_one_row<float, mha::bfloat16, mha::scaled_int8, mha::scaled_int4>(E);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  std::printf("\n%s\n", bench::machine().c_str());
  bench::Table table({"rows × K → N, weights", "ms", "GB/s of weights", "of reading", "time to float weights"});
  for (const Row& r : rows) {
    std::vector<double> read;
    for (const double byte : r.reading) read.push_back(byte * r.bytes);
    table.add({r.what, bench::number(1e3 * bench::median(r.seconds), 2),
               bench::number(r.bytes * 1e-9 / bench::median(r.seconds), 1),
               bench::number(100 * bench::median_ratio(read, r.seconds), 0) + " %",
               bench::number(bench::median_ratio(r.seconds, r.wide), 2) + "×"});
  }
  table.print();
  std::printf("\none row, %d threads against one, by the clock on the wall\n", mha::ThreadPool{}.workers());
  bench::Table scaled(
      {"K → N, weights", "one thread, ms", "of reading", "all, ms", "of reading", "speed-up", "speed-up of reading"});
  for (const Scaling& r : scalings)
    scaled.add({r.what, bench::number(1e3 * bench::median(r.one), 3),
                bench::number(100 * bench::median_ratio(r.read_one, r.one), 0) + " %",
                bench::number(1e3 * bench::median(r.all), 3),
                bench::number(100 * bench::median_ratio(r.read_all, r.all), 0) + " %",
                bench::number(bench::median_ratio(r.one, r.all), 2) + "×",
                bench::number(bench::median_ratio(r.read_one, r.read_all), 2) + "×"});
  scaled.print();
  return 0;
}
