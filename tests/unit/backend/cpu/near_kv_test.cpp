// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/cpu/near_kv.hpp>
#include <mha/cache/any_kv.hpp>
#include <mha/cache/paged_kv.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::detail::AnyKv;

/// Of a call what NearKv reads.
struct Call {
  AnyKv<float> kv;
  struct {
    Index batch, heads;
  } shape;
  Index kv_heads, head_dim, value_dim;
  std::vector<Index> of_queries;

  Index queries(Index b) const { return of_queries[static_cast<std::size_t>(b)]; }
  Index keys(Index b) const { return kv.keys(b); }
};
using NearKv = mha::detail::cpu::NearKv<float, Call>;

constexpr Index heads = 3, dim = 5, value_dim = 7;
constexpr auto always = [](double) { return true; };

/// Keys and values of two sequences of a ragged batch, in rows `apart` of a head and of a key.
struct Far {
  Tensor<float, 4> keys, values;
  std::vector<Index> offsets;
  mha::ContiguousKv<float> source;

  explicit Far(std::vector<Index> lengths, Index apart = 512)
      : keys(1, lengths[0] + lengths[1], 1, apart),
        values(1, lengths[0] + lengths[1], 1, apart),
        offsets{0, lengths[0], lengths[0] + lengths[1]} {
    support::Random random("near kv");
    random.fill(keys);
    random.fill(values);
    source = {of_heads(keys, dim), of_heads(values, value_dim), offsets};
  }
  static mha::TensorView<const float, 4> of_heads(const Tensor<float, 4>& rows, Index columns) {
    const std::ptrdiff_t apart = rows.extent(3);
    return {rows.data(), {1, rows.extent(1), heads, columns}, {apart * rows.extent(1), apart, columns, 1}};
  }
  Call call(std::vector<Index> queries, Index group = 1) const {
    return {AnyKv<float>(source), {2, group * heads}, heads, dim, value_dim, std::move(queries)};
  }
};

TEST(NearKv, HasTheRowsOneAfterAnother) {
  const Far far({40, 31});
  const Call call = far.call({40, 31});
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const NearKv near(call, 10 * 2 * heads, always, frame);
  ASSERT_TRUE(near.exists());
  ASSERT_EQ(near.heads(), 2 * heads);
  for (Index i = 0; i < near.heads(); ++i) near.copy(i);
  for (Index b = 0; b < 2; ++b) {
    EXPECT_EQ(near.keys(b), far.source.keys(b));
    for (Index g = 0; g < heads; ++g) {
      const auto run = near.run(b, g, 2, 30), from = far.source.run(b, g, 2, 30);
      ASSERT_EQ(run.count, 28);
      ASSERT_EQ(run.key_stride, dim);
      ASSERT_EQ(run.value_stride, value_dim);
      for (Index k = 0; k < run.count; ++k) {
        EXPECT_TRUE(
            std::equal(from.key + k * from.key_stride, from.key + k * from.key_stride + dim, run.key + k * dim));
        EXPECT_TRUE(std::equal(from.value + k * from.value_stride, from.value + k * from.value_stride + value_dim,
                               run.value + k * value_dim));
      }
    }
  }
}

TEST(NearKv, ExistsForFarRowsThatManyTilesRead) {
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const auto exists = [&](const Far& far, const std::vector<Index>& queries, Index tiles, Index group = 1) {
    const Call call = far.call(queries, group);
    return NearKv(call, tiles, always, frame).exists();
  };
  EXPECT_TRUE(exists(Far({40, 31}), {40, 31}, 10 * 2 * heads));
  EXPECT_FALSE(exists(Far({40, 31}), {40, 31}, 10 * 2 * heads - 1)) << "few tiles";
  EXPECT_FALSE(exists(Far({40, 31}, 511), {40, 31}, 10 * 2 * heads)) << "near rows";
  EXPECT_TRUE(exists(Far({40, 0}), {10, 0}, 10 * 2 * heads));
  EXPECT_FALSE(exists(Far({41, 0}), {10, 0}, 10 * 2 * heads)) << "keys for few queries";
  EXPECT_TRUE(exists(Far({120, 0}), {10, 0}, 10 * 2 * heads, 3));
  EXPECT_FALSE(exists(Far({121, 0}), {10, 0}, 10 * 2 * heads, 3)) << "keys for few queries of three heads";
  EXPECT_FALSE(exists(Far({0, 0}), {10, 10}, 10 * 2 * heads)) << "no keys";
}

/// Keys and values of one sequence that all of a batch read: the last of its heads of rows 2 apart for each sequence,
/// if it is not to be shared.
struct OneForAll {
  using Scalar = float;
  static constexpr Index apart = 512;
  Index sequences, length;
  bool shared = true;
  Tensor<float, 2> rows{length + sequences, apart};
  std::vector<Index> lengths = std::vector<Index>(static_cast<std::size_t>(sequences), length);

  Index batch() const { return sequences; }
  Index heads() const { return 2; }
  Index dim() const { return 16; }
  Index value_dim() const { return 8; }
  Index keys(Index b) const { return lengths[static_cast<std::size_t>(b)]; }
  mha::KvRun<float> run(Index b, Index g, Index begin, Index end) const {
    const float* const row = &rows(begin + (g == 1 && !shared ? b : 0), 24 * g);
    return {row, row + 16, apart, apart, end - begin};
  }
  Call call(std::vector<Index> queries) const {
    return {AnyKv<float>(*this), {sequences, 2}, 2, 16, 8, std::move(queries)};
  }
};
TEST(NearKv, HasTheRowsOfAllSequencesOnce) {
  OneForAll source{3, 40};
  support::Random("one for all").fill(source.rows);
  const Call call = source.call({3, 3, 4});
  mha::Workspace workspace;
  auto frame = workspace.frame();
  double asked = 0;
  const auto read = [&](double keys) { return (asked = keys) > 0; };
  const NearKv near(call, 10 * 2, read, frame);
  ASSERT_TRUE(near.exists());
  EXPECT_EQ(asked, 5 * 40) << "reads of all sequences, of the keys of one";
  EXPECT_LE(workspace.bytes(), 40 * 2 * (16 + 8) * sizeof(float) + 256);
  ASSERT_EQ(near.heads(), 2);
  for (Index i = 0; i < near.heads(); ++i) near.copy(i);
  for (Index b = 0; b < 3; ++b)
    for (Index g = 0; g < 2; ++g) {
      const auto run = near.run(b, g, 7, 30), from = source.run(b, g, 7, 30);
      for (Index k = 0; k < run.count; ++k) {
        EXPECT_TRUE(std::equal(run.key + k * 16, run.key + k * 16 + 16, from.key + k * from.key_stride));
        EXPECT_TRUE(std::equal(run.value + k * 8, run.value + k * 8 + 8, from.value + k * from.value_stride));
      }
    }
  EXPECT_FALSE(NearKv(source.call({3, 3, 3}), 10 * 2, always, frame).exists()) << "40 keys for 9 queries";
}
TEST(NearKv, HasTheRowsOfEachSequenceWhereTheyDiffer) {
  const auto heads_of = [](const OneForAll& source) {
    const Call call = source.call({40, 40, 40});
    mha::Workspace workspace;
    auto frame = workspace.frame();
    return NearKv(call, 10 * 2 * 3, always, frame).heads();
  };
  EXPECT_EQ(heads_of({3, 40}), 2);
  EXPECT_EQ(heads_of({3, 40, false}), 6) << "other rows of the second head";
  OneForAll shorter{3, 40};
  shorter.lengths[2] = 39;
  EXPECT_EQ(heads_of(shorter), 6);
}

TEST(NearKv, ExistsWhereAKeyIsReadFiveTimesOnAverage) {
  const Far far({40, 31});
  const Call call = far.call({40, 31});
  mha::Workspace workspace;
  auto frame = workspace.frame();
  for (const double read : {5. * 71, 5. * 71 - 1})
    EXPECT_EQ(NearKv(
                  call, 10 * 2 * heads, [&](double keys) { return keys <= read; }, frame)
                  .exists(),
              read == 5. * 71);
}

// Whole calls: with 10 tiles of a head at the widest level, of 64 rows, and with the scratch of a single thread, which
// is small beside a copy.
using OneThread = mha::CpuWith<mha::Serial>;

/// What a call on rows far apart leaves in the workspace.
constexpr Index rows_of_prompt = 700;
template <class... Extra> std::size_t memory_of(const Extra&... extra) {
  Tensor<float, 4> q(1, rows_of_prompt, 8, 64), k = q, v = q;
  mha::Workspace workspace;
  static_cast<void>(mha::attention<OneThread>(q, k, v, workspace, extra...));
  return workspace.bytes();
}
TEST(NearKv, IsNotThereWhereTheMaskHidesMostKeysFromMostTiles) {
  constexpr std::size_t copied = 2 * rows_of_prompt * 8 * 64 * sizeof(float);
  EXPECT_GE(memory_of(), copied);
  EXPECT_GE(memory_of(mha::Causal{}), copied);
  EXPECT_GE(memory_of(mha::SlidingWindow{400}), copied);
  EXPECT_LT(memory_of(mha::SlidingWindow{8}), copied) << "a key is read by two or three tiles at most";
  const auto strided = [](Index, Index, Index i, Index j) { return (i - j) % 4 == 0; };
  EXPECT_GE(memory_of(strided), copied) << "a mask that does not say what it hides";
}

/// A window that counts how often it is asked what it hides.
struct CountedWindow {
  long* asked;
  mha::SlidingWindow window{64};
  bool operator()(Index b, Index h, Index i, Index j) const { return window(b, h, i, j); }
  mha::TileVisibility tile(Index b, Index h, Index q_begin, Index q_end, Index k_begin, Index k_end) const {
    ++*asked;
    return window.tile(b, h, q_begin, q_end, k_begin, k_end);
  }
};
TEST(NearKv, AsksTheMaskOfSomeOfManyTiles) {
  constexpr Index rows = 16000, size = 16, block = 128;
  const Tensor<float, 4> q(1, rows, 1, size);
  const auto asked_with = [&](Index apart) {
    const Tensor<float, 4> kv(1, rows, 1, apart);
    const mha::TensorView<const float, 4> view{
        kv.data(), {1, rows, 1, size}, {std::ptrdiff_t{apart} * rows, apart, size, 1}};
    long asked = 0;
    static_cast<void>(mha::attention<OneThread>(q, view, view, CountedWindow{&asked}));
    return asked;
  };
  const long near = asked_with(size), far = asked_with(512);
  EXPECT_GT(far, near);
  EXPECT_LE(far, near + 2 * 64 * (rows / block));
}

/// A frame of a workspace that cannot grow.
struct NoMemory {
  template <class T> T* take(std::size_t) { throw std::bad_alloc(); }
};
TEST(NearKv, IsNotThereWhereThereIsNoMemoryForIt) {
  const Far far({40, 31});
  const Call call = far.call({40, 31});
  NoMemory frame;
  EXPECT_FALSE(NearKv(call, 10 * 2 * heads, always, frame).exists());
}

/// Two heads: the rows of the first are far apart and one run, those of the second lie in pages of 16.
struct PagedSecondHead {
  using Scalar = float;
  static constexpr Index dim_of_all = 16, page = 16, pages = 30, apart = 512;
  Tensor<float, 2> first{page * pages, apart};
  Tensor<float, 3> second{pages, page, 2 * dim_of_all};

  PagedSecondHead() {
    support::Random random("paged second head");
    random.fill(first);
    random.fill(second);
  }
  Index batch() const { return 1; }
  Index heads() const { return 2; }
  Index dim() const { return dim_of_all; }
  Index value_dim() const { return dim_of_all; }
  Index keys(Index) const { return page * pages; }
  mha::KvRun<float> run(Index, Index g, Index begin, Index end) const {
    if (g == 0) {
      const float* const row = &first(begin, 0);
      return {row, row + dim_of_all, apart, apart, end - begin};
    }
    const float* const row = &second(begin / page * 7 % pages, begin % page, 0);
    return {row, row + dim_of_all, 2 * dim_of_all, 2 * dim_of_all, std::min(end - begin, page - begin % page)};
  }
};
TEST(NearKv, HasHeadsWhoseRunsAreNotThoseOfTheFirst) {
  const PagedSecondHead source;
  const Index keys = source.keys(0), size = source.dim();
  Tensor<float, 4> q(1, keys, 2, size), k(1, keys, 2, size), v(1, keys, 2, size);
  support::Random("queries of two heads").fill(q);
  for (Index j = 0; j < keys; ++j)
    for (Index h = 0; h < 2; ++h) {
      const auto row = source.run(0, h, j, j + 1);
      std::copy_n(row.key, size, &k(0, j, h, 0));
      std::copy_n(row.value, size, &v(0, j, h, 0));
    }
  EXPECT_EQ(support::differing(mha::attention<mha::Cpu>(q, source), mha::attention<mha::Cpu>(q, k, v)), 0u);
}

TEST(NearKv, TakesNoMoreThanTheKeysOfAllSequences) {
  const Far far({400, 1});
  const Call call = far.call({400, 1});
  mha::Workspace workspace;
  auto frame = workspace.frame();
  ASSERT_TRUE(NearKv(call, 10 * 2 * heads, always, frame).exists());
  constexpr std::size_t rows = 401 * heads * (dim + value_dim) * sizeof(float);
  EXPECT_GE(workspace.bytes(), rows);
  EXPECT_LE(workspace.bytes(), rows + 256);
}

/// Chunks of a prompt over a source that grows, source_of(its lengths), up to `room` keys.
template <class SourceOf> void expect_no_growth(Index room, Index group, const SourceOf& source_of) {
  constexpr Index chunk = 700;
  const auto source = source_of(std::vector<Index>{chunk});
  Tensor<float, 4> q(1, chunk, group * source.heads(), source.dim()), out = q;
  mha::Workspace workspace;
  int allocations = 0;
  for (Index n = chunk; n <= room; n += chunk) {
    const std::vector<Index> lengths{n};
    mha::attention_into<OneThread>(out, q, source_of(lengths), workspace, mha::Causal{}, mha::Origin{n - chunk});
    if (n == chunk) {
      allocations = workspace.allocations();
      const Index row = source.heads() * (source.dim() + source.value_dim());
      EXPECT_GE(workspace.bytes(), static_cast<std::size_t>(std::min(4 * chunk * group, room)) *
                                       static_cast<std::size_t>(row) * sizeof(float));
    }
    EXPECT_EQ(workspace.allocations(), allocations) << n << " keys";
  }
}
TEST(NearKv, OfAGrowingSourceIsReservedInTheFirstCall) {
  constexpr Index room = 3500, size = 16, apart = 512;
  Tensor<float, 4> k(1, room, 1, apart), v(1, room, 1, apart);
  const auto of_heads = [](const Tensor<float, 4>& rows) {
    return mha::TensorView<const float, 4>{rows.data(), {1, room, 2, size}, {apart * room, apart, size, 1}};
  };
  expect_no_growth(room, 1, [&](const std::vector<Index>& lengths) {
    return mha::ContiguousKv<float>{of_heads(k), of_heads(v), {}, lengths};
  });
}
TEST(NearKv, OfAGrowingPagedSourceIsReservedInTheFirstCall) {
  constexpr Index pages = 140, page = 16;
  const Tensor<float, 4> k(pages, page, 8, 64), v(pages, page, 8, 64);
  std::vector<Index> table(std::size_t{pages});
  std::iota(table.rbegin(), table.rend(), 0);
  expect_no_growth(pages * page, 2, [&](const std::vector<Index>& lengths) {
    return mha::PagedKv<float>{k.view(), v.view(), table, lengths};
  });
}

TEST(NearKv, OfPagesChangesNoBits) {
  constexpr Index pages = 19, page = 16, keys = pages * page - 3;
  support::Random random("near pages");
  Tensor<float, 4> q(1, keys, 16, 64), pool_k(pages, page, 8, 64), pool_v(pages, page, 8, 64), k(1, keys, 8, 64),
      v(1, keys, 8, 64);
  for (auto* t : {&q, &pool_k, &pool_v}) random.fill(*t);
  std::vector<Index> table(std::size_t{pages});
  std::iota(table.rbegin(), table.rend(), 0);
  for (Index j = 0; j < keys; ++j) {
    std::copy_n(&pool_k(pages - 1 - j / page, j % page, 0, 0), 8 * 64, &k(0, j, 0, 0));
    std::copy_n(&pool_v(pages - 1 - j / page, j % page, 0, 0), 8 * 64, &v(0, j, 0, 0));
  }
  const std::vector<Index> lengths{keys};
  const mha::PagedKv<float> source{pool_k.view(), pool_v.view(), table, lengths};
  EXPECT_EQ(support::differing(mha::attention<mha::Cpu>(q, source, mha::Causal{}),
                               mha::attention<mha::Cpu>(q, k, v, mha::Causal{})),
            0u);
}

// The bits of a call do not tell whether its rows were copied.
template <class T, class... Extra> void expect_bits_of_near_rows(Index queries, const Extra&... extra) {
  constexpr Index keys = 301, size = 20, apart = 2048 / static_cast<Index>(sizeof(T));
  support::Random random("near rows");
  Tensor<T, 4> q(2, queries, 4, size), k(2, keys, 2, size), v(2, keys, 2, size);
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  Tensor<T, 4> far_k(2, keys, 1, apart), far_v(2, keys, 1, apart);
  const auto of_heads = [&](Tensor<T, 4>& rows, const Tensor<T, 4>& from) {
    std::fill(rows.begin(), rows.end(), support::poison<T>());
    for (Index b = 0; b < 2; ++b)
      for (Index j = 0; j < keys; ++j) std::copy_n(&from(b, j, 0, 0), 2 * size, &rows(b, j, 0, 0));
    return mha::TensorView<const T, 4>{rows.data(), {2, keys, 2, size}, {std::ptrdiff_t{apart} * keys, apart, size, 1}};
  };
  const auto k_view = of_heads(far_k, k), v_view = of_heads(far_v, v);
  mha::Workspace workspace;
  EXPECT_EQ(support::differing(mha::attention<mha::Cpu>(q, k_view, v_view, workspace, extra...),
                               mha::attention<mha::Cpu>(q, k, v, extra...)),
            0u)
      << queries << " queries";
}
TEST(NearKv, OfOneSequenceForAllChangesNoBits) {
  constexpr Index batch = 5, queries = 130, keys = 300;
  support::Random random("near rows for all");
  Tensor<float, 4> q(batch, queries, 16, 32), k(1, keys, 16, 32), v(1, keys, 16, 32), each_k(batch, keys, 16, 32),
      each_v(batch, keys, 16, 32);
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  for (Index b = 0; b < batch; ++b) {
    std::copy(k.begin(), k.end(), &each_k(b, 0, 0, 0));
    std::copy(v.begin(), v.end(), &each_v(b, 0, 0, 0));
  }
  const auto shared = [](const Tensor<float, 4>& x) {
    return mha::TensorView<const float, 4>{x.data(), {batch, keys, 16, 32}, {0, 16 * 32, 32, 1}};
  };
  const std::size_t copied = 2 * k.size() * sizeof(float);
  mha::Workspace workspace;
  const auto out = mha::attention<OneThread>(q, shared(k), shared(v), workspace);
  EXPECT_EQ(support::differing(out, mha::attention<OneThread>(q, each_k, each_v)), 0u);
  EXPECT_GE(workspace.bytes(), copied);
  EXPECT_LT(workspace.bytes(), 2 * copied);
}

/// Rows of two heads in 8 bits, rows of a head 2 KiB apart, and their numbers one after another.
struct FarEightBits {
  static constexpr Index keys = 301, size = 20, value_size = 9, apart = 2048;
  Tensor<float, 4> k{2, keys, 2, size}, v{2, keys, 2, value_size};
  Tensor<mha::scaled_int8, 4> far_k{2, keys, 1, apart}, far_v{2, keys, 1, apart};

  FarEightBits() {
    support::Random random("far rows of 8 bits");
    random.fill(k);
    random.fill(v);
    put(far_k, support::in_eight_bits(k));
    put(far_v, support::in_eight_bits(v));
  }
  mha::ContiguousKv<mha::scaled_int8> source() const { return {of_heads(far_k, size), of_heads(far_v, value_size)}; }

 private:
  static void put(Tensor<mha::scaled_int8, 4>& rows, const Tensor<mha::scaled_int8, 4>& from) {
    support::poison_all(rows);
    for (Index b = 0; b < 2; ++b)
      for (Index j = 0; j < keys; ++j) std::copy_n(&from(b, j, 0, 0), 2 * from.extent(3), &rows(b, j, 0, 3));
  }
  static mha::TensorView<const mha::scaled_int8, 4> of_heads(const Tensor<mha::scaled_int8, 4>& rows, Index n) {
    return {rows.data() + 3 + 4, {2, keys, 2, n}, {std::ptrdiff_t{apart} * keys, apart, n + 4, 1}};
  }
};
TEST(NearKv, CopiesTheScalesOfRowsInEightBits) {
  struct StoredCall {
    AnyKv<mha::scaled_int8> kv;
    struct {
      Index batch, heads;
    } shape;
    Index kv_heads, head_dim, value_dim;
    Index queries(Index) const { return 301; }
    Index keys(Index b) const { return kv.keys(b); }
  };
  const FarEightBits far;
  const auto source = far.source();
  const StoredCall call{AnyKv<mha::scaled_int8>(source), {2, 2}, 2, far.size, far.value_size};
  mha::Workspace workspace;
  auto frame = workspace.frame();
  const mha::detail::cpu::NearKv<mha::scaled_int8, StoredCall> near(call, 10 * 2 * 2, always, frame);
  ASSERT_TRUE(near.exists());
  const std::size_t bytes = 2 * 301 * 2 * (20 + 4 + 9 + 4);
  EXPECT_GE(workspace.bytes(), bytes);
  EXPECT_LE(workspace.bytes(), bytes + 512);
  for (Index i = 0; i < near.heads(); ++i) near.copy(i);
  for (Index b = 0; b < 2; ++b)
    for (Index g = 0; g < 2; ++g) {
      const auto run = near.run(b, g, 0, 301);
      ASSERT_EQ(run.key_stride, 24);
      ASSERT_EQ(run.value_stride, 13);
      for (Index j = 0; j < 301; ++j) {
        for (Index d = 0; d < far.size; ++d)
          ASSERT_EQ(mha::detail::stored_number<float>(run.key + j * run.key_stride, d), far.k(b, j, g, d));
        for (Index d = 0; d < far.value_size; ++d)
          ASSERT_EQ(mha::detail::stored_number<float>(run.value + j * run.value_stride, d), far.v(b, j, g, d));
      }
    }
}
TEST(NearKv, ChangesNoBitsOfRowsInEightBits) {
  const FarEightBits far;
  for (const Index queries : {3, 70, 301}) {
    Tensor<float, 4> q(2, queries, 4, far.size);
    support::Random("queries of far rows").fill(q);
    EXPECT_EQ(support::differing(mha::attention<mha::Cpu>(q, far.source(), mha::Causal{}),
                                 mha::attention<mha::Cpu>(q, far.k, far.v, mha::Causal{})),
              0u)
        << queries << " queries";
  }
}

TEST(NearKv, ChangesNoBits) {
  for (const Index queries : {3, 70, 301}) {
    expect_bits_of_near_rows<float>(queries);
    expect_bits_of_near_rows<float>(queries, mha::Causal{});
    expect_bits_of_near_rows<double>(queries, mha::SlidingWindow{200});
    expect_bits_of_near_rows<mha::half>(queries, mha::Causal{});
  }
}

}  // namespace
