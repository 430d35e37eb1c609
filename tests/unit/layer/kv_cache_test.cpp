// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/kv_cache.hpp>

#include "cache_picture.hpp"
#include "far_backend.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using mha::CacheSizes;
using mha::Contiguous;
using mha::Index;
using mha::KvCache;
using mha::KvShape;
using mha::Paged;
using mha::Ring;
using mha::SequenceId;
using mha::Tensor;
using support::message_of;
using support::picture;
using support::too_few_pages;
using support::write;

constexpr Index layers = 2, heads = 2, dim = 3, value_dim = 2;
constexpr KvShape shape{heads, dim, value_dim};
constexpr CacheSizes sizes{.layers = layers, .sequences = 5};

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

TEST(KvCache, SavedSequencesGoFromStorageToStorage) {
  KvCache<Contiguous, float> contiguous(shape, Contiguous{.length = 40}, sizes);
  KvCache<Paged, float> paged(shape, Paged{.pages = 3, .length = 64, .page = 16}, sizes);
  KvCache<Ring, float> ring(shape, Ring{.left = 8, .rows = 4}, sizes), small(shape, Ring{.left = 3, .rows = 4}, sizes);
  const SequenceId a = contiguous.add();
  for (int i = 0; i < 10; ++i) write(contiguous, a, 3, float(i));  // length 30
  const auto saved = contiguous.save(a);
  const auto from_pages = paged.save(paged.restore(saved));
  EXPECT_EQ(from_pages, saved);
  const SequenceId r = ring.restore(saved);
  EXPECT_EQ(ring.length(r), 30);
  EXPECT_EQ(ring.oldest(r), 18);
  const auto from_ring = ring.save(r);
  EXPECT_LT(from_ring.size(), saved.size());
  EXPECT_EQ(small.length(small.restore(from_ring)), 30);
  const auto refused = [](auto& cache, const auto& bytes) {
    const std::string before = picture(cache);
    const std::string sentence = message_of([&] { static_cast<void>(cache.restore(bytes)); });
    EXPECT_EQ(picture(cache), before);
    return sentence;
  };
  EXPECT_EQ(refused(contiguous, from_ring),
            "restore: the saved sequence is without positions 0 to 17, but this cache keeps all");
  EXPECT_EQ(refused(paged, from_ring),
            "restore: the saved sequence is without positions 0 to 17, but this cache keeps all");
  const auto from_small = small.save(small.restore(from_ring));
  EXPECT_EQ(
      refused(ring, from_small),
      "restore: the saved sequence is without positions 0 to 22, but this Ring keeps the first 0 and those from 22 "
      "on");
  KvCache<Contiguous, float> shorter(shape, Contiguous{.length = 29}, sizes);
  EXPECT_EQ(refused(shorter, saved), "restore: the saved sequence has length 30, the cache's limit is 29");
  EXPECT_EQ(refused(paged, saved), too_few_pages(2, 1, 3, "restore")) << "two are taken";
  KvCache<Contiguous, mha::bfloat16> narrow(shape, Contiguous{.length = 40}, sizes);
  EXPECT_EQ(refused(narrow, saved),
            "restore: the sequence was saved in float of 4 bytes, the cache stores bfloat16 of 2");
  KvCache<Contiguous, float> wide({heads, dim + 1, value_dim}, Contiguous{.length = 40}, sizes);
  EXPECT_EQ(refused(wide, saved), "restore: the saved sequence has head size 3 but the cache has head size 4");
  KvCache<Contiguous, float> deep(shape, Contiguous{.length = 40}, {.layers = layers + 1, .sequences = 1});
  EXPECT_EQ(refused(deep, saved), "restore: the saved sequence has layers 2 but the cache has layers 3");
  for (std::size_t n = 0; n < saved.size(); n += 7)
    EXPECT_NE(refused(contiguous, std::vector(saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(n))), "");
  auto other = saved;
  other[7] = std::byte{'2'};
  EXPECT_EQ(refused(contiguous, other), "restore: the sequence was saved in format 2, expected 1");
}

// A ring that keeps less than was saved takes that alone: no position is written over another's.
TEST(KvCache, ASmallerRingTakesTheLastPositions) {
  KvCache<Contiguous, float> all(shape, Contiguous{.length = 40}, sizes);
  KvCache<Ring, float> ring(shape, Ring{.left = 8, .rows = 4, .first = 2}, sizes);
  const SequenceId a = all.add();
  for (int i = 0; i < 10; ++i) write(all, a, 3, float(i));
  const auto into = [&](auto&& small, const auto& saved) {
    const SequenceId id = small.restore(saved);
    const Index oldest = small.oldest(id);
    EXPECT_EQ(oldest, 23);
    const auto step = small.step(id, 0);
    for (Index layer = 0; layer < layers; ++layer) {
      const auto source = step.source(layer);
      for (Index p = source.held(0, 0); p < 30; p = source.held(0, p + 1)) {
        const auto run = source.run(0, 1, p, p + 1);
        const auto reading = all.step(a, 0);
        const auto expected = reading.source(layer).run(0, 1, p, p + 1);
        for (Index d = 0; d < dim; ++d) EXPECT_EQ(run.key[d], expected.key[d]) << p;
        for (Index d = 0; d < value_dim; ++d) EXPECT_EQ(run.value[d], expected.value[d]) << p;
      }
    }
  };
  const Ring small{.left = 3, .rows = 4, .first = 1};
  for (const auto& saved : {all.save(a), ring.save(ring.restore(all.save(a)))}) {
    into(KvCache<Ring, float>(shape, small, sizes), saved);
    KvCache<Ring, float, support::Far> far(shape, small, sizes);
    KvCache<Ring, float> back(shape, small, sizes);
    into(back, far.save(far.restore(saved)));
  }
}

TEST(KvCache, SavedSequencesGoFromMachineToMachine) {
  KvCache<Contiguous, float> here(shape, Contiguous{.length = 40}, sizes);
  KvCache<Paged, float, support::Far> far(shape, Paged{.pages = 3, .length = 64, .page = 16}, sizes);
  const SequenceId a = here.add(), empty = here.add();
  for (int i = 0; i < 7; ++i) write(here, a, 3, float(i));
  EXPECT_EQ(far.save(far.restore(here.save(a))), here.save(a));
  EXPECT_EQ(far.length(far.restore(here.save(empty))), 0);
}

/// A prompt of 40 positions, a fork that wrote 3 more, and one of its first 20 that wrote 15.
template <class B> void restores_forks() {
  const Paged storage{.pages = 7, .length = 64, .page = 16};
  KvCache<Paged, float, B> before(shape, storage, sizes), after(shape, storage, sizes), alone(shape, storage, sizes);
  const SequenceId prompt = before.add();
  write(before, prompt, 40, 1);
  const SequenceId a = before.fork(prompt), b = before.fork(prompt, 20), same = before.fork(prompt);
  write(before, a, 3, 2);
  write(before, b, 15, 3);
  EXPECT_EQ(before.free_pages(), 7 - 3 - 1 - 2);
  const SequenceId first = after.restore(before.save(prompt));
  for (const SequenceId id : {a, b, same}) {
    const SequenceId restored = after.restore(before.save(id), first);
    EXPECT_EQ(after.save(restored), before.save(id));
  }
  EXPECT_EQ(after.save(first), before.save(prompt));
  EXPECT_EQ(after.free_pages(), before.free_pages());
  const std::string full = picture(after);
  EXPECT_EQ(message_of([&] { static_cast<void>(after.restore(before.save(a))); }), too_few_pages(3, 1, 7, "restore"));
  EXPECT_EQ(picture(after), full);

  // One that begins otherwise shares nothing, and a refusal leaves what is shared as it was.
  const SequenceId other = alone.add();
  write(alone, other, 50, 5);
  static_cast<void>(alone.restore(before.save(prompt), other));
  EXPECT_EQ(alone.free_pages(), 0);
  const std::string two = picture(alone);
  EXPECT_EQ(message_of([&] { static_cast<void>(alone.restore(before.save(b), other)); }),
            too_few_pages(3, 0, 7, "restore"));
  EXPECT_EQ(message_of([&] { static_cast<void>(alone.restore(before.save(a), alone.ids()[1])); }),
            too_few_pages(1, 0, 7, "restore"));
  EXPECT_EQ(message_of([&] { static_cast<void>(alone.restore(before.save(a), prompt)); }),
            "restore: the sequence was removed, or is of another cache");
  EXPECT_EQ(picture(alone), two);
}

TEST(KvCache, RestoredForksShareThePagesThatAreTheSame) {
  restores_forks<mha::OnHost>();
  restores_forks<support::Far>();
}

TEST(KvCache, StoresOtherScalarsOfTheSameAccumulator) {
  KvCache<Contiguous, mha::bfloat16> cache(shape, Contiguous{.length = 4}, {.layers = 1, .sequences = 1});
  EXPECT_EQ(cache.bytes(), at(4 * heads * (dim + value_dim) * 2));
  const SequenceId a = cache.add();
  auto step = cache.step(a, 1);
  Tensor<float, 3> key(1, heads, dim), value(1, heads, value_dim);
  std::fill(key.begin(), key.end(), 1.00390625f);  // halfway between two of bfloat16: to the even one
  std::fill(value.begin(), value.end(), 3.0f);
  step.append(0, key, value);
  const auto run = step.source(0).run(0, 1, 0, 1);
  EXPECT_EQ(float(run.key[2]), 1.0f);
  EXPECT_EQ(float(run.value[1]), 3.0f);
}

TEST(KvCache, StoresRowsInEightBits) {
  using Cache = KvCache<Contiguous, mha::scaled_int8>;
  static_assert(Cache::memory == mha::Memory::host);
  Cache cache(shape, Contiguous{.length = 9}, sizes);
  EXPECT_EQ(cache.position_bytes(), at(layers * heads * (dim + 4 + value_dim + 4)));
  EXPECT_EQ(cache.bytes(), 5 * 9 * cache.position_bytes());
  const SequenceId a = cache.add();
  support::Random random("rows that a cache rounds");
  const auto append = [&]<class T>(const T&, Index n) {
    Tensor<T, 3> key(n, heads, dim), value(n, heads, value_dim);
    random.fill(key);
    random.fill(value);
    auto step = cache.step(a, n);
    for (Index layer = 0; layer < layers; ++layer) step.append(layer, key, value);
    const auto source = step.source(1);
    for (Index i = 0; i < n; ++i)
      for (Index g = 0; g < heads; ++g) {
        const auto run = source.run(0, g, source.keys(0) - n + i, source.keys(0));
        EXPECT_EQ(run.key_stride, dim + 4);
        EXPECT_EQ(run.value_stride, value_dim + 4);
        mha::scaled_int8 expected[4 + dim];
        mha::quantize_row(&key(i, g, 0), dim, expected + 4);
        EXPECT_EQ(std::memcmp(run.key - 4, expected, 4 + dim), 0);
        mha::quantize_row(&value(i, g, 0), value_dim, expected + 4);
        EXPECT_EQ(std::memcmp(run.value - 4, expected, 4 + value_dim), 0);
      }
    step.commit();
  };
  append(float{}, 4);
  append(mha::half{}, 1);
  append(mha::bfloat16{}, 3);

  // What is saved are the rows as they are stored.
  const auto saved = cache.save(a);
  EXPECT_EQ(saved.size(), sizeof(mha::detail::SavedHeader) + 8 * cache.position_bytes());
  EXPECT_EQ(cache.save(cache.restore(saved)), saved);
  EXPECT_EQ(cache.save(cache.fork(a)), saved);
  KvCache<Paged, mha::scaled_int8> paged(shape, Paged{.pages = 3, .length = 32, .page = 16}, sizes);
  EXPECT_EQ(paged.save(paged.restore(saved)), saved);
  KvCache<Contiguous, float> wide(shape, Contiguous{.length = 9}, sizes);
  EXPECT_EQ(message_of([&] { static_cast<void>(wide.restore(saved)); }),
            "restore: the sequence was saved in scaled_int8 of 1 bytes, the cache stores float of 4");
  EXPECT_EQ(message_of([&] { static_cast<void>(cache.restore(wide.save(wide.add()))); }),
            "restore: the sequence was saved in float of 4 bytes, the cache stores scaled_int8 of 1");
}

// Keys and values may each come in one sequence of rows or in one for each of the step.
TEST(KvCache, AppendsRowsOfEitherForm) {
  for (const int form : {0, 1, 2, 3}) {
    KvCache<Contiguous, float> cache({1, 2, 1}, Contiguous{.length = 4}, {.sequences = 2});
    cache.add();
    cache.add();
    // Rows two apart, so that a wrong sequence is another number.
    Tensor<float, 5> memory(2, 2, 2, 1, 2);
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < 2; ++i) memory(b, i, 0, 0, 0) = memory(b, i, 0, 0, 1) = static_cast<float>(10 * b + i);
    const auto batch = [&](Index d) {
      return mha::TensorView<const float, 4>{memory.data(), {2, 2, 1, d}, {8, 4, 2, 1}};
    };
    const auto rows = [&](Index d) { return mha::TensorView<const float, 3>{memory.data(), {4, 1, d}, {4, 2, 1}}; };
    auto step = cache.step(2);
    if (form == 0) step.append(0, batch(2), batch(1));
    if (form == 1) step.append(0, batch(2), rows(1));
    if (form == 2) step.append(0, rows(2), batch(1));
    if (form == 3) step.append(0, rows(2), rows(1));
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < 2; ++i) {
        const auto run = step.source(0).run(b, 0, i, i + 1);
        EXPECT_EQ(*run.key, static_cast<float>(10 * b + i)) << "form " << form;
        EXPECT_EQ(*run.value, static_cast<float>(10 * b + i)) << "form " << form;
      }
  }
}

// After going back, and after a restore, a Ring's source shows nothing that was written over.
TEST(KvCache, ARingsSourceHidesWhatIsGone) {
  KvCache<Ring, float> cache({1, 1, 1}, Ring{.left = 2, .rows = 3}, {.sequences = 2});
  const SequenceId a = cache.add();
  Tensor<float, 3> row(1, 1, 1);
  const auto append = [&](SequenceId id, float number) {
    auto step = cache.step(id, 1);
    row(0, 0, 0) = number;
    step.append(0, row, row);
    step.commit();
  };
  for (int i = 0; i < 10; ++i) append(a, float(i));
  cache.truncate(a, 7);
  append(a, 7);
  EXPECT_EQ(cache.oldest(a), 5);
  const auto shown = [&](SequenceId id) {
    const auto step = cache.step(id, 0);
    const auto source = step.source(0);
    std::vector<float> all;
    for (Index p = source.held(0, 0); p < source.keys(0); p = source.held(0, p + 1))
      all.push_back(*source.run(0, 0, p, p + 1).key);
    return all;
  };
  EXPECT_EQ(shown(a), (std::vector<float>{5, 6, 7}));
  KvCache<Ring, float> wide({1, 1, 1}, Ring{.left = 2, .rows = 9}, {.sequences = 1});
  const SequenceId b = wide.restore(cache.save(a));
  const auto step = wide.step(b, 0);
  EXPECT_EQ(step.source(0).held(0, 0), 5);
}

TEST(KvCache, AnEndedStepIsNotTakenForTheNext) {
  KvCache<Contiguous, float> cache(shape, Contiguous{.length = 8}, sizes);
  const SequenceId a = cache.add();
  const mha::Config config{.d_model = 6, .num_heads = 2, .num_kv_heads = 2, .head_dim = 3, .value_dim = 2};
  const auto old = [&] {
    const auto step = cache.step(a, 1);
    return step[0];
  }();
  const auto step = cache.step(a, 1);
  Tensor<float, 4> key(1, 1, heads, dim), value(1, 1, heads, value_dim);
  const mha::OnHost backend;
  mha::OnHost::Workspace workspace;
  const mha::detail::ItemsOn<mha::OnHost> items{backend, workspace};
  const std::vector<std::function<void()>> uses{
      [&] { old.check(config, 1, 1, 1); },
      [&] { static_cast<void>(old.sequences()); },
      [&] { static_cast<void>(old.rows()); },
      [&] { static_cast<void>(old.offsets()); },
      [&] { static_cast<void>(old.positions()); },
      [&] { static_cast<void>(old.source()); },
      [&] { static_cast<void>(old.shape(2)); },
      [&] { static_cast<void>(old.kept(0)); },
      [&] { static_cast<void>(old.pairs()); },
      [&] { static_cast<void>(old.planned_keys()); },
      [&] { static_cast<void>(old.planned({})); },
      [&] { static_cast<void>(old.cache_in_words()); },
      [&] { old.write(std::as_const(key).view(), std::as_const(value).view(), 1, items); }};
  for (const auto& use : uses) EXPECT_EQ(message_of(use), "layer: the step has ended");
  step[0].check(config, 1, 1, 1);
}

TEST(KvCache, TakesTheSequencesOfAStepInBraces) {
  KvCache<Contiguous, float> cache(shape, Contiguous{.length = 9}, sizes);
  const SequenceId a = cache.add(), b = cache.add();
  write(cache, b, 2, 1);
  const auto offsets = [](const auto& step) {
    return std::vector<Index>(step.offsets().begin(), step.offsets().end());
  };
  EXPECT_EQ(offsets(cache.step({a, b}, {3, 1})), (std::vector<Index>{0, 3, 4}));
  EXPECT_EQ(offsets(cache.step({b, a}, {3, 1})), (std::vector<Index>{0, 3, 4}));
  EXPECT_EQ(offsets(cache.step({b}, {2})), (std::vector<Index>{0, 2}));
  const std::vector<SequenceId> who{b, a};
  const std::vector<Index> rows{4, 1};
  EXPECT_EQ(offsets(cache.step(who, {3, 1})), (std::vector<Index>{0, 3, 4}));
  EXPECT_EQ(offsets(cache.step({b, a}, rows)), (std::vector<Index>{0, 4, 5}));
  EXPECT_EQ(offsets(cache.step(who, rows)), (std::vector<Index>{0, 4, 5}));
  EXPECT_EQ(offsets(cache.step({}, {})), (std::vector<Index>{0}));
  EXPECT_EQ(offsets(cache.step(a, {3})), (std::vector<Index>{0, 3}));
  EXPECT_EQ(offsets(cache.step(who, 3)), (std::vector<Index>{0, 3, 6}));
  EXPECT_EQ(offsets(cache.step({b}, 3)), (std::vector<Index>{0, 3}));
  const auto step = cache.step({b, a}, {2, 4});
  EXPECT_EQ(step[0].positions()[0], 2);
  EXPECT_EQ(step[0].positions()[1], 0);
}

template <class Storage> void expect_moves(const Storage& storage) {
  using Cache = KvCache<Storage, float>;
  Cache first(shape, storage, sizes);
  const SequenceId a = first.add(), b = first.add();
  write(first, a, 3, 1);
  write(first, b, 2, 2);
  const std::string before = picture(first);
  const std::size_t bytes = first.bytes();

  Cache second(std::move(first));
  EXPECT_EQ(picture(second), before);
  EXPECT_EQ(second.bytes(), bytes);
  EXPECT_EQ(first.sequences(), 0);  // NOLINT: what is left is specified
  EXPECT_EQ(first.max_sequences(), 0);
  EXPECT_EQ(first.bytes(), 0u);
  EXPECT_EQ(message_of([&] { static_cast<void>(first.add()); }),
            "add: the cache has 0 sequences, the limit is 0: remove one first, or make the cache with "
            "CacheSizes{.sequences = more}");
  EXPECT_EQ(message_of([&] { static_cast<void>(first.step(a, 1)); }),
            "step: sequence 0 was removed, or is of another cache");
  { const auto none = first.step(1); }

  // As if it had not been moved.
  Cache still(shape, storage, sizes);
  const SequenceId c = still.add(), d = still.add();
  write(still, c, 3, 1);
  write(still, d, 2, 2);
  for (auto* cache : {&second, &still}) write(*cache, cache->ids()[0], 2, 3);
  second.remove(b);
  still.remove(d);
  EXPECT_EQ(picture(second), picture(still));

  // Into one that has sequences, which are gone.
  Cache third(shape, storage, sizes);
  const SequenceId gone = third.add();
  third = std::move(second);
  EXPECT_EQ(picture(third), picture(still));
  EXPECT_EQ(message_of([&] { static_cast<void>(third.length(gone)); }),
            "length: the sequence was removed, or is of another cache");

  const std::string refused = "move: a step is open: commit it or let it end first";
  {
    auto step = third.step(a, 1);
    EXPECT_EQ(message_of([&] { Cache moved(std::move(third)); }), refused);
    EXPECT_EQ(message_of([&] { second = std::move(third); }), refused);
    EXPECT_EQ(message_of([&] { third = std::move(still); }), refused);
    EXPECT_EQ(step[0].positions()[0], 5);
  }
  EXPECT_EQ(picture(third), picture(still));
  std::vector<Cache> caches;
  caches.push_back(std::move(third));
  caches.push_back(std::move(still));
  EXPECT_EQ(picture(caches[0]), picture(caches[1]));
}

TEST(KvCache, Moves) {
  expect_moves(Contiguous{.length = 40});
  expect_moves(Paged{.pages = 5, .length = 40, .page = 16});
  expect_moves(Ring{.left = 8, .rows = 4});
}

TEST(KvCache, RefusesBadStepsAndIsAsItWas) {
  KvCache<Paged, float> cache(shape, Paged{.pages = 5, .length = 40, .page = 16}, {.layers = layers, .sequences = 3});
  const SequenceId a = cache.add(), b = cache.fork(a), dead = cache.add();
  cache.remove(dead);
  write(cache, a, 20, 1);
  write(cache, b, 33, 2);
  std::string before = picture(cache);
  const auto refuses = [&](std::vector<SequenceId> ids, std::vector<Index> rows, const std::string& sentence) {
    EXPECT_EQ(message_of([&] { static_cast<void>(cache.step(ids, rows)); }), sentence);
    EXPECT_EQ(picture(cache), before);
  };
  refuses({a, b}, {1}, "step: sequences has size 2 but rows has size 1");
  refuses({a, a}, {1, 1}, "step: sequences 0 and 1 are the same one");
  refuses({a, dead}, {1, 1}, "step: sequence 1 was removed, or is of another cache");
  refuses({a, SequenceId{}}, {1, 1}, "step: sequence 1 is an empty SequenceId: add() and fork() return one");
  refuses({b, a}, {2, -1}, "step: sequence 1 has -1 rows, the least is 0");
  refuses({a, b}, {1, 8}, "step: sequence 1 of length 33 and 8 rows more would be longer than the cache's 40");
  refuses({a}, {2147483647},
          "step: sequence 0 of length 20 and 2147483647 rows more would be longer than the cache's 40");
  const SequenceId c = cache.add();
  before = picture(cache);
  refuses({c}, {1}, too_few_pages(1, 0, 5));
}

TEST(KvCache, RefusesWhatIsNotTheLayersPartOfTheStep) {
  KvCache<Contiguous, float> cache(shape, Contiguous{.length = 8}, {.layers = layers, .sequences = 2});
  const SequenceId a = cache.add();
  write(cache, a, 3, 1);
  const std::string before = picture(cache);
  {
    auto step = cache.step(a, 2);
    Tensor<float, 3> key(2, heads, dim), value(2, heads, value_dim), long_key(3, heads, dim), narrow(2, heads, dim - 1),
        one_head(2, 1, dim);
    const auto refuses = [&](Index layer, const auto& k, const auto& v, const char* sentence) {
      EXPECT_EQ(message_of([&] { step.append(layer, k, v); }), sentence);
    };
    refuses(2, key, value, "append: there is no layer 2, the cache has 2");
    refuses(-1, key, value, "append: there is no layer -1, the cache has 2");
    refuses(0, long_key, value, "append: key has 3 rows, but the step has 2");
    refuses(0, narrow, value, "append: key has head size 2 but the cache has head size 3");
    refuses(0, one_head, value, "append: key has 1 head but the cache has 2");
    refuses(0, key, key, "append: value has head size 3 but the cache has head size 2");
    step.append(1, key, value);
    refuses(1, key, value, "append: layer 1 of the cache was written in this step already");
    EXPECT_EQ(message_of([&] { step.commit(); }), "commit: layer 0 of the cache has not written its keys and values");
  }
  EXPECT_EQ(picture(cache), before);
  auto step = cache.step(a, 1);
  Tensor<float, 3> key(1, heads, dim), value(1, heads, value_dim);
  step.append(0, key, value);
  step.append(1, key, value);
  step.commit();
  EXPECT_EQ(message_of([&] { step.append(0, key, value); }), "append: the step was committed");
  EXPECT_EQ(message_of([&] { static_cast<void>(step[0]); }), "step: the step was committed");
  EXPECT_EQ(message_of([&] { step.commit(); }), "commit: the step was committed");
}

TEST(KvCache, TakesKeysAloneIfTheValuesAreInThem) {
  KvShape alone = shape;
  alone.values_in_keys = true;
  KvCache<Contiguous, float> cache(alone, Contiguous{.length = 8}, {.layers = 1}),
      both(shape, Contiguous{.length = 8}, {.layers = 1});
  EXPECT_EQ(cache.bytes(), 8 * heads * dim * sizeof(float));
  EXPECT_EQ(cache.position_bytes(), heads * dim * sizeof(float));
  Tensor<float, 3> key(2, heads, dim), value(2, heads, value_dim), narrow(2, heads, dim - 1);
  both.add();
  {
    auto step = both.step(2);
    EXPECT_EQ(message_of([&] { step.append(0, key); }), "append: the cache stores keys and values, expected both");
    step.append(0, key, value);
    step.commit();
    EXPECT_EQ(message_of([&] { step.append(0, key); }), "append: the step was committed");
  }
  const SequenceId a = cache.add();
  auto step = cache.step(2);
  EXPECT_EQ(message_of([&] { step.append(0, key, value); }),
            "append: the cache has its values in its keys (KvShape::values_in_keys), expected keys alone");
  EXPECT_EQ(message_of([&] { step.append(1, key); }), "append: there is no layer 1, the cache has 1");
  EXPECT_EQ(message_of([&] { step.append(0, narrow); }), "append: key has head size 2 but the cache has head size 3");
  std::iota(key.begin(), key.end(), 1.f);
  step.append(0, mha::view(std::as_const(key).data(), 1, 2, heads, dim));
  EXPECT_EQ(message_of([&] { step.append(0, key); }), "append: layer 0 of the cache was written in this step already");
  step.commit();
  EXPECT_EQ(cache.length(a), 2);
  const auto reading = cache.step(0);
  const auto source = reading.source(0);
  EXPECT_EQ(source.value_dim(), value_dim);
  const auto run = source.run(0, 1, 1, 2);
  EXPECT_EQ(run.value, run.key);
  EXPECT_EQ(run.value[value_dim - 1], key(1, 1, value_dim - 1));
}

TEST(KvCache, GoesBackNoFurtherThanThereArePositions) {
  KvCache<Ring, float> cache(shape, Ring{.left = 4, .rows = 3}, sizes);
  const SequenceId a = cache.add();
  for (int i = 0; i < 6; ++i) write(cache, a, 2, float(i));  // length 12, memory for 7
  EXPECT_EQ(cache.oldest(a), 5);
  EXPECT_TRUE(cache.can_truncate(a, 9));
  EXPECT_FALSE(cache.can_truncate(a, 8));
  EXPECT_FALSE(cache.can_truncate(a, 13));
  EXPECT_FALSE(cache.can_truncate(a, -1));
  const std::string before = picture(cache);
  EXPECT_EQ(message_of([&] { cache.truncate(a, 8); }),
            "truncate: a Ring of rows 3 cannot go back to length 8 of 12: what its window shows has been dropped");
  EXPECT_EQ(message_of([&] { cache.truncate(a, 13); }),
            "truncate: length 13 is outside [0, 12], the length of the "
            "sequence");
  EXPECT_EQ(message_of([&] { static_cast<void>(cache.fork(a, 8)); }),
            "fork: a Ring of rows 3 cannot go back to length 8 of 12: what its window shows has been dropped");
  EXPECT_EQ(picture(cache), before);
  EXPECT_EQ(
      message_of([&] { static_cast<void>(cache.step(a, 4)); }),
      "step: sequence 0 gets 4 rows, the limit of this Ring is 3: raise Ring::rows, or give the rows in several steps");
}

TEST(KvCache, ReordersOnlyBeamsOfItsOwn) {
  KvCache<Contiguous, float> cache(shape, Contiguous{.length = 8}, sizes), other(shape, Contiguous{.length = 8}, sizes);
  const SequenceId a = cache.add(), b = cache.add(), dead = cache.add();
  cache.remove(dead);
  write(cache, a, 2, 1);
  write(cache, b, 3, 2);
  const std::string before = picture(cache);
  const auto refuses = [&](std::vector<SequenceId> beams, std::vector<Index> from, const char* sentence) {
    EXPECT_EQ(message_of([&] { cache.reorder(beams, from); }), sentence);
    EXPECT_EQ(picture(cache), before);
  };
  refuses({a, b}, {0}, "reorder: beams has size 2 but from has size 1");
  refuses({a, b}, {0, 2}, "reorder: source 2 is outside [0, 2), the number of beams");
  refuses({a, b}, {-1, 0}, "reorder: source -1 is outside [0, 2), the number of beams");
  refuses({a, a}, {1, 0}, "reorder: sequences 0 and 1 are the same one");
  refuses({a, dead}, {1, 0}, "reorder: sequence 1 was removed, or is of another cache");
  refuses({a, other.add()}, {1, 0}, "reorder: sequence 1 was removed, or is of another cache");
  const SequenceId both[] = {a, b};
  const Index swapped[] = {1, 0};
  cache.reorder(both, swapped);
  EXPECT_EQ(cache.length(a), 3);
  EXPECT_EQ(cache.length(b), 2);
}

TEST(KvCache, RefusesSizesWithoutMeaning) {
  const auto refuses = [](const KvShape& s, const CacheSizes& n, const char* sentence) {
    EXPECT_EQ(message_of([&] { KvCache<Contiguous, float> cache(s, Contiguous{.length = 4}, n); }), sentence);
  };
  refuses({0, 4, 4}, {}, "KvCache: heads is 0, it must be at least 1");
  refuses({1, 0, 4}, {}, "KvCache: dim is 0, it must be at least 1");
  refuses({1, 4, -4}, {}, "KvCache: value_dim is -4, it must be at least 1");
  refuses({1, 4, 5, true}, {}, "KvCache: value_dim is 5, with values_in_keys it must be at most dim, 4");
  refuses(shape, {.layers = 0}, "KvCache: layers is 0, it must be at least 1");
  refuses(shape, {.sequences = 0}, "KvCache: sequences is 0, it must be at least 1");
}

// While a step is open, whatever would change the cache, or read what the step has half written.
template <class Storage> void refuse_while_a_step_is_open(const Storage& storage) {
  KvCache<Storage, float> cache(shape, storage, sizes);
  const SequenceId a = cache.add(), b = cache.add();
  write(cache, a, 3, 1);
  write(cache, b, 2, 2);
  const auto saved = cache.save(a);
  const std::string before = picture(cache);
  const SequenceId both[] = {a, b};
  const Index swapped[] = {1, 0}, rows[] = {1, 2};
  for (const bool written : {false, true}) {
    {
      auto step = cache.step(both, rows);
      Tensor<float, 3> key(3, heads, dim), value(3, heads, value_dim);
      for (Index layer = 0; written && layer < layers; ++layer) step.append(layer, key, value);
      const auto refuses = [](const std::string& call, auto&& f) {
        EXPECT_EQ(message_of(f), call + ": a step is open: commit it or let it end first");
      };
      refuses("step", [&] { static_cast<void>(cache.step(a, 1)); });
      refuses("step", [&] { static_cast<void>(cache.step(1)); });
      refuses("add", [&] { cache.add(); });
      refuses("fork", [&] { static_cast<void>(cache.fork(a)); });
      refuses("remove", [&] { cache.remove(a); });
      refuses("truncate", [&] { cache.truncate(a, 2); });
      refuses("reorder", [&] { cache.reorder(both, swapped); });
      refuses("save", [&] { static_cast<void>(cache.save(a)); });
      refuses("restore", [&] { static_cast<void>(cache.restore(saved)); });
      EXPECT_EQ(cache.sequences(), 2);
      EXPECT_EQ(cache.length(a), 3);
    }
    EXPECT_EQ(picture(cache), before);
  }
}

TEST(KvCache, RefusesAllElseWhileAStepIsOpen) {
  refuse_while_a_step_is_open(Contiguous{.length = 8});
  refuse_while_a_step_is_open(Ring{.left = 4, .rows = 4});
  refuse_while_a_step_is_open(Paged{.pages = 3, .length = 40, .page = 16});
}

// Two sequences share a page that is partly filled: neither a step that is refused nor one that is dropped, written or
// not, parts them or takes a page.
TEST(KvCache, ARefusedStepLeavesSharedPagesShared) {
  KvCache<Paged, float> cache(shape, Paged{.pages = 4, .length = 64, .page = 16}, sizes);
  const SequenceId a = cache.add();
  write(cache, a, 20, 1);
  const SequenceId b = cache.fork(a, 18), c = cache.fork(a);
  EXPECT_EQ(cache.free_pages(), 2);
  const std::string before = picture(cache);
  const std::vector<SequenceId> all{a, b, c}, two{a, b};
  const auto refuses = [&](const std::vector<SequenceId>& ids, std::vector<Index> rows, const std::string& sentence) {
    EXPECT_EQ(message_of([&] { static_cast<void>(cache.step(ids, rows)); }), sentence);
    EXPECT_EQ(picture(cache), before);
  };
  refuses(all, {1, 1, 13}, too_few_pages(3, 2, 4));
  refuses(two, {13, 1}, too_few_pages(3, 2, 4));
  refuses(all, {1, 1, 45}, "step: sequence 2 of length 20 and 45 rows more would be longer than the cache's 64");
  for (const bool written : {false, true}) {
    {
      auto step = cache.step(all, std::vector<Index>{1, 1, 1});  // one of the three writes to the page itself
      EXPECT_EQ(cache.free_pages(), 0);
      Tensor<float, 3> key(3, heads, dim), value(3, heads, value_dim);
      for (Index layer = 0; written && layer < layers; ++layer) step.append(layer, key, value);
    }
    EXPECT_EQ(picture(cache), before);
  }
  cache.remove(c);
  cache.remove(b);
  EXPECT_EQ(cache.free_pages(), 2);
  write(cache, a, 1, 2);
  EXPECT_EQ(cache.free_pages(), 2) << "the page is of one sequence alone, and was copied";
}

// add(), fork() and restore() beyond the sequences or the pages that there are.
TEST(KvCache, RefusesSequencesItHasNoMemoryFor) {
  KvCache<Paged, float> cache(shape, Paged{.pages = 3, .length = 40, .page = 16}, {.layers = layers, .sequences = 2});
  const SequenceId a = cache.add();
  write(cache, a, 20, 1);
  const auto saved = cache.save(a);
  std::string before = picture(cache);
  const auto refuses = [&](auto&& f, const std::string& sentence) {
    EXPECT_EQ(message_of(f), sentence);
    EXPECT_EQ(picture(cache), before);
  };
  refuses([&] { static_cast<void>(cache.restore(saved)); }, too_few_pages(2, 1, 3, "restore"));
  refuses([&] { static_cast<void>(cache.fork(a, 21)); },
          "fork: length 21 is outside [0, 20], the length of the sequence");
  refuses([&] { static_cast<void>(cache.fork(SequenceId{})); },
          "fork: the sequence is an empty SequenceId: add() and fork() return one");
  static_cast<void>(cache.fork(a));
  before = picture(cache);
  refuses([&] { cache.add(); },
          "add: the cache has 2 sequences, the limit is 2: remove one first, or make the cache with "
          "CacheSizes{.sequences = more}");
  refuses([&] { static_cast<void>(cache.fork(a)); },
          "fork: the cache has 2 sequences, the limit is 2: remove one first, or make the cache with "
          "CacheSizes{.sequences = more}");
  refuses([&] { static_cast<void>(cache.restore(saved)); },
          "restore: the cache has 2 sequences, the limit is 2: remove one first, or make the cache with "
          "CacheSizes{.sequences = more}");
}

}  // namespace
