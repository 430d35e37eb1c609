// SPDX-License-Identifier: Apache-2.0
// What a cache refuses, by one sentence each, and that it is the same byte for byte afterwards.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/scalar.hpp>
#include <mha/core/tensor.hpp>
#include <mha/layer/kv_cache.hpp>

#include "cache_picture.hpp"
#include "message_of.hpp"

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
using support::write;

constexpr Index layers = 2, heads = 2, dim = 3, value_dim = 2;
constexpr KvShape shape{heads, dim, value_dim};
constexpr CacheSizes sizes{.layers = layers, .sequences = 5};

TEST(KvCache, RefusesBadStepsAndIsAsItWas) {
  KvCache<Paged, float> cache(shape, Paged{.pages = 5, .length = 40, .page = 16}, {.layers = layers, .sequences = 3});
  const SequenceId a = cache.add(), b = cache.fork(a), dead = cache.add();
  cache.remove(dead);
  write(cache, a, 20, 1);
  write(cache, b, 33, 2);
  std::string before = picture(cache);
  const auto refuses = [&](std::vector<SequenceId> ids, std::vector<Index> rows, const char* sentence) {
    EXPECT_EQ(message_of([&] { static_cast<void>(cache.step(ids, rows)); }), sentence);
    EXPECT_EQ(picture(cache), before);
  };
  refuses({a, b}, {1}, "step: 2 sequences, but 1 numbers of rows");
  refuses({a, a}, {1, 1}, "step: sequence 1 is named twice");
  refuses({a, dead}, {1, 1}, "step: the sequence was removed, or is of another cache");
  refuses({a, SequenceId{}}, {1, 1}, "step: the SequenceId names no sequence: add() and fork() return one");
  refuses({b, a}, {2, -1}, "step: sequence 1 has -1 rows, the least is 0");
  refuses({a, b}, {1, 8}, "step: sequence 1 of length 33 and 8 rows more would be longer than the cache's 40");
  refuses({a}, {2147483647},
          "step: sequence 0 of length 20 and 2147483647 rows more would be longer than the cache's 40");
  const SequenceId c = cache.add();
  before = picture(cache);
  refuses({c}, {1}, "cache: the step needs 1 pages of 16 positions, 0 of 5 are free");
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
    refuses(0, one_head, value, "append: key has heads 1 but the cache has heads 2");
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
      "cache: a step adds 4 rows to a sequence, the limit of this Ring is 3: raise Ring::rows, or give the rows in "
      "several steps");
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
  refuses({a, b}, {0}, "reorder: 2 beams, but 1 sources");
  refuses({a, b}, {0, 2}, "reorder: source 2 is outside [0, 2), the number of beams");
  refuses({a, b}, {-1, 0}, "reorder: source -1 is outside [0, 2), the number of beams");
  refuses({a, a}, {1, 0}, "reorder: sequence 1 is named twice");
  refuses({a, dead}, {1, 0}, "reorder: the sequence was removed, or is of another cache");
  refuses({a, other.add()}, {1, 0}, "reorder: the sequence was removed, or is of another cache");
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
  const auto refuses = [&](const std::vector<SequenceId>& ids, std::vector<Index> rows, const char* sentence) {
    EXPECT_EQ(message_of([&] { static_cast<void>(cache.step(ids, rows)); }), sentence);
    EXPECT_EQ(picture(cache), before);
  };
  refuses(all, {1, 1, 13}, "cache: the step needs 3 pages of 16 positions, 2 of 4 are free");
  refuses(two, {13, 1}, "cache: the step needs 3 pages of 16 positions, 2 of 4 are free");
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
  const auto refuses = [&](auto&& f, const char* sentence) {
    EXPECT_EQ(message_of(f), sentence);
    EXPECT_EQ(picture(cache), before);
  };
  refuses([&] { static_cast<void>(cache.restore(saved)); },
          "cache: the step needs 2 pages of 16 positions, 1 of 3 are free");
  refuses([&] { static_cast<void>(cache.fork(a, 21)); },
          "fork: length 21 is outside [0, 20], the length of the sequence");
  refuses([&] { static_cast<void>(cache.fork(SequenceId{})); },
          "fork: the SequenceId names no sequence: add() and fork() return one");
  static_cast<void>(cache.fork(a));
  before = picture(cache);
  refuses([&] { cache.add(); }, "add: the cache has 2 sequences, the limit is 2: remove one first");
  refuses([&] { static_cast<void>(cache.fork(a)); },
          "fork: the cache has 2 sequences, the limit is 2: remove one first");
  refuses([&] { static_cast<void>(cache.restore(saved)); },
          "restore: the cache has 2 sequences, the limit is 2: remove one first");
}

}  // namespace
