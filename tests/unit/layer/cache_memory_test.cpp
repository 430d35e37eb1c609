// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/cached_tiles.hpp>
#include <mha/layer/cache_memory.hpp>
#include <mha/mha.hpp>

#include "cache_picture.hpp"
#include "failing_new.hpp"
#include "far_backend.hpp"

namespace {

using mha::Contiguous;
using mha::Index;
using mha::KvCache;
using mha::Paged;
using mha::Ring;
using mha::SequenceId;
using mha::Tensor;
using support::picture;
using support::write;

constexpr Index layers = 2, heads = 2, dim = 3, value_dim = 1;
constexpr mha::KvShape shape{heads, dim, value_dim};
constexpr mha::detail::BlockExtents blocks{.blocks = 3, .rows = 4};
constexpr mha::CacheSizes sizes{.layers = layers, .sequences = 5};

float number(Index layer, Index row) { return static_cast<float>(100 * layer + row + 1); }

TEST(CacheMemory, RowsAreBlocksOneAfterAnother) {
  mha::detail::CacheMemory<float, mha::OnHost> memory(shape, layers, blocks, blocks);
  EXPECT_EQ(memory.bytes(), sizeof(float) * layers * 12 * heads * (dim + value_dim));
  for (Index layer = 0; layer < layers; ++layer)
    for (Index row = 0; row < 12; ++row) {
      memory.key_rows(layer)(row, 1, 2) = number(layer, row);
      memory.value_rows(layer)(row, 1, 0) = -number(layer, row);
    }
  const auto& read = memory;
  for (Index layer = 0; layer < layers; ++layer)
    for (Index block = 0; block < 3; ++block)
      for (Index i = 0; i < 4; ++i) {
        EXPECT_EQ(read.key_blocks(layer)(block, i, 1, 2), number(layer, 4 * block + i));
        EXPECT_EQ(read.value_blocks(layer)(block, i, 1, 0), -number(layer, 4 * block + i));
      }
}

// 8 heads of 128 floats beside each other put every row of a head on another page of memory.
TEST(CacheMemory, KeepsTheRowsOfAHeadTogether) {
  const mha::detail::CacheMemory<float, mha::OnHost> memory(shape, layers, blocks, blocks);
  EXPECT_EQ(memory.key_blocks(1).stride[1], dim);
  EXPECT_EQ(memory.key_rows(1).stride[0], dim);
  EXPECT_EQ(memory.value_blocks(1).stride[1], value_dim);
  EXPECT_EQ(&memory.key_rows(1)(11, 0, 0) + dim, &memory.key_rows(1)(0, 1, 0));
}

// A scale before each row of keys and of values, which views of numbers leave out.
TEST(CacheMemory, HasTheScalesOfRowsInEightBits) {
  using mha::scaled_int8;
  mha::KvShape stored = shape;
  for (const bool in_keys : {false, true}) {
    stored.values_in_keys = in_keys;
    mha::detail::CacheMemory<scaled_int8, mha::OnHost> memory(stored, layers, blocks, blocks);
    const Index values = in_keys ? 0 : value_dim + 4;
    EXPECT_EQ(memory.bytes(), static_cast<std::size_t>(layers * 12 * heads * (dim + 4 + values)));
    const auto& read = memory;
    for (Index layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(memory.key_rows(layer).extent[2], dim + 4);
      EXPECT_EQ(memory.value_rows(layer).extent[2], values);
      for (Index row = 0; row < 12; ++row)
        for (Index g = 0; g < heads; ++g) {
          const auto keys = read.key_blocks(layer), of_values = read.value_blocks(layer);
          EXPECT_EQ(keys.extent[3], dim);
          EXPECT_EQ(of_values.extent[3], value_dim);
          EXPECT_EQ(&memory.key_rows(layer)(row, g, 4), &keys(row / 4, row % 4, g, 0));
          EXPECT_EQ(in_keys ? &memory.key_rows(layer)(row, g, 4) : &memory.value_rows(layer)(row, g, 4),
                    &of_values(row / 4, row % 4, g, 0));
        }
    }
  }
}

// Also of keys that are filled up for a matrix unit.
TEST(CacheMemory, HasValuesInTheRowsOfKeys) {
  const mha::KvShape alone{.heads = heads, .dim = dim, .value_dim = 2, .values_in_keys = true};
  const auto check = [&]<class B>(const B&, Index row) {
    mha::detail::CacheMemory<mha::bfloat16, B> memory(alone, layers, blocks, {});
    EXPECT_EQ(memory.bytes() - memory.tile_bytes(), sizeof(mha::bfloat16) * std::size_t(layers * 12 * heads * row));
    for (Index layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(memory.value_rows(layer).size(), 0);
      const auto keys = memory.key_blocks(layer), values = memory.value_blocks(layer);
      EXPECT_EQ(values.extent[3], 2);
      EXPECT_EQ(values.stride[1], row);
      for (const Index g : {0, 1}) EXPECT_EQ(&values(2, 3, g, 1), &keys(2, 3, g, 1));
    }
  };
  check(mha::OnHost(), dim);
  check(mha::OnHostInTiles<mha::detail::systolic::CachedTiles<mha::bfloat16>>(), 32);
}

TEST(CacheMemory, CopiesRowsOfEveryLayer) {
  mha::detail::CacheMemory<float, mha::OnHost> memory(shape, layers, blocks, blocks);
  for (Index layer = 0; layer < layers; ++layer)
    for (Index row = 0; row < 12; ++row)
      for (Index g = 0; g < heads; ++g) {
        for (Index d = 0; d < dim; ++d) memory.key_rows(layer)(row, g, d) = number(layer, row) + 0.25f * float(d);
        memory.value_rows(layer)(row, g, 0) = -number(layer, row);
      }
  mha::detail::RowCopies copies{{1, 8, 3}, {8, 0, 1}};
  memory.copy(copies, copies);  // in their order
  EXPECT_TRUE(copies.empty());
  for (Index layer = 0; layer < layers; ++layer)
    for (const auto& [to, from] : {std::pair{8, 1}, {9, 2}, {10, 3}, {0, 1}, {11, 11}, {1, 1}})
      for (Index g = 0; g < heads; ++g) {
        for (Index d = 0; d < dim; ++d)
          EXPECT_EQ(memory.key_rows(layer)(to, g, d), number(layer, from) + 0.25f * float(d));
        EXPECT_EQ(memory.value_rows(layer)(to, g, 0), -number(layer, from));
      }
}

TEST(CacheMemory, SizesInWords) {
  EXPECT_EQ(mha::detail::position_bytes<double>(shape, {.layers = 5}), 8u * 5u * 2u * (3u + 1u));
  EXPECT_EQ(mha::detail::sizes_in_words<mha::bfloat16>(shape, {.layers = 5, .sequences = 3}, 12345, 0),
            "; bfloat16, 16 bytes a position and layer; sequences 3, layers 5, 12345 bytes in all");
  const std::string tiled = mha::detail::sizes_in_words<float>(shape, {.layers = 5, .sequences = 3}, 12345, 2345);
  EXPECT_EQ(mha::detail::position_bytes<mha::scaled_int8>(shape, {.layers = 5}), 5u * 2u * (3u + 4u + 1u + 4u));
  EXPECT_EQ(mha::detail::sizes_in_words<mha::scaled_int8>(shape, {.layers = 5, .sequences = 3}, 12345, 0),
            "; scaled_int8, 24 bytes a position and layer; sequences 3, layers 5, 12345 bytes in all");
  EXPECT_NE(tiled.find("12345 bytes in all, of which 2345 are tiles of the matrix unit"), std::string::npos) << tiled;
}

// Below: memory that runs out and a device that fails leave a cache as it was, and a steady state allocates nothing.

/// Three sequences, two of which are forks of the first in the middle of a page.
template <class Cache> std::vector<SequenceId> three_sequences(Cache& cache) {
  const SequenceId a = cache.add();
  for (int i = 0; i < 5; ++i) write(cache, a, 4, float(i));
  const SequenceId b = cache.fork(a, 19), c = cache.fork(a);
  write(cache, c, 1, 5);
  return {a, b, c};
}

/// f() with each of its allocations failing, on a cache of its own; returns how many failed.
template <class Storage, class F> int short_of_memory(const Storage& storage, const F& f) {
  KvCache<Storage, float> cache(shape, storage, sizes);
  const std::vector<SequenceId> ids = three_sequences(cache);
  const std::string before = picture(cache);
  return support::with_each_allocation_failing([&] { f(cache, ids); },
                                               [&](int n) { EXPECT_EQ(picture(cache), before) << n; });
}

template <class Storage> void expect_all_or_nothing_when_short_of_memory(const Storage& storage) {
  const std::vector<Index> even(3, 4), permuted{2, 0, 1}, one{1, 1, 1};
  EXPECT_GT(short_of_memory(storage, [&](auto& c, auto& ids) { static_cast<void>(c.step(ids, even)); }), 0);
  EXPECT_GT(short_of_memory(storage, [&](auto& c, auto& ids) { static_cast<void>(c.save(ids[2])); }), 0);
  std::vector<std::byte> saved;
  short_of_memory(storage, [&](auto& c, auto& ids) { saved = c.save(ids[1]); });
  EXPECT_GT(short_of_memory(storage, [&](auto& c, auto&) { static_cast<void>(c.restore(saved)); }), 0);
  // Lists have the memory that they may need.
  const auto none = [&](auto&& f) { EXPECT_EQ(short_of_memory(storage, f), 0); };
  none([](auto& c, auto&) { static_cast<void>(c.add()); });
  none([](auto& c, auto& ids) { static_cast<void>(c.fork(ids[0])); });
  none([](auto& c, auto& ids) { c.remove(ids[0]); });
  none([](auto& c, auto& ids) { c.truncate(ids[0], 19); });
  none([&](auto& c, auto& ids) { c.reorder(ids, one); });
  none([&](auto& c, auto& ids) { c.reorder(ids, permuted); });
  if constexpr (std::is_same_v<Storage, Paged>) {
    EXPECT_GT(short_of_memory(storage, [&](auto& c, auto& ids) { static_cast<void>(c.restore(saved, ids[0])); }), 0);
    none([&](auto& c, auto& ids) { EXPECT_EQ(c.pages_needed(ids, even), 1); });
    none([&](auto& c, auto&) { EXPECT_EQ(c.pages_needed(4), 1); });
    none([&](auto& c, auto& ids) { EXPECT_EQ(c.pages_freed(ids), 3); });
  }
}

TEST(KvCacheShortOfMemory, ContiguousIsAsItWas) {
  expect_all_or_nothing_when_short_of_memory(Contiguous{.length = 40});
}
TEST(KvCacheShortOfMemory, ARingIsAsItWas) {
  expect_all_or_nothing_when_short_of_memory(Ring{.left = 6, .rows = 4, .first = 2});
}
TEST(KvCacheShortOfMemory, PagesAreAsTheyWere) {
  expect_all_or_nothing_when_short_of_memory(Paged{.pages = 8, .length = 40, .page = 16});
}

using Layer = mha::MultiHeadAttention<float, mha::CpuWith<mha::Serial>, mha::GroupedQuery<2>, mha::Causal,
                                      mha::Rotary<>, mha::QkNorm>;
constexpr Index E = 16;

Tensor<float, 2> random_rows(Index rows, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor<float, 2> x(rows, E);
  for (float& e : x) e = normal(random);
  return x;
}

// A layer, behind another that has written, of a step that copies a shared page.
TEST(KvCacheShortOfMemory, ALayerOfAStepLeavesNoTrace) {
  Layer layer({.d_model = E, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 1});
  auto cache = mha::make_cache(layer, Paged{.pages = 6, .length = 48, .page = 16}, {.layers = 2, .sequences = 2});
  const auto x = random_rows(45, 2);
  const SequenceId a = cache.add();
  {
    auto step = cache.step(a, 20);
    for (Index i = 0; i < 2; ++i) static_cast<void>(layer(mha::view(x.data(), 20, E), step[i]));
    step.commit();
  }
  static_cast<void>(cache.fork(a, 19));
  const std::string before = picture(cache);
  Tensor<float, 2> y(25, E);
  const Index rows[] = {1, 24};
  const int failed = support::with_each_allocation_failing(
      [&] {
        mha::Workspace workspace;
        auto step = cache.step(cache.ids(), rows);
        for (Index i = 0; i < 2; ++i) layer(mha::view(&x(20, 0), 25, E), step[i], mha::into(y), workspace);
        step.commit();
      },
      [&](int n) { EXPECT_EQ(picture(cache), before) << n; });
  EXPECT_GT(failed, 0);
  EXPECT_EQ(cache.length(a), 21);
}

// Over many pages and several chunks of keys, chunks of rows beside single ones: the cache and a layer call no operator
// new once each kind of step has been. Threads that share the keys of a row keep parts of its result in the workspace:
// the first call that does takes them for the longest sequence, and is made before.
template <class B, class Storage>
void expect_no_allocation(const B& backend, const Storage& storage, bool longest_first) {
  mha::MultiHeadAttention<float, B, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>, mha::QkNorm> layer(
      {.d_model = E, .num_heads = 4}, backend);
  layer.initialize(mha::XavierUniform{.seed = 3});
  auto cache = mha::make_cache(layer, storage, {.layers = 2, .sequences = 2});
  const SequenceId ids[] = {cache.add(), cache.add()};
  const auto x = random_rows(21, 4);
  Tensor<float, 2> y(21, E);
  mha::Workspace workspace;
  const auto go_on = [&](Index first, Index second) {
    const Index rows[] = {first, second}, all = first + second;
    auto step = cache.step(ids, rows);
    for (Index i = 0; i < 2; ++i)
      layer(mha::view(x.data(), all, E), step[i], mha::into(mha::view(y.data(), all, E)), workspace);
    step.commit();
  };
  const auto read = [&](Index length) {
    while (cache.length(ids[1]) < length) {
      go_on(1, 20);
      go_on(1, 1);
      go_on(0, 1);
    }
  };
  read(longest_first ? 4180 : 22);
  if (longest_first)
    for (const SequenceId id : ids) cache.truncate(id, 0);
  support::largest_allocation = 0;
  read(4180);
  EXPECT_EQ(support::largest_allocation, 0u);
}

TEST(KvCacheShortOfMemory, ASteadyStateAllocatesNothing) {
  const mha::CpuWith<mha::Serial> alone;
  expect_no_allocation(alone, Contiguous{.length = 4224}, false);
  expect_no_allocation(alone, Paged{.pages = 150, .length = 4224, .page = 32}, false);
  expect_no_allocation(mha::Cpu(mha::ThreadPool(2)), Paged{.pages = 80, .length = 4224}, true);
}

/// A device whose n-th piece of work, transfer included, fails.
struct Failing : support::Far {
  static inline int until_failure = -1;

  static void work() {
    if (until_failure == 0) throw std::runtime_error("the device failed");
    if (until_failure > 0) --until_failure;
  }

  template <mha::Items I> void for_each_item(const I& items, Workspace& workspace) const {
    work();
    Far::for_each_item(items, workspace);
  }
  const Index* stage(const Index* numbers, Index n, Workspace::Frame& frame, Workspace& workspace) const {
    work();
    return Far::stage(numbers, n, frame, workspace);
  }
  template <class T> Upload<T> upload(std::span<const T> from) const {
    work();
    return Far::upload(from);
  }
  template <class T> void download(const T* from, std::span<T> to, Workspace& workspace) const {
    work();
    Far::download(from, to, workspace);
  }
};

template <class Storage> class OnAFailingDevice {
 public:
  explicit OnAFailingDevice(const Storage& storage) : cache(shape, storage, sizes), ids(three_sequences(cache)) {}

  KvCache<Storage, float, Failing> cache;
  std::vector<SequenceId> ids;

  /// f() with its first piece of work failing, then its second, and so on until none fails; returns how many failed.
  template <class F, class Unchanged> int each_failing(const F& f, const Unchanged& unchanged) {
    for (int n = 0;; ++n) {
      Failing::until_failure = n;
      try {
        f();
        Failing::until_failure = -1;
        return n;
      } catch (const std::runtime_error&) {
        Failing::until_failure = -1;
        unchanged();
      }
    }
  }
  /// The same; the cache is as it was after each.
  template <class F> int each_failing(const F& f) {
    const std::string before = picture(cache);
    return each_failing(f, [&] { EXPECT_EQ(picture(cache), before); });
  }
};

TEST(KvCacheOnAFailingDevice, NoForkIsLeftBehind) {
  const auto check = [](const auto& storage, bool copies) {
    OnAFailingDevice on(storage);
    EXPECT_EQ(on.each_failing([&] { static_cast<void>(on.cache.fork(on.ids[0])); }), copies ? 1 : 0);
    EXPECT_EQ(on.cache.sequences(), 4);
  };
  check(Contiguous{.length = 40}, true);
  check(Ring{.left = 6, .rows = 4, .first = 2}, true);
  check(Paged{.pages = 8, .length = 40, .page = 16}, false);
}

TEST(KvCacheOnAFailingDevice, NoRestoredSequenceIsLeftBehind) {
  const auto check = [](const auto& storage) {
    OnAFailingDevice on(storage);
    std::vector<std::byte> saved;
    EXPECT_GT(on.each_failing([&] { saved = on.cache.save(on.ids[2]); }), 0);
    EXPECT_GT(on.each_failing([&] { static_cast<void>(on.cache.restore(saved)); }), 0);
    EXPECT_EQ(on.cache.save(on.cache.ids()[3]), saved);
  };
  check(Contiguous{.length = 40});
  check(Ring{.left = 6, .rows = 4, .first = 2});
  check(Paged{.pages = 8, .length = 40, .page = 16});
}

// The page that a step was to write to is shared as before.
TEST(KvCacheOnAFailingDevice, NoPageOfAStepIsLeftBehind) {
  OnAFailingDevice on(Paged{.pages = 8, .length = 40, .page = 16});
  const Index rows[] = {13, 1, 13};
  EXPECT_EQ(on.each_failing([&] { static_cast<void>(on.cache.step(on.ids, rows)); }), 1);
}

// Beams that nobody takes are written over, by copies that may be half made; all else is as it was, and the same call
// completes it.
template <class Storage> void reorder_on_a_failing_device(const Storage& storage) {
  OnAFailingDevice on(storage);
  auto& cache = on.cache;
  const auto first = cache.save(on.ids[0]), last = cache.save(on.ids[2]);
  const Index from[] = {2, 2, 0};
  const int failed = on.each_failing([&] { cache.reorder(on.ids, from); },
                                     [&] {
                                       EXPECT_EQ(cache.length(on.ids[0]), 20);
                                       EXPECT_EQ(cache.length(on.ids[1]), 19);
                                       EXPECT_EQ(cache.length(on.ids[2]), 21);
                                       EXPECT_EQ(cache.save(on.ids[0]), first);
                                       EXPECT_EQ(cache.save(on.ids[2]), last);
                                     });
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(cache.save(on.ids[0]), last);
  EXPECT_EQ(cache.save(on.ids[1]), last);
  EXPECT_EQ(cache.save(on.ids[2]), first);
}

TEST(KvCacheOnAFailingDevice, AReorderCanBeRepeated) {
  reorder_on_a_failing_device(Contiguous{.length = 40});
  reorder_on_a_failing_device(Ring{.left = 6, .rows = 4, .first = 2});
}

}  // namespace
