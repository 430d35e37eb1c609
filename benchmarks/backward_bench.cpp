// SPDX-License-Identifier: Apache-2.0
// attention_backward() on one thread, in percent of the multiply-add peak of the same round, beside the forward pass;
// windows, a trained score and threads against the same call without; and that of Systolic, in percent of its matrix
// unit's peak, beside Cpu's.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "measure.hpp"
#include "program.hpp"
#include "unit_peak.hpp"

namespace {

constexpr int rounds = 15;
using Backend = mha::CpuWith<mha::Serial>;

struct Row {
  double flop = 0;  // of the forward pass; the backward pass has 5/2 of it where D = Dv
  std::vector<double> peak, backward, forward;
  std::vector<double> dropped_backward, dropped_forward;  // where dropout is measured too
};
std::map<std::string, Row> rows;
std::vector<std::string> order;  // as they ran

template <class T, class M>
void backward(benchmark::State& state, const std::string& name, int length, int dim, const M& mask, bool drops) {
  const auto [found, is_new] = rows.try_emplace(name);
  if (is_new) order.push_back(name);
  Row& row = found->second;
  constexpr int heads = 1;
  row.flop = 4.0 * dim * heads *
             mha::visible_pairs(mask, {.batch = 1, .heads = heads, .queries = length, .keys = length, .origin = 0});
  using Tensor = mha::Tensor<T, 4>;
  Tensor q(1, length, heads, dim), k = q, v = q, d_out = q, out = q, dq = q, dk = q, dv = q;
  std::mt19937 gen(7);
  std::normal_distribution<float> normal;
  for (Tensor* t : {&q, &k, &v, &d_out})
    std::generate(t->begin(), t->end(), [&] { return static_cast<T>(normal(gen)); });
  mha::Workspace workspace;
  mha::AttentionTape<T, Backend> tape;
  const auto forward = [&] { mha::attention_into(out, q, k, v, mask, Backend{}, mha::record(tape), workspace); };
  forward();
  const auto ours = [&] { mha::attention_backward_into({dq, dk, dv}, d_out, q, k, v, out, tape, mask, workspace); };
  const int calls = bench::calls_per_sample(bench::thread_seconds, ours);
  mha::AttentionTape<T, Backend> dropped_tape;
  const mha::Dropout dropout{.p = 0.1f};
  const mha::DropoutSeed seed{7};
  const auto dropped_forward = [&] {
    mha::attention_into(out, q, k, v, mask, dropout, seed, Backend{}, mha::record(dropped_tape), workspace);
  };
  const auto dropped_backward = [&] {
    mha::attention_backward_into({dq, dk, dv}, d_out, q, k, v, out, dropped_tape, mask, dropout, seed, workspace);
  };
  for ([[maybe_unused]] auto _ : state) {
    const double before = bench::peak_gflops<mha::Accumulator<T>>();
    row.backward.push_back(bench::seconds_per_call(bench::thread_seconds, calls, ours));
    row.forward.push_back(bench::seconds_per_call(bench::thread_seconds, calls, forward));
    if (drops) {
      dropped_forward();
      row.dropped_forward.push_back(bench::seconds_per_call(bench::thread_seconds, calls, dropped_forward));
      row.dropped_backward.push_back(bench::seconds_per_call(bench::thread_seconds, calls, dropped_backward));
    }
    row.peak.push_back((before + bench::peak_gflops<mha::Accumulator<T>>()) / 2);
    state.SetIterationTime(row.backward.back());
  }
  state.counters["GFLOPs"] = 2.5e-9 * row.flop / bench::median(row.backward);
}

/// A score of a user's with one trained number.
template <class T = float> struct Distance {
  T slope;
  template <class S> auto operator()(S s, int, int, int q, int k) const { return s - slope * float(mha::abs(q - k)); }
};

/// The backward pass of a recorded call, of a score its gradient too.
template <class B, class Mask, class Score> struct Call {
  mha::Tensor<float, 4> q, k, v, d_out, out, dq, dk, dv;
  Mask mask;
  Score score, gradient{score};
  mha::Workspace workspace;
  mha::AttentionTape<float, B> tape;
  double pairs;

  Call(int heads, int length, int dim, const Mask& sees, const Score& bends)
      : q(1, length, heads, dim), k(q), v(q), d_out(q), out(q), dq(q), dk(q), dv(q), mask(sees), score(bends) {
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    for (auto* t : {&q, &k, &v, &d_out}) std::generate(t->begin(), t->end(), [&] { return normal(gen); });
    pairs = mha::visible_pairs(mask, {.batch = 1, .heads = heads, .queries = length, .keys = length, .origin = 0});
    mha::attention_into(out, q, k, v, mask, score, B{}, mha::record(tape), workspace);
  }
  void operator()() {
    if constexpr (std::is_same_v<Score, mha::NoScore>)
      mha::attention_backward_into({dq, dk, dv}, d_out, q, k, v, out, tape, mask, workspace);
    else
      mha::attention_backward_into({dq, dk, dv}, d_out, q, k, v, out, tape, mask, score, mha::ScoreGradient(gradient),
                                   workspace);
  }
};

/// Two calls in turns; rates are of visible work.
struct Pair {
  std::string name, other;
  double pairs{}, other_pairs{};
  std::vector<double> seconds{}, others{};
};
std::vector<Pair> pairs;

template <class One, class Other> void in_turns(benchmark::State& state, Pair pair, One&& one, Other&& other) {
  pair.pairs = one.pairs;
  pair.other_pairs = other.pairs;
  const bench::Clock clock = pair.other == "one thread" ? bench::wall_seconds : bench::thread_seconds;
  const int calls = bench::calls_per_sample(clock, one), other_calls = bench::calls_per_sample(clock, other);
  for ([[maybe_unused]] auto _ : state) {
    pair.seconds.push_back(bench::seconds_per_call(clock, calls, one));
    pair.others.push_back(bench::seconds_per_call(clock, other_calls, other));
    state.SetIterationTime(pair.seconds.back());
  }
  state.counters["of_other"] = one.pairs / other.pairs * bench::median_ratio(pair.others, pair.seconds);
  pairs.push_back(std::move(pair));
}

void print_pairs() {
  bench::Table table({"call", "beside", "ms", "of that, ms", "rate by its rate"});
  for (const Pair& p : pairs)
    table.add({p.name, p.other, bench::number(1e3 * bench::median(p.seconds), 2),
               bench::number(1e3 * bench::median(p.others), 2),
               bench::number(p.pairs / p.other_pairs * bench::median_ratio(p.others, p.seconds), 2)});
  table.print();
}

using OnArray = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, mha::Serial>;

/// A call in bfloat16 on Systolic and on Cpu, in turns.
struct ArrayRow {
  double flop = 0;
  std::vector<double> peak, backward, forward, cpu;
};
std::map<std::string, ArrayRow> array_rows;
std::vector<std::string> array_order;

template <class B> struct ArrayCall {
  using Tensor = mha::Tensor<mha::bfloat16, 4>;
  Tensor q, k, v, d_out, out, dq, dk, dv;
  mha::Workspace workspace;
  mha::AttentionTape<mha::bfloat16, B> tape;

  ArrayCall(int length, int dim) : q(1, length, 1, dim), k(q), v(q), d_out(q), out(q), dq(q), dk(q), dv(q) {
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    for (Tensor* t : {&q, &k, &v, &d_out})
      std::generate(t->begin(), t->end(), [&] { return mha::bfloat16(normal(gen)); });
  }
  template <class M> void forward(const M& mask) {
    mha::attention_into(out, q, k, v, mask, B{}, mha::record(tape), workspace);
  }
  template <class M> void backward(const M& mask) {
    mha::attention_backward_into({dq, dk, dv}, d_out, q, k, v, out, tape, mask, workspace);
  }
};

template <class M> void on_array(benchmark::State& state, const std::string& name, int length, int dim, const M& mask) {
  const auto [found, is_new] = array_rows.try_emplace(name);
  if (is_new) array_order.push_back(name);
  ArrayRow& row = found->second;
  row.flop =
      4.0 * dim * mha::visible_pairs(mask, {.batch = 1, .heads = 1, .queries = length, .keys = length, .origin = 0});
  ArrayCall<OnArray> ours(length, dim);
  ArrayCall<Backend> cpu(length, dim);
  ours.forward(mask);
  cpu.forward(mask);
  const auto backward = [&] { ours.backward(mask); };
  const int calls = bench::calls_per_sample(bench::thread_seconds, backward);
  const auto unit = mha::detail::systolic::attention_unit<mha::AmxArray>();
  for ([[maybe_unused]] auto _ : state) {
    const double before = bench::unit_peak_gflops(unit);
    row.backward.push_back(bench::seconds_per_call(bench::thread_seconds, calls, backward));
    row.cpu.push_back(bench::seconds_per_call(bench::thread_seconds, calls, [&] { cpu.backward(mask); }));
    row.forward.push_back(bench::seconds_per_call(bench::thread_seconds, calls, [&] { ours.forward(mask); }));
    row.peak.push_back((before + bench::unit_peak_gflops(unit)) / 2);
    state.SetIterationTime(row.backward.back());
  }
  state.counters["GFLOPs"] = 2.5e-9 * row.flop / bench::median(row.backward);
}

void print_array_table() {
  std::printf("\nSystolic on the unit %s, bfloat16\n", mha::to_string(mha::current_unit()));
  bench::Table table({"call", "ms", "% of the unit's peak", "forward, % of it", "Cpu's time : ours"});
  for (const std::string& name : array_order) {
    const ArrayRow& r = array_rows.at(name);
    if (r.backward.empty()) continue;
    std::vector<double> share, forward;
    for (std::size_t i = 0; i < r.peak.size(); ++i) {
      share.push_back(2.5e-7 * r.flop / r.backward[i] / r.peak[i]);
      forward.push_back(1e-7 * r.flop / r.forward[i] / r.peak[i]);
    }
    table.add({name, bench::number(1e3 * bench::median(r.backward), 2), bench::number(bench::median(share), 1),
               bench::number(bench::median(forward), 1), bench::number(bench::median_ratio(r.cpu, r.backward), 2)});
  }
  table.print();
}

void print_table() {
  std::printf("\n%s\none head, one thread; medians of %d rounds\n", bench::machine().c_str(), rounds);
  bench::Table table({"call", "ms", "% of peak", "forward, % of peak", "time : forward's"});
  for (const std::string& name : order) {
    const Row& r = rows.at(name);
    if (r.backward.empty()) continue;
    std::vector<double> share, forward;
    for (std::size_t i = 0; i < r.peak.size(); ++i) {
      share.push_back(2.5e-7 * r.flop / r.backward[i] / r.peak[i]);
      forward.push_back(1e-7 * r.flop / r.forward[i] / r.peak[i]);
    }
    table.add({name, bench::number(1e3 * bench::median(r.backward), 2), bench::number(bench::median(share), 1),
               bench::number(bench::median(forward), 1), bench::number(bench::median_ratio(r.backward, r.forward), 2)});
  }
  table.print();
  std::printf("\ndropout 0.1, time by the time without\n");
  bench::Table dropout({"call", "forward", "backward"});
  for (const std::string& name : order)
    if (const Row& r = rows.at(name); !r.dropped_forward.empty())
      dropout.add({name, bench::number(bench::median_ratio(r.dropped_forward, r.forward), 3),
                   bench::number(bench::median_ratio(r.dropped_backward, r.backward), 3)});
  dropout.print();
}

template <class T, class M>
void add(const std::string& scalar, int length, int dim, const std::string& what, const M& mask, bool drops = false) {
  const std::string name = scalar + "/D:" + std::to_string(dim) + "/L:" + std::to_string(length) + "/" + what;
  bench::add(name, rounds, [=](benchmark::State& state) { backward<T>(state, name, length, dim, mask, drops); });
}

template <class M> void add_on_array(int length, int dim, const std::string& what, const M& mask) {
  const std::string name = "Systolic/D:" + std::to_string(dim) + "/L:" + std::to_string(length) + "/" + what;
  bench::add(name, rounds, [=](benchmark::State& state) { on_array(state, name, length, dim, mask); });
}

template <class Mask> void add_trained(int dim, const std::string& what, const Mask& mask) {
  const std::string name = "trained score/D:" + std::to_string(dim) + "/L:2048/" + what;
  bench::add(name, rounds, [=](benchmark::State& state) {
    in_turns(state, {name, "without a score"}, Call<Backend, Mask, Distance<>>(1, 2048, dim, mask, {0.01f}),
             Call<Backend, Mask, mha::NoScore>(1, 2048, dim, mask, {}));
  });
}
void add_window(int dim) {
  const std::string name = "window 256/D:" + std::to_string(dim) + "/L:2048";
  bench::add(name, rounds, [=](benchmark::State& state) {
    using Window = mha::SlidingWindow;
    in_turns(state, {name, "causal"}, Call<Backend, Window, mha::NoScore>(1, 2048, dim, Window{.left = 255}, {}),
             Call<Backend, mha::Causal, mha::NoScore>(1, 2048, dim, mha::Causal{}, {}));
  });
}
template <class Mask> void add_threads(int heads, int length, int dim, const std::string& what, const Mask& mask) {
  const std::string name = "all threads/D:" + std::to_string(dim) + "/L:" + std::to_string(length) +
                           "/heads:" + std::to_string(heads) + "/" + what;
  bench::add(name, rounds, [=](benchmark::State& state) {
    using All = mha::CpuWith<mha::ThreadPool>;
    in_turns(state, {name, "one thread"}, Call<All, Mask, mha::NoScore>(heads, length, dim, mask, {}),
             Call<Backend, Mask, mha::NoScore>(heads, length, dim, mask, {}));
  });
}

}  // namespace

int main(int argc, char** argv) {
  for (const int dim : {64, 128})
    for (const int length : {512, 2048, 4096}) {
      add<float>("float", length, dim, "full", mha::Full{}, length == 2048);
      add<float>("float", length, dim, "causal", mha::Causal{}, length == 2048);
    }
  add<mha::bfloat16>("bfloat16", 2048, 64, "causal", mha::Causal{});
  add<double>("double", 2048, 64, "causal", mha::Causal{});
  add<float>("float", 4096, 64, "window of 512", mha::SlidingWindow{.left = 511});
  for (const int dim : {64, 128}) {
    add_window(dim);
    add_trained(dim, "full", mha::Full{});
    add_trained(dim, "causal", mha::Causal{});
    for (const auto& [heads, length] : {std::pair{8, 2048}, std::pair{1, 4096}}) {
      add_threads(heads, length, dim, "full", mha::Full{});
      add_threads(heads, length, dim, "causal", mha::Causal{});
    }
  }
  for (const int dim : {64, 128})
    for (const int length : {512, 2048}) {
      add_on_array(length, dim, "full", mha::Full{});
      add_on_array(length, dim, "causal", mha::Causal{});
    }
  return bench::run_all(argc, argv, [] {
    print_table();
    print_pairs();
    print_array_table();
  });
}
