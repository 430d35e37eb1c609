// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/layer/cache_pages.hpp>
#include <mha/layer/kv_cache.hpp>

#include "cache_picture.hpp"
#include "message_of.hpp"

namespace {

using mha::CacheFull;
using mha::Index;
using mha::KvCache;
using mha::Paged;
using mha::SequenceId;
using support::message_of;
using support::picture;
using support::write;

using Cache = KvCache<Paged, float>;
constexpr Paged storage{.pages = 8, .length = 100, .page = 16};

template <class C>
concept HasPages = requires(const C& cache) {
  cache.pages_needed(1);
  cache.pages_freed(cache.ids());
  cache.free_pages();
};
static_assert(HasPages<Cache>);
static_assert(!HasPages<KvCache<mha::Contiguous, float>> && !HasPages<KvCache<mha::Ring, float>>);

/// A prompt of 20 positions, two forks of it and a sequence without positions.
struct Four {
  explicit Four(Index layers) : cache({1, 2, 2}, storage, {.layers = layers, .sequences = 4}) {
    write(cache, prompt, 20, 1);
    b = cache.fork(prompt);
    c = cache.fork(prompt, 16);
    empty = cache.add();
  }
  Cache cache;
  SequenceId prompt = cache.add(), b, c, empty;
};

TEST(CachePages, AStepTakesWhatItNeeds) {
  for (const Index layers : {1, 3}) {
    Four f(layers);
    Cache& cache = f.cache;
    const std::vector<SequenceId> who{f.b, f.c, f.empty};
    const std::vector<Index> rows{1, 1, 33};
    EXPECT_EQ(cache.pages_needed(who, rows), 1 + 1 + 3);
    EXPECT_EQ(cache.pages_needed(who, {13, 0, 0}), 2);
    EXPECT_EQ(cache.pages_needed({f.b, f.prompt}, {1, 1}), 1);
    EXPECT_EQ(cache.pages_needed({f.c, f.empty, f.b}, rows), 1 + 1 + 3);
    EXPECT_EQ(cache.pages_needed(f.empty, 16), 1);
    EXPECT_EQ(cache.pages_needed(1), 1 + 1 + 1) << "of four sequences";
    EXPECT_EQ(cache.free_pages(), 6);
    const auto step = cache.step(who, rows);
    EXPECT_EQ(cache.free_pages(), 6 - 5);
  }
}

TEST(CachePages, ARemovalFreesWhatNobodyElseHas) {
  Four f(2);
  Cache& cache = f.cache;
  write(cache, f.c, 1, 2);
  EXPECT_EQ(cache.pages_freed(f.empty), 0);
  EXPECT_EQ(cache.pages_freed(f.b), 0);
  EXPECT_EQ(cache.pages_freed(f.c), 1);
  EXPECT_EQ(cache.pages_freed(f.c, 16), 1);
  EXPECT_EQ(cache.pages_freed(f.c, 17), 0);
  EXPECT_EQ(cache.pages_freed({f.b, f.prompt}), 1) << "c has the first";
  const std::vector<SequenceId> all{f.prompt, f.b, f.c};
  EXPECT_EQ(cache.pages_freed(all), 3);
  const Index free = cache.free_pages();
  for (const SequenceId id : all) cache.remove(id);
  EXPECT_EQ(cache.free_pages(), free + 3);
}

TEST(CachePages, TheRefusalHasTheSameNumbers) {
  Four f(1);
  const std::string before = picture(f.cache);
  EXPECT_EQ(f.cache.pages_needed({f.b, f.empty}, {13, 100}), 9);
  try {
    static_cast<void>(f.cache.step({f.b, f.empty}, {13, 100}));
    FAIL();
  } catch (const CacheFull& full) {
    EXPECT_EQ(full.of, CacheFull::pages);
    EXPECT_EQ(full.needed, 9);
    EXPECT_EQ(full.free, 6);
    EXPECT_EQ(full.total, 8);
    EXPECT_EQ(full.what(), support::too_few_pages(9, 6, 8));
  }
  try {
    static_cast<void>(f.cache.fork(f.b));
    FAIL();
  } catch (const CacheFull& full) {
    EXPECT_EQ(full.of, CacheFull::sequences);
    EXPECT_EQ(full.needed, 1);
    EXPECT_EQ(full.free, 0);
    EXPECT_EQ(full.total, 4);
  }
  EXPECT_EQ(picture(f.cache), before);
}

TEST(CachePages, RefusesWhatTheCallsRefuse) {
  Four f(1);
  const Cache& cache = f.cache;
  const auto refuses = [](auto&& question, const std::string& sentence) {
    EXPECT_EQ(message_of([&] { static_cast<void>(question()); }), sentence);
  };
  refuses([&] { return cache.pages_needed({f.b, f.b}, {1, 1}); }, "pages_needed: sequences 0 and 1 are the same one");
  refuses([&] { return cache.pages_needed(f.b, 81); },
          "pages_needed: sequence 0 of length 20 and 81 rows more would be longer than the cache's 100");
  refuses([&] { return cache.pages_freed({f.b, f.b}); }, "pages_freed: sequences 0 and 1 are the same one");
  refuses([&] { return cache.pages_freed(f.b, 21); },
          "pages_freed: length 21 is outside [0, 20], the length of the sequence");
  refuses([&] { return cache.pages_freed(SequenceId{}); },
          "pages_freed: sequence 0 is an empty SequenceId: add() and fork() return one");
  const auto step = f.cache.step(f.b, 1);
  const std::string open = ": a step is open: commit it or let it end first";
  refuses([&] { return cache.pages_needed(f.b, 1); }, "pages_needed" + open);
  refuses([&] { return cache.pages_needed(1); }, "pages_needed" + open);
  refuses([&] { return cache.pages_freed({f.b, f.c}); }, "pages_freed" + open);
  refuses([&] { return cache.pages_freed(f.b); }, "pages_freed" + open);
  EXPECT_EQ(step.offsets()[1], 1) << "a question leaves the open step alone";
}

}  // namespace
