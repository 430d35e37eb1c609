// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/layer/kv_cache.hpp>
#include <mha/systolic.hpp>

#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;
using Contiguous = mha::detail::BlockKv<bfloat16, false>;
using Ring = mha::detail::BlockKv<bfloat16, true>;
using Pages = mha::PagedKv<bfloat16>;

constexpr Index layers = 2, heads = 2, sequences = 3;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }
const auto serially = [](const auto& items) { mha::detail::run_serially(items); };

/// Tiles of layer 1 and the rows they are of: three sequences of `longest` positions at most, whose blocks, six more
/// than they need, are in no order. Of a block of a Ring the first `first` rows stay.
template <class Source> struct Kept {
  static constexpr bool pages = std::is_same_v<Source, Pages>, turns = std::is_same_v<Source, Ring>;

  Index value_dim, rows, first, longest;
  Index each;                       ///< blocks of a sequence
  mha::Tensor<bfloat16, 4> values;  // (blocks, rows, Hkv, Dv)
  systolic::CachedTiles<bfloat16> tiles;
  std::vector<Index> table, lengths, written, oldest;

  Kept(Index dim, Index of_rows, Index most, Index first_rows = 0)
      : value_dim(dim),
        rows(of_rows),
        first(turns ? first_rows : of_rows),
        longest(most),
        each(pages ? mha::detail::blocks_of(most, of_rows) : 1),
        values(sequences * each + 6, of_rows, heads, dim),
        tiles({.heads = heads, .dim = 8, .value_dim = dim}, layers,
              {.blocks = sequences * each + 6, .rows = of_rows, .turning = of_rows - first, .pages = pages}),
        lengths(at(sequences)),
        written(at(sequences)),
        oldest(at(sequences)) {
    std::fill(values.begin(), values.end(), bfloat16(NAN));  // no row is read that was not written
    const Index all = values.extent(0), apart = all % 5 == 0 ? 7 : 5;
    for (Index i = 0; i < sequences * each; ++i) table.push_back((i * apart + 3) % all);
  }

  Source source() const {
    if constexpr (pages)
      return {values.view(), values.view(), table, lengths};
    else
      return {values.view(), values.view(), table, lengths, oldest, first};
  }
  bfloat16& value(Index b, Index p, Index h, Index d) {
    const mha::detail::InBlock in = source().in_block(b, p);
    return values(in.block, mha::detail::RingRows{rows, first}.row(in.position), h, d);
  }
  mha::detail::ValueTiles tiles_at(Index b, Index h, Index k) const {
    return mha::detail::TiledKv<Source, systolic::CachedTiles<bfloat16>>{source(), &tiles, 1}.value_tiles(b, h, k);
  }

  /// So many positions more for a sequence, in memory alone.
  void put(support::Random& random, Index b, Index count) {
    lengths[at(b)] += count;
    if (turns) {
      written[at(b)] = std::max(written[at(b)], lengths[at(b)]);
      oldest[at(b)] = mha::detail::RingRows{rows, first}.oldest(written[at(b)]);
    }
    for (Index p = lengths[at(b)] - count; p < lengths[at(b)]; ++p)
      for (Index h = 0; h < heads; ++h)
        for (Index d = 0; d < value_dim; ++d)
          value(b, p, h, d) = bfloat16(p % 97 == 5 && d == 3 ? INFINITY : static_cast<float>(random.normal()));
  }
  void write(support::Random& random, Index b, Index count) {
    std::vector<Index> from = lengths;
    put(random, b, count);
    tiles.write(1, source(), from, serially);
  }

  /// The tiles of every position that a sequence holds against its number.
  void expect_right(Index b) {
    const Source kv = source();
    const Index n = lengths[at(b)];
    for (Index h = 0; h < heads; ++h)
      for (Index k = 0; k < n; k += 64) {
        const Index end = std::min(n, k + 64);
        if (mha::detail::held(kv, b, k) >= end) continue;
        const mha::detail::ValueTiles got = tiles_at(b, h, k);
        ASSERT_NE(got.tiles, nullptr) << "from " << k << " of " << n;
        const auto number = [&](Index i, Index d) {
          return got.tiles[d / 16 * got.stride + i / 32 * systolic::tile_size + d % 16 * 32 + i % 32];
        };
        bool non_finite = false;
        for (Index p = k; p < end; ++p)
          if (mha::detail::held(kv, b, p) == p)
            for (Index d = 0; d < value_dim; ++d) {
              ASSERT_EQ(number(p - k, d).bits, value(b, p, h, d).bits) << "value " << p << ", " << d << " of " << n;
              non_finite = non_finite || !std::isfinite(float(value(b, p, h, d)));
            }
        if (non_finite) {
          ASSERT_TRUE(got.non_finite) << "from " << k;
        }
        for (Index i = 0; i < 64 && !got.non_finite; ++i)  // whatever is behind the end
          for (Index d = 0; d < systolic::round_up(value_dim, 16); ++d)
            ASSERT_TRUE(std::isfinite(float(number(i, d)))) << "from " << k;
      }
  }

  /// A block of sequence b becomes a copy of that of another, of its first `count` rows.
  void copy(Index from, Index to, Index count) {
    for (Index i = 0; i < count; ++i)
      for (Index h = 0; h < heads; ++h)
        for (Index d = 0; d < value_dim; ++d) values(to, i, h, d) = values(from, i, h, d);
    tiles.copy(from * rows, to * rows, count);
  }
};

/// Rows, rollbacks and copies in any order.
template <class Source> void go_on(Kept<Source> kept, int rounds, Index most_back) {
  support::Random random("cached values");
  const auto below = [&](Index n) { return static_cast<Index>(random.engine()() % static_cast<unsigned>(n)); };
  const Index most = kept.turns ? kept.rows - kept.first - most_back : 150;
  for (int round = 0; round < rounds; ++round) {
    const Index b = below(sequences), other = (b + 1 + below(sequences - 1)) % sequences;
    Index& n = kept.lengths[at(b)];
    if (below(4) == 0) {  // what was there is written over
      n = std::max(n - below(std::min(n, most_back) + 1), kept.written[at(b)] - most_back);
      kept.expect_right(b);
    }
    if (below(8) == 0) {  // a fork that shares no memory
      const Index of = kept.lengths[at(other)];
      if constexpr (kept.pages) {
        if (of % kept.rows != 0) {
          const Index page = kept.table[at(other * kept.each + of / kept.rows)];
          Index& free = kept.table[at(b * kept.each + of / kept.rows)];
          for (Index i = 0; i < of / kept.rows; ++i)  // the others are shared
            kept.copy(kept.table[at(other * kept.each + i)], kept.table[at(b * kept.each + i)], kept.rows);
          kept.copy(page, free, of % kept.rows);
        }
      } else {
        const Index all = kept.turns ? kept.written[at(other)] : of;
        kept.copy(kept.table[at(other)], kept.table[at(b)], std::min(all, kept.rows));
      }
      if (!kept.pages || of % kept.rows != 0) {
        n = of;
        kept.written[at(b)] = kept.written[at(other)];
        kept.oldest[at(b)] = kept.oldest[at(other)];
      }
      kept.expect_right(b);
    }
    const Index count = std::min(kept.longest - n, below(3) == 0 ? 1 + below(most) : 1);
    if (count > 0) kept.write(random, b, count);
    kept.expect_right(round % 8 == 0 ? other : b);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CachedTiles, AreThoseOfTheRowsHoweverTheyCame) {
  for (const Index dim : {16, 48, 9}) {
    SCOPED_TRACE(dim);
    go_on(Kept<Contiguous>(dim, 330, 330), 60, 330);
    go_on(Kept<Contiguous>(dim, 50, 50), 40, 50);
    for (const Index page : {64, 128, 256}) go_on(Kept<Pages>(dim, page, 700), 40, 700);
  }
}

TEST(CachedTiles, GoRoundInARing) {
  for (const Index dim : {16, 40}) {
    SCOPED_TRACE(dim);
    go_on(Kept<Ring>(dim, 51, 2000, 3), 150, 9);
    go_on(Kept<Ring>(dim, 64, 2000, 0), 150, 20);
    go_on(Kept<Ring>(dim, 330, 5000, 70), 80, 40);
    go_on(Kept<Ring>(dim, 600, 5000, 300), 80, 40);
  }
}

TEST(CachedTiles, AreNullWhereTheyMayBeWrong) {
  support::Random random("null");
  Kept<Contiguous> kept(16, 330, 330);
  kept.put(random, 0, 100);
  EXPECT_EQ(kept.tiles_at(0, 0, 0).tiles, nullptr);
  kept.lengths[0] = 0;
  kept.write(random, 0, 100);
  EXPECT_NE(kept.tiles_at(0, 1, 64).tiles, nullptr);
  const auto in_block = kept.source().in_block(0, 64);
  EXPECT_NE(kept.tiles.at(1, in_block, 0, 99).tiles, nullptr);
  EXPECT_EQ(kept.tiles.at(1, in_block, 0, 101).tiles, nullptr);
  EXPECT_EQ(kept.tiles.at(1, {in_block.block, 128}, 0, 129).tiles, nullptr) << "of no rows";
  EXPECT_EQ(kept.tiles.at(1, {kept.table[1], 64}, 0, 99).tiles, nullptr) << "of another block";
  EXPECT_EQ(kept.tiles.at(0, in_block, 0, 99).tiles, nullptr) << "of another layer";
  kept.copy(kept.table[0], kept.table[1], 70);
  EXPECT_NE(kept.tiles.at(1, {kept.table[1], 64}, 0, 70).tiles, nullptr);
  EXPECT_EQ(kept.tiles.at(1, {kept.table[1], 64}, 0, 71).tiles, nullptr) << "behind the rows of a copy";
}

// Tiles are found by their place, which positions a turn apart share.
TEST(CachedTiles, AreNullATurnLater) {
  support::Random random("turn");
  Kept<Ring> kept(16, 128, 5000);  // tiles of 256 positions
  kept.write(random, 0, 64);
  ASSERT_NE(kept.tiles_at(0, 0, 0).tiles, nullptr);
  EXPECT_NE(kept.tiles.at(1, {kept.table[0], 0}, 0, 64).tiles, nullptr);
  for (const Index turn : {256, 512}) {
    EXPECT_EQ(kept.tiles.at(1, {kept.table[0], turn}, 0, turn + 1).tiles, nullptr) << turn;
    EXPECT_EQ(kept.tiles.at(1, {kept.table[0], turn}, 0, turn + 64).tiles, nullptr) << turn;
  }
  for (Index done = 64; done < 300; done += 4) kept.write(random, 0, 4);
  kept.expect_right(0);
  EXPECT_EQ(kept.tiles.at(1, {kept.table[0], 0}, 0, 64).tiles, nullptr) << "a turn ago";
}

TEST(CachedTiles, AreNullAfterAWriteThatFailed) {
  support::Random random("failed write");
  Kept<Contiguous> kept(16, 330, 330);
  for (const Index b : {0, 1}) kept.write(random, b, 100);
  const std::vector<Index> from = kept.lengths;
  for (const Index b : {0, 1}) kept.put(random, b, 1);
  const auto one_head = [](const auto& items) {
    mha::detail::run_rows(items, 0, 1);
    throw std::runtime_error("the second head");
  };
  EXPECT_THROW(kept.tiles.write(1, kept.source(), from, one_head), std::runtime_error);
  for (const Index b : {0, 1})
    for (const Index length : {100, 101}) {
      kept.lengths[at(b)] = length;
      EXPECT_EQ(kept.tiles_at(b, 0, 64).tiles, nullptr);
      EXPECT_NE(kept.tiles_at(b, 0, 0).tiles, nullptr) << "of which the write knows nothing";
    }
  kept.tiles.write(1, kept.source(), from, serially);
  for (const Index b : {0, 1}) kept.expect_right(b);
}

TEST(CachedTiles, HaveMemoryForWholeBlocksOfPositions) {
  const auto bytes_of = [](const mha::detail::BlockExtents& extents) {
    return systolic::CachedTiles<bfloat16>({.heads = 2, .dim = 8, .value_dim = 20}, 3, extents).bytes();
  };
  const auto expected = [](std::size_t positions) {
    const std::size_t tiles = 2 * 3 * positions * (32 * 2), non_finite = 2 * 3 * positions / 64,
                      ends = 3 * positions / 64 * sizeof(Index), scratch = 2 * (32 * 32) * 2;
    return tiles + non_finite + ends + scratch;
  };
  EXPECT_EQ(bytes_of({.blocks = 5, .rows = 300}), expected(5 * 512));
  EXPECT_EQ(bytes_of({.blocks = 5, .rows = 30}), expected(5 * 64));
  EXPECT_EQ(bytes_of({.blocks = 5, .rows = 64, .pages = true}), expected(5 * 64));
  EXPECT_EQ(bytes_of({.blocks = 5, .rows = 128, .pages = true}), expected(5 * 128));
  EXPECT_EQ(bytes_of({.blocks = 5, .rows = 512, .pages = true}), expected(5 * 512));
  EXPECT_EQ(bytes_of({.blocks = 5, .rows = 51, .turning = 48}), expected(5 * 3 * 64)) << "48 in two of 64";
  EXPECT_EQ(bytes_of({.blocks = 1, .rows = 600, .turning = 600}), expected(4 * 256));
}

template <class Storage> void expect_no_memory_in_a_step(const Storage& storage) {
  mha::MultiHeadAttention<bfloat16, mha::Systolic<>, mha::SlidingWindow> layer({.d_model = 32, .num_heads = 2},
                                                                               mha::SlidingWindow{.left = 199});
  layer.initialize(mha::XavierUniform{.seed = 1});
  auto cache = mha::make_cache(layer, storage);
  const mha::SequenceId id = cache.add();
  const mha::Tensor<bfloat16, 2> x(290, 32);
  mha::Tensor<bfloat16, 2> y(1, 32);
  mha::Workspace workspace;
  static_cast<void>(layer.prefill(x, cache, workspace));
  cache.truncate(id, 200);
  layer.step(mha::view(x.data(), 1, 32), cache, mha::into(y), workspace);
  const int before = workspace.allocations();
  for (Index i = 201; i < 290; ++i) layer.step(mha::view(x.data(), 1, 32), cache, mha::into(y), workspace);
  EXPECT_EQ(workspace.allocations(), before);
}

TEST(CachedTiles, TakeNoMemoryInAStep) {
  expect_no_memory_in_a_step(mha::Contiguous{.length = 300});
  expect_no_memory_in_a_step(mha::Paged{.pages = 8, .length = 300});
  expect_no_memory_in_a_step(mha::Paged{.pages = 20, .length = 300, .page = 16});
  expect_no_memory_in_a_step(mha::Ring{.left = 199, .rows = 290});
}

using Layer = mha::MultiHeadAttention<bfloat16, mha::Systolic<>>;

/// Whether a call reads tiles of all positions that a source holds.
template <class Source> bool all_kept(const Source& source, Index b) {
  const mha::detail::AnyKv<typename Source::Scalar> any(source);
  const Index n = any.keys(b);
  for (Index k = 0; k < n; k += 64)
    if (const Index end = std::min(n, k + 64); any.held(b, k, end) < end && any.value_tiles(b, 0, k).tiles == nullptr)
      return false;
  return any.keeps_values();
}

/// Which caches keep them.
TEST(CachedTiles, AreOfCachesOfSystolic) {
  const Layer layer({.d_model = 32, .num_heads = 2});
  const mha::MultiHeadAttention<float, mha::Systolic<>> wide({.d_model = 32, .num_heads = 2});
  const mha::MultiHeadAttention<bfloat16, mha::Cpu> on_cpu({.d_model = 32, .num_heads = 2});
  const auto one_step = [&](auto cache_of) {
    auto cache = cache_of();
    using F = typename decltype(cache)::Scalar;
    auto step = cache.step(cache.add(), 70);
    const mha::Tensor<F, 3> rows(70, 2, 16);
    EXPECT_FALSE(all_kept(step.source(0), 0)) << "before the layer wrote";
    step.append(0, rows, rows);
    return all_kept(step.source(0), 0);
  };
  const auto each = [&](const auto& storage, bool kept) {
    EXPECT_EQ(one_step([&] { return mha::make_cache(layer, storage); }), kept);
    EXPECT_EQ(one_step([&] { return mha::make_cache<bfloat16>(wide, storage); }), kept);
    EXPECT_EQ(one_step([&] { return mha::make_cache<float>(layer, storage); }), kept);
    EXPECT_EQ(one_step([&] { return mha::make_cache(wide, storage); }), kept);
    EXPECT_FALSE(one_step([&] { return mha::make_cache(on_cpu, storage); }));
  };
  each(mha::Contiguous{.length = 300}, true);
  each(mha::Ring{.left = 20, .rows = 70}, true);
  each(mha::Paged{.pages = 8, .length = 300}, true);
  for (const Index page : {16, 32}) each(mha::Paged{.pages = 300 / page + 1, .length = 300, .page = page}, true);
  const mha::Config whole{.d_model = 64, .num_heads = 2};
  const auto kept = mha::make_cache(Layer(whole), mha::Contiguous{.length = 300});
  const auto rows = mha::make_cache(decltype(on_cpu)(whole), mha::Contiguous{.length = 300});
  EXPECT_GT(kept.bytes(), rows.bytes() * 3 / 2) << "in whole tiles";
  EXPECT_LT(kept.bytes(), rows.bytes() * 2);
}

/// Every key that a source holds is read where it is, or where it is kept in bfloat16, its tiles filled up with zeros.
template <class Source> void expect_keys_in_place(const Source& source, Index b) {
  using F = typename Source::Scalar;
  const mha::detail::AnyKv<F> any(source);
  const Index n = any.keys(b), dim = source.dim(), width = systolic::round_up(dim, systolic::tile_depth);
  for (Index g = 0; g < source.heads(); ++g) {
    systolic::KeysInPlace<F> in_place(any, b, g, n, dim);
    EXPECT_TRUE(in_place.stays());
    for (Index begin = 0; begin < n; begin += 64) {
      const Index end = std::min(n, begin + 64);
      if (any.held(b, begin, end) == end) continue;
      const systolic::KeyRows rows = in_place.at(begin);
      ASSERT_TRUE(rows.exist()) << "from " << begin << " of " << n;
      for (Index k = begin; k < end; ++k) {
        if (any.held(b, k, end) != k) continue;
        const F* const key = any.run(b, g, k, k + 1).key;
        const bfloat16* const at = rows.tile[k % 64 / 16] + k % 16 * rows.stride;
        if constexpr (std::is_same_v<F, bfloat16>) {
          ASSERT_EQ(at, key) << "key " << k << " of " << n;
        }
        for (Index d = 0; d < dim; ++d) ASSERT_EQ(at[d].bits, bfloat16(float(key[d])).bits) << "key " << k << ", " << d;
        for (Index d = dim; d < width; ++d) ASSERT_EQ(at[d].bits, 0) << "key " << k << ", " << d;
      }
    }
  }
}

/// In steps of some rows, past `length` of which a Ring drops the first.
template <class F, class Storage> void expect_nothing_to_pack(const Storage& storage, Index head_dim, Index length) {
  SCOPED_TRACE(head_dim);
  const Layer layer({.d_model = 2 * head_dim, .num_heads = 2, .head_dim = head_dim, .value_dim = 24});
  auto cache = mha::make_cache<F>(layer, storage, {.sequences = 2});
  const mha::SequenceId ids[] = {cache.add(), cache.add()};
  support::Random random("keys in place");
  for (Index n = 0, count = 1; n + count <= length; n += count, count = 1 + n % 37) {
    mha::Tensor<F, 3> key(count + 1, 2, head_dim), value(count + 1, 2, 24);
    random.fill(key);
    random.fill(value);
    auto step = cache.step(ids, std::array{count, Index{n % 3 == 0}});
    const Index rows = step.offsets()[2];
    step.append(0, mha::view(std::as_const(key).data(), rows, 2, head_dim),
                mha::view(std::as_const(value).data(), rows, 2, 24));
    for (const Index b : {0, 1}) {
      expect_keys_in_place(step.source(0), b);
      EXPECT_TRUE(all_kept(step.source(0), b));
    }
    step.commit();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// A call packs nothing, whatever the storage: what a step packs are its own rows.
template <class F> void expect_nothing_to_pack(Index head_dim) {
  for (const Index page : {16, 32, 64, 256})
    expect_nothing_to_pack<F>(mha::Paged{.pages = 2 * (540 / page + 1), .length = 540, .page = page}, head_dim, 540);
  expect_nothing_to_pack<F>(mha::Contiguous{.length = 530}, head_dim, 530);
  expect_nothing_to_pack<F>(mha::Ring{.left = 130, .rows = 37, .first = 5}, head_dim, 900);
  expect_nothing_to_pack<F>(mha::Ring{.left = 300, .rows = 37}, head_dim, 1100);
  expect_nothing_to_pack<F>(mha::Ring{.left = 3, .rows = 37, .first = 70}, head_dim, 600);
}

TEST(CachedTiles, LeaveNothingToPack) {
  for (const Index head_dim : {32, 40, 8}) expect_nothing_to_pack<bfloat16>(head_dim);
  expect_nothing_to_pack<bfloat16>(288);
  for (const Index head_dim : {32, 12}) {
    expect_nothing_to_pack<float>(head_dim);
    expect_nothing_to_pack<mha::half>(head_dim);
  }
}

/// What a sequence becomes without a step is in tiles too.
template <class Storage> void expect_tiles_without_a_step(const Storage& storage) {
  const Layer layer({.d_model = 32, .num_heads = 2});
  auto cache = mha::make_cache(layer, storage, {.sequences = 4});
  const auto kept = [&](mha::SequenceId id) {
    auto step = cache.step(id, 0);
    return all_kept(step.source(0), 0);
  };
  const auto grow = [&](mha::SequenceId id, Index count) {
    auto step = cache.step(id, count);
    const mha::Tensor<bfloat16, 3> rows(count, 2, 16);
    step.append(0, rows, rows);
    EXPECT_TRUE(all_kept(step.source(0), 0));
    step.commit();
    EXPECT_TRUE(kept(id));
  };
  const mha::SequenceId first = cache.add();
  for (int i = 0; i < 3; ++i) grow(first, 70);
  const mha::SequenceId fork = cache.fork(first), shorter = cache.fork(first, 200);
  EXPECT_TRUE(kept(fork));
  EXPECT_TRUE(kept(shorter));
  grow(shorter, 3);  // of pages, in a copy of the one that it shares
  const auto saved = cache.save(first);
  cache.truncate(first, 190);
  EXPECT_TRUE(kept(first));
  const mha::SequenceId beams[] = {first, fork, shorter};
  const Index from[] = {2, 2, 0};
  cache.reorder(beams, from);
  for (const mha::SequenceId id : beams) EXPECT_TRUE(kept(id));
  cache.remove(fork);
  EXPECT_TRUE(kept(cache.restore(saved)));
}

TEST(CachedTiles, AreKeptWithoutAStep) {
  expect_tiles_without_a_step(mha::Contiguous{.length = 300});
  expect_tiles_without_a_step(mha::Ring{.left = 40, .rows = 70});
  expect_tiles_without_a_step(mha::Ring{.left = 40, .rows = 70, .first = 5});
  expect_tiles_without_a_step(mha::Paged{.pages = 16, .length = 300});
  expect_tiles_without_a_step(mha::Paged{.pages = 16, .length = 300, .page = 128});
  expect_tiles_without_a_step(mha::Paged{.pages = 32, .length = 300, .page = 32});
  expect_tiles_without_a_step(mha::Paged{.pages = 64, .length = 300, .page = 16});
}

}  // namespace
