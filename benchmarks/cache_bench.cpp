// SPDX-License-Identifier: Apache-2.0
// What a key/value cache costs and saves: its books beside attention, prompts in pieces, prompts beside single tokens,
// generation against computing every token again, and one row over pages and rings against contiguous memory; on one
// thread and on all.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <mha/mha.hpp>

#include "counting_allocator.hpp"
#include "measure.hpp"
#include "program.hpp"

namespace {

template <class Threads>
using Layer =
    mha::MultiHeadAttention<float, mha::CpuWith<Threads>, mha::GroupedQuery<mha::Dynamic>, mha::Causal, mha::Rotary<>>;

constexpr int rounds = 7, more_rounds = 15, heads = 32, kv_heads = 8, dim = 128;

struct Row {
  std::string name, first, second;  ///< what is compared
  mha::Index threads;
  double first_ms, second_ms, ratio;
  std::size_t allocations;
};
std::vector<Row> rows_of_table;

mha::Tensor<float, 2> random_rows(int rows, int width) {
  std::mt19937 gen(3);
  std::normal_distribution<float> normal;
  mha::Tensor<float, 2> x(rows, width);
  std::generate(x.begin(), x.end(), [&] { return normal(gen); });
  return x;
}

template <class Threads> std::string threads_of() { return "/threads:" + std::to_string(Threads{}.workers()); }

/// Samples of two functions in turns.
template <class Threads, class F, class G>
void compare(benchmark::State& state, const std::string& name, const char* first_name, F&& first,
             const char* second_name, G&& second) {
  const bench::Clock clock = bench::clock_of<Threads>();
  std::vector<double> a, b;
  first();
  second();
  const std::size_t allocations = bench::footprint(first).count;
  for ([[maybe_unused]] auto _ : state) {
    a.push_back(bench::seconds_per_call(clock, 1, first));
    b.push_back(bench::seconds_per_call(clock, 1, second));
    state.SetIterationTime(a.back());
  }
  rows_of_table.push_back({name, first_name, second_name, Threads{}.workers(), 1e3 * bench::median(a),
                           1e3 * bench::median(b), bench::median_ratio(a, b), allocations});
}

/// Reserving, describing and taking back a step of one row for each sequence, beside attention over what they hold.
template <class Threads, class Storage>
void books(benchmark::State& state, const char* name, const Storage& storage, int sequences) {
  constexpr int keys = 1024;
  mha::KvCache<Storage, mha::bfloat16> cache({kv_heads, dim, dim}, storage, {.sequences = sequences});
  std::vector<mha::SequenceId> ids;
  {
    mha::Tensor<mha::bfloat16, 3> row(keys, kv_heads, dim);
    for (int s = 0; s < sequences; ++s) {
      ids.push_back(cache.add());
      auto step = cache.step(ids.back(), keys);
      step.append(0, row, row);
      step.commit();
    }
  }
  const std::vector<mha::Index> one(ids.size(), 1);
  mha::Tensor<mha::bfloat16, 3> row(sequences, kv_heads, dim);
  mha::Tensor<mha::bfloat16, 4> q(sequences, 1, heads, dim), out(sequences, 1, heads, dim);
  mha::Workspace workspace;
  compare<Threads>(
      state, name, "books of a step", [&] { benchmark::DoNotOptimize(cache.step(ids, one).offsets().data()); },
      "its attention",
      [&] {
        auto step = cache.step(ids, one);
        step.append(0, row, row);
        mha::attention_into<mha::CpuWith<Threads>>(out, q, step.source(0), mha::Causal{}, workspace);
      });
}

/// A prompt in pieces of 256 rows against one call without a cache.
template <class Threads> void prompt(benchmark::State& state, const std::string& name, int length) {
  Layer<Threads> layer({.d_model = 1024, .num_heads = 1024 / dim, .num_kv_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  const auto x = random_rows(length, 1024);
  mha::Tensor<float, 2> y(length, 1024);
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = length});
  const mha::SequenceId id = cache.add();
  mha::Workspace workspace;
  compare<Threads>(
      state, name, "in pieces of 256",
      [&] {
        cache.truncate(id, 0);
        for (int i = 0; i < length; i += 256)
          layer.step(mha::view(&x(i, 0), 256, 1024), cache, mha::into(mha::view(&y(i, 0), 256, 1024)), workspace);
      },
      "layer(x)", [&] { layer(x, mha::into(y), workspace); });
}

/// 31 sequences of 1024 positions go on by a token beside one that reads 512 rows: in one step, and in two.
template <class Threads> void mixture(benchmark::State& state, const std::string& name) {
  constexpr int others = 31, chunk = 512, keys = 1024, width = 1024;
  Layer<Threads> layer({.d_model = width, .num_heads = width / dim, .num_kv_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 2});
  auto cache =
      mha::make_cache(layer, mha::Paged{.pages = (others + 1) * 20, .length = 1280}, {.sequences = others + 1});
  const auto x = random_rows(keys, width);
  mha::Tensor<float, 2> y(keys, width);
  mha::Workspace workspace;
  std::vector<mha::SequenceId> ids;
  for (int s = 0; s < others; ++s) {
    ids.push_back(cache.add());
    auto step = cache.step(ids.back(), keys);
    layer(x, step[0], mha::into(y), workspace);
    step.commit();
  }
  std::vector<mha::Index> rows(ids.size(), 1);
  const std::vector<mha::SequenceId> tokens = ids;
  const std::vector<mha::Index> ones = rows;
  const mha::SequenceId reader = cache.add();
  ids.push_back(reader);
  rows.push_back(chunk);
  // Nothing is committed, so that every round finds the cache as it was.
  compare<Threads>(
      state, name, "one step",
      [&] {
        auto step = cache.step(ids, rows);
        layer(mha::view(x.data(), others + chunk, width), step[0],
              mha::into(mha::view(y.data(), others + chunk, width)), workspace);
      },
      "two steps",
      [&] {
        {
          auto step = cache.step(tokens, ones);
          layer(mha::view(x.data(), others, width), step[0], mha::into(mha::view(y.data(), others, width)), workspace);
        }
        auto step = cache.step(reader, chunk);
        layer(mha::view(x.data(), chunk, width), step[0], mha::into(mha::view(y.data(), chunk, width)), workspace);
      });
}

/// Tokens one by one with the cache, against the whole text again for each.
template <class Threads> void generation(benchmark::State& state, const std::string& name) {
  constexpr int length = 1024, width = 512;
  Layer<Threads> layer({.d_model = width, .num_heads = width / dim, .num_kv_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 4});
  const auto x = random_rows(length, width);
  mha::Tensor<float, 2> y(length, width);
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = length});
  const mha::SequenceId id = cache.add();
  mha::Workspace workspace;
  compare<Threads>(
      state, name, "with the cache",
      [&] {
        cache.truncate(id, 0);
        for (int i = 0; i < length; ++i)
          layer.step(mha::view(&x(i, 0), 1, width), cache, mha::into(mha::view(&y(i, 0), 1, width)), workspace);
      },
      "computed again",
      [&] {
        for (int i = 0; i < length; ++i)
          layer(mha::view(x.data(), i + 1, width), mha::into(mha::view(y.data(), i + 1, width)), workspace);
      });
}

/// A cache of one sequence of one layer, and a row that attends to it; nothing is committed, so that every call does
/// the same.
template <class Threads, class Storage, class T> struct OneRow {
  mha::KvCache<Storage, T> cache;
  mha::SequenceId id;
  mha::SlidingWindow mask;
  mha::Tensor<T, 3> row{1, kv_heads, dim};
  mha::Tensor<T, 4> q{1, 1, heads, dim}, out{1, 1, heads, dim};
  mha::Workspace workspace;

  /// `seen` keys are seen of `length` positions, which come in steps.
  OneRow(const Storage& storage, int length, int seen)
      : cache({kv_heads, dim, dim}, storage, {.sequences = most_sequences(storage)}), mask{.left = seen - 1} {
    if constexpr (std::is_same_v<Storage, mha::Paged>) mix_pages();
    id = cache.add();
    constexpr int most = 512;
    mha::Tensor<T, 3> rows(most, kv_heads, dim);
    std::mt19937 gen(5);
    std::normal_distribution<float> normal;
    for (auto* t : {&rows, &row}) std::generate(t->begin(), t->end(), [&] { return T(normal(gen)); });
    std::generate(q.begin(), q.end(), [&] { return T(normal(gen)); });
    for (int i = 0; i < length - 1; i += most) {
      const int count = std::min(most, length - 1 - i);
      auto step = cache.step(id, count);
      step.append(0, mha::view(rows.data(), count, kv_heads, dim), mha::view(rows.data(), count, kv_heads, dim));
      step.commit();
    }
  }
  void operator()() {
    auto step = cache.step(id, 1);
    step.append(0, row, row);
    mha::attention_into<mha::CpuWith<Threads>>(out, q, step.source(0), mask, workspace);
  }

 private:
  static int most_sequences(const mha::Paged& s) { return s.pages; }
  template <class Other> static int most_sequences(const Other&) { return 1; }
  /// Sequences of a page each come and go, so that the next one's pages lie anywhere.
  void mix_pages() {
    std::vector<mha::SequenceId> ids;
    while (cache.sequences() < cache.max_sequences()) {
      ids.push_back(cache.add());
      auto step = cache.step(ids.back(), 1);
      step.append(0, row, row);
      step.commit();
    }
    std::shuffle(ids.begin(), ids.end(), std::mt19937(9));
    for (const mha::SequenceId other : ids) cache.remove(other);
  }
};

struct StorageRow {
  std::string name, storage, other;
  mha::Index threads;
  std::vector<double> seconds{}, others{}, reading{};
};
std::vector<StorageRow> storage_rows;

/// Two caches in turns, and reading as many bytes as a row reads of each.
template <class Threads, class T, class One, class Other>
void in_turns(benchmark::State& state, StorageRow row, One&& one, Other&& other, int seen) {
  const auto memory = bench::numbers_to_read(std::size_t(seen) * kv_heads * dim * 2 * sizeof(T) / sizeof(float));
  const auto read = [&] { bench::read_all<Threads>(memory.data(), memory.size()); };
  const bench::Clock clock = bench::clock_of<Threads>();
  const int calls = bench::calls_per_sample(clock, other), reads = bench::calls_per_sample(clock, read);
  one();
  for ([[maybe_unused]] auto _ : state) {
    row.seconds.push_back(bench::seconds_per_call(clock, calls, one));
    row.others.push_back(bench::seconds_per_call(clock, calls, other));
    row.reading.push_back(bench::seconds_per_call(clock, reads, read));
    state.SetIterationTime(row.seconds.back());
  }
  state.counters["of_other"] = bench::median_ratio(row.others, row.seconds);
  state.counters["of_read"] = bench::median_ratio(row.reading, row.seconds);
  storage_rows.push_back(std::move(row));
}

template <class Threads, class T> void storages(const std::string& scalar, int keys) {
  using State = benchmark::State;
  const std::string where = scalar + "/Lk:" + std::to_string(keys), on = threads_of<Threads>();
  const auto contiguous = [keys] { return OneRow<Threads, mha::Contiguous, T>({.length = keys}, keys, keys); };
  for (const int page : {16, 64})
    bench::add("storage/" + where + "/pages:" + std::to_string(page) + on, more_rounds, [=](State& s) {
      const mha::Paged paged{.pages = keys / page, .length = keys, .page = page};
      in_turns<Threads, T>(s, {where, "pages of " + std::to_string(page), "contiguous", Threads{}.workers()},
                           OneRow<Threads, mha::Paged, T>(paged, keys, keys), contiguous(), keys);
    });
  // A ring of so many keys that has gone around one and a half times: two runs.
  bench::add("storage/" + where + "/ring" + on, more_rounds, [=](State& s) {
    in_turns<Threads, T>(s, {where, "ring", "contiguous", Threads{}.workers()},
                         OneRow<Threads, mha::Ring, T>({.left = keys - 1, .rows = 512}, keys + keys / 2, keys),
                         contiguous(), keys);
  });
}

/// The same ring far along and not so far, at the same place in its memory.
template <class Threads, class T> void positions(const std::string& scalar) {
  bench::add("ring/" + scalar + "/1000000" + threads_of<Threads>(), more_rounds, [scalar](benchmark::State& s) {
    constexpr int keys = 4096, rows = 512, near = 10'000, far = near + 194 * (keys - 1 + 2 * rows);
    const mha::Ring ring{.left = keys - 1, .rows = rows};
    in_turns<Threads, T>(
        s,
        {scalar + "/Lk:4096", "ring at " + std::to_string(far), "ring at " + std::to_string(near), Threads{}.workers()},
        OneRow<Threads, mha::Ring, T>(ring, far, keys), OneRow<Threads, mha::Ring, T>(ring, near, keys), keys);
  });
}

void print_storages() {
  std::printf("\none row, %d query heads, %d key/value heads, head size %d\n", heads, kv_heads, dim);
  bench::Table table({"case", "storage", "threads", "ms", "of reading", "beside", "of its rate"});
  for (const StorageRow& r : storage_rows)
    table.add({r.name, r.storage, std::to_string(r.threads), bench::number(1e3 * bench::median(r.seconds), 3),
               bench::number(100 * bench::median_ratio(r.reading, r.seconds), 0) + " %", r.other,
               bench::number(100 * bench::median_ratio(r.others, r.seconds), 1) + " %"});
  table.print();
}

void print_table() {
  std::printf("\n%s\nhead size %d\n", bench::machine().c_str(), dim);
  bench::Table table(
      {"case", "first", "second", "threads", "first ms", "second ms", "first / second", "allocations of the first"});
  for (const Row& r : rows_of_table)
    table.add({r.name, r.first, r.second, std::to_string(r.threads), bench::number(r.first_ms, 3),
               bench::number(r.second_ms, 3), bench::number(r.ratio, 4), std::to_string(r.allocations)});
  table.print();
}

template <class Threads> void add_all() {
  using State = benchmark::State;
  const std::string on = threads_of<Threads>();
  bench::add("books/contiguous/256" + on, rounds, [](State& s) {
    books<Threads>(s, "books, contiguous, 256 sequences", mha::Contiguous{.length = 1040}, 256);
  });
  bench::add("books/paged/256" + on, rounds, [](State& s) {
    books<Threads>(s, "books, paged, 256 sequences", mha::Paged{.pages = 256 * 65, .length = 1040, .page = 16}, 256);
  });
  for (const int length : {1024, 4096})
    bench::add("prompt/" + std::to_string(length) + on, rounds,
               [length](State& s) { prompt<Threads>(s, "prompt of " + std::to_string(length), length); });
  bench::add("mixture" + on, rounds, [](State& s) { mixture<Threads>(s, "31 tokens and 512 rows"); });
  bench::add("generation" + on, 1, [](State& s) { generation<Threads>(s, "1024 tokens"); });
  for (const int keys : {4096, 32768}) {
    storages<Threads, float>("f32", keys);
    storages<Threads, mha::bfloat16>("bf16", keys);
  }
  positions<Threads, float>("f32");
  positions<Threads, mha::bfloat16>("bf16");
}

}  // namespace

int main(int argc, char** argv) {
  add_all<mha::Serial>();
  add_all<mha::ThreadPool>();
  return bench::run_all(argc, argv, [] {
    print_table();
    print_storages();
  });
}
