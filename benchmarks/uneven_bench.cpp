// SPDX-License-Identifier: Apache-2.0
// Batches of sequences of very different lengths, on one thread and on all: attention over a ragged and a padded batch
// in percent of the peak, one row for each sequence of a cache in percent of the limit, beside as much work in even
// lengths. Sampled in turns.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "measure.hpp"
#include "patterns.hpp"
#include "program.hpp"
#include "unit_peak.hpp"

namespace {

using bench::OneOrAll;
using mha::Index;
using Cpu = mha::CpuWith<OneOrAll>;
using Systolic = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, OneOrAll>;
using Lengths = std::vector<Index>;
constexpr int rounds = 9, heads = 2, token_heads = 32, token_dim = 128;

/// Sixteen quantiles of a lognormal distribution, in no order, as texts come: the longest has two thirds of the pairs.
Lengths prompts() { return {51, 69, 89, 684, 253, 34, 138, 169, 17, 2048, 313, 1016, 506, 111, 393, 206}; }
/// As many of one length, with as many pairs.
Lengths even_prompts() {
  double squares = 0;
  for (const Index length : prompts()) squares += double(length) * length;
  const auto n = prompts().size();
  return Lengths(n, static_cast<Index>(std::lround(std::sqrt(squares / static_cast<double>(n)))));
}
/// Keys of sequences that go on by a token each: one has four fifths of all.
Lengths texts() { return {640, 128, 1024, 320, 896, 64, 512, 1536, 256, 32768, 448, 192, 384, 768, 832, 192}; }
Lengths even_texts() {
  const Lengths all = texts();
  return Lengths(all.size(), std::accumulate(all.begin(), all.end(), 0) / static_cast<Index>(all.size()));
}

template <class Tensor> void fill(Tensor& to) {
  std::mt19937 gen(7);
  std::normal_distribution<float> normal;
  using T = std::remove_cvref_t<decltype(*to.begin())>;
  std::generate(to.begin(), to.end(), [&] { return T(normal(gen)); });
}

/// What is compared, with seconds of each round: uneven lengths, even ones, a padded batch of the uneven ones, and what
/// the uneven ones take at least.
struct Samples {
  std::vector<double> uneven, even, padded, limit;
};
struct Result {
  std::array<double, 2> work{};      // GFLOP or GB of the uneven lengths, and of even ones
  std::array<Samples, 2> samples{};  // one thread, all
};
struct Results {
  std::map<std::string, Result> of;
  std::vector<std::string> order;

  Result& operator[](const std::string& name) {
    const auto [found, is_new] = of.try_emplace(name);
    if (is_new) order.push_back(name);
    return found->second;
  }
};
Results of_prompts, of_tokens;

template <class Backend> constexpr bool on_unit = std::is_same_v<Backend, Systolic>;
/// GFLOP/s of so many threads at most.
template <class Backend> double peak_of(int threads) {
  if constexpr (on_unit<Backend>)
    return bench::unit_peak_gflops_of(mha::detail::systolic::attention_unit<mha::AmxArray>(), threads);
  else
    return bench::peak_gflops_of(threads);
}

/// A call to be sampled on one thread and on all.
template <class F> class Call {
 public:
  explicit Call(F f) : f_(std::move(f)) {}
  double seconds(bool all) {
    OneOrAll::all = all;
    const bench::Clock clock = all ? bench::wall_seconds : bench::thread_seconds;
    int& calls = calls_[all];
    if (calls == 0) calls = bench::calls_per_sample(clock, f_);
    return bench::seconds_per_call(clock, calls, f_);
  }

 private:
  F f_;
  std::array<int, 2> calls_{};
};

void report(benchmark::State& state, const Result& result, const char* unit) {
  for (std::size_t i = 0; i < 2; ++i) {
    const Samples& s = result.samples[i];
    const std::string threads = i == 0 ? "one" : "all";
    state.counters[unit + ("_" + threads)] = result.work[0] / bench::median(s.uneven);
    state.counters["of_limit_" + threads] = bench::median_ratio(s.limit, s.uneven);
    state.counters["of_even_" + threads] = bench::median_ratio(s.even, s.uneven) * result.work[0] / result.work[1];
  }
}

/// Rows (ΣL, H, D), a batch of them one after another.
template <class T> struct Batch {
  Lengths lengths;
  std::vector<Index> offsets{0};
  mha::Tensor<T, 3> q{0, 0, 0}, k{0, 0, 0}, v{0, 0, 0}, out{0, 0, 0};

  Batch(Lengths of, int dim) : lengths(std::move(of)) {
    for (const Index length : lengths) offsets.push_back(offsets.back() + length);
    for (auto* t : {&q, &k, &v, &out}) *t = mha::Tensor<T, 3>(offsets.back(), heads, dim);
    for (auto* t : {&q, &k, &v}) fill(*t);
  }
  /// A sequence's rows, (1, L, H, D).
  mha::TensorView<const T, 4> rows(const mha::Tensor<T, 3>& t, std::size_t b) const {
    return mha::view(&t(offsets[b], 0, 0), 1, lengths[b], heads, t.extent(2));
  }
};
/// The same in a rectangle, (B, L, H, D) with L of the longest.
template <class T> mha::Tensor<T, 4> padded(const Batch<T>& batch, const mha::Tensor<T, 3>& rows) {
  const Index longest = *std::max_element(batch.lengths.begin(), batch.lengths.end());
  mha::Tensor<T, 4> to(static_cast<Index>(batch.lengths.size()), longest, heads, rows.extent(2));
  for (std::size_t b = 0; b < batch.lengths.size(); ++b) {
    const auto from = batch.rows(rows, b);
    std::copy_n(from.data, from.stride[0], &to(static_cast<Index>(b), 0, 0, 0));
  }
  return to;
}

template <class T, class Backend, class Mask>
void prompt(benchmark::State& state, const std::string& name, int dim, const Mask& mask) {
  Batch<T> uneven(prompts(), dim), even(even_prompts(), dim);
  const auto q = padded(uneven, uneven.q), k = padded(uneven, uneven.k), v = padded(uneven, uneven.v);
  mha::Tensor<T, 4> out(q);
  mha::Workspace workspace;
  const auto attend = [&](Batch<T>& batch) {
    mha::attention_into<Backend>(batch.out, batch.q, batch.k, batch.v, mha::Ragged{batch.offsets}, mask, workspace);
  };
  Call of_uneven([&] { attend(uneven); });
  Call of_even([&] { attend(even); });
  Call of_padded([&] { mha::attention_into<Backend>(out, q, k, v, mha::Padding{uneven.lengths} && mask, workspace); });
  attend(uneven);
  // A fast wrong answer is no result.
  for (std::size_t b = 0; b < uneven.lengths.size(); ++b)
    if (!(bench::error_of_rows<T>(uneven.rows(uneven.q, b), uneven.rows(uneven.k, b), uneven.rows(uneven.v, b),
                                  uneven.rows(uneven.out, b), mask, mha::NoScore{}, 2) < bench::tolerance<T>()))
      return state.SkipWithError("the result is wrong");

  Result& result = of_prompts[name];
  for (const bool is_even : {false, true}) {
    double pairs = 0;
    for (const Index length : (is_even ? even : uneven).lengths)
      pairs += mha::visible_pairs(mask, {1, heads, length, length, 0});
    result.work[is_even] = 4e-9 * pairs * heads * dim;
  }
  for ([[maybe_unused]] auto _ : state) {
    for (const bool all : {false, true}) {
      Samples& s = result.samples[all];
      s.uneven.push_back(of_uneven.seconds(all));
      s.even.push_back(of_even.seconds(all));
      s.padded.push_back(of_padded.seconds(all));
      s.limit.push_back(result.work[0] / peak_of<Backend>(OneOrAll{}.workers()));
    }
    state.SetIterationTime(result.samples[0].uneven.back());
  }
  report(state, result, "GFLOPs");
}

/// A cache in pages that holds these keys, and a row for each sequence: the last of its keys is appended by every call,
/// none is committed.
template <class T, class Backend> class Tokens {
  using Layer = mha::MultiHeadAttention<T, Backend, mha::GroupedQuery<mha::Dynamic>, mha::Causal>;
  static constexpr Index page = 64;

 public:
  Tokens(const Lengths& keys, int kv_heads)
      : layer_({.d_model = 64, .num_heads = token_heads, .num_kv_heads = kv_heads, .head_dim = token_dim}),
        cache_(mha::make_cache(layer_, storage(keys), {.sequences = static_cast<Index>(keys.size())})),
        ones_(keys.size(), 1),
        row_(static_cast<Index>(keys.size()), kv_heads, token_dim),
        q_(static_cast<Index>(keys.size()), 1, token_heads, token_dim),
        out_(q_) {
    constexpr Index most = 512;
    mha::Tensor<T, 3> some(most, kv_heads, token_dim);
    fill(some);
    fill(row_);
    fill(q_);
    for (const Index of_sequence : keys) {
      ids_.push_back(cache_.add());
      for (Index held = 0; held < of_sequence - 1; held += most) {
        const Index rows = std::min(most, of_sequence - 1 - held);
        const auto given = mha::view(some.data(), rows, kv_heads, token_dim);
        auto step = cache_.step(ids_.back(), rows);
        step.append(0, given, given);
        step.commit();
      }
    }
  }
  void step() {
    auto step = cache_.step(ids_, ones_);
    step.append(0, row_, row_);
    mha::attention_into<Backend>(out_, q_, step.source(0), mha::Causal{}, workspace_);
  }

 private:
  static mha::Paged storage(const Lengths& keys) {
    Index pages = 0;
    for (const Index length : keys) pages += (length + page - 1) / page;
    return {.pages = pages, .length = *std::max_element(keys.begin(), keys.end()), .page = page};
  }

  Layer layer_;
  mha::CacheOf<Layer, mha::Paged> cache_;
  std::vector<mha::SequenceId> ids_;
  Lengths ones_;
  mha::Tensor<T, 3> row_;
  mha::Tensor<T, 4> q_, out_;
  mha::Workspace workspace_;
};

template <class T, class Backend> void tokens(benchmark::State& state, const std::string& name, int kv_heads) {
  Tokens<T, Backend> uneven(texts(), kv_heads), even(even_texts(), kv_heads);
  const Lengths all_keys = texts();
  const double keys = std::accumulate(all_keys.begin(), all_keys.end(), 0.0);
  const double bytes = 2 * keys * kv_heads * token_dim * sizeof(T), flop = 4 * keys * token_heads * token_dim;
  const auto memory = bench::numbers_to_read(static_cast<std::size_t>(bytes) / sizeof(float));
  Call of_uneven([&] { uneven.step(); });
  Call of_even([&] { even.step(); });
  Call of_reading([&] { bench::read_all<OneOrAll>(memory.data(), memory.size()); });

  Result& result = of_tokens[name];
  result.work = {1e-9 * bytes, 1e-9 * bytes};
  for ([[maybe_unused]] auto _ : state) {
    for (const bool all : {false, true}) {
      Samples& s = result.samples[all];
      s.uneven.push_back(of_uneven.seconds(all));
      s.even.push_back(of_even.seconds(all));
      s.limit.push_back(std::max(of_reading.seconds(all), 1e-9 * flop / peak_of<Backend>(OneOrAll{}.workers())));
    }
    state.SetIterationTime(result.samples[0].uneven.back());
  }
  report(state, result, "GBps");
}

std::string percent(double ratio) { return bench::number(100 * ratio, 0) + " %"; }

/// A row for each number of threads: texts of the case, then f(samples, work of the uneven and of the even lengths).
template <class F> void add_rows(bench::Table& table, const Results& results, const F& f) {
  for (const std::string& name : results.order) {
    const Result& result = results.of.at(name);
    for (std::size_t i = 0; i < 2; ++i) {
      const Samples& s = result.samples[i];
      if (s.uneven.empty()) continue;
      std::vector<std::string> row{name,
                                   i == 0 ? "1" : std::to_string(mha::ThreadPool{}.workers()),
                                   bench::number(1e3 * bench::median(s.uneven), 3),
                                   bench::number(result.work[0] / bench::median(s.uneven), 1),
                                   percent(bench::median_ratio(s.limit, s.uneven)),
                                   percent(bench::median_ratio(s.even, s.uneven) * result.work[0] / result.work[1])};
      f(s, row);
      const std::vector<double>&one = result.samples[0].uneven, &one_even = result.samples[0].even;
      row.push_back(i == 0 ? "" : bench::number(bench::median_ratio(one, s.uneven), 2) + "×");
      row.push_back(i == 0 ? "" : bench::number(bench::median_ratio(one_even, s.even), 2) + "×");
      table.add(row);
    }
  }
}

void print_table() {
  std::printf("\n%s; matrix unit %s\n", bench::machine().c_str(), to_string(mha::current_unit()));
  bench::Table prompts({"16 sequences of 17 to 2048", "threads", "ms", "GFLOP/s", "of the peak",
                        "of the rate of even lengths", "padded, against ragged", "speed-up", "of even lengths"});
  add_rows(prompts, of_prompts, [](const Samples& s, std::vector<std::string>& row) {
    row.push_back(bench::number(bench::median_ratio(s.padded, s.uneven), 2) + "×");
  });
  prompts.print();
  bench::Table tokens({"a row of 16 sequences, 64 to 32768 keys", "threads", "ms", "GB/s", "of the limit",
                       "of the rate of even lengths", "speed-up", "of even lengths"});
  add_rows(tokens, of_tokens, [](const Samples&, std::vector<std::string>&) {});
  tokens.print();
}

template <class T, class Backend> void add_prompts(const std::string& name) {
  for (const int dim : {64, 128}) {
    const auto add = [&](const char* mask_name, const auto& mask) {
      using Mask = std::remove_cvref_t<decltype(mask)>;
      const std::string all = "prompt/" + name + "/D:" + std::to_string(dim) + "/" + mask_name;
      bench::add(all, rounds, prompt<T, Backend, Mask>, all, dim, mask);
    };
    add("full", mha::Full{});
    add("causal", mha::Causal{});
  }
}
template <class T, class Backend> void add_tokens(const std::string& name) {
  for (const int kv_heads : {8, 1}) {
    const std::string all = "tokens/" + name + "/heads:" + std::to_string(token_heads) + "/" + std::to_string(kv_heads);
    bench::add(all, rounds, tokens<T, Backend>, all, kv_heads);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_unit = mha::current_unit() != mha::MatrixUnit::portable;
  add_prompts<float, Cpu>("f32");
  add_prompts<mha::bfloat16, Cpu>("bf16");
  if (has_unit) add_prompts<mha::bfloat16, Systolic>("Systolic");
  add_tokens<float, Cpu>("f32");
  add_tokens<mha::bfloat16, Cpu>("bf16");
  if (has_unit) add_tokens<mha::bfloat16, Systolic>("Systolic");
  return bench::run_all(argc, argv, print_table);
}
