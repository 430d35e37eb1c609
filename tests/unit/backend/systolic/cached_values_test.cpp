// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include <mha/layer/kv_cache.hpp>
#include <mha/systolic.hpp>

#include "random.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;

constexpr Index layers = 2, blocks = 3, heads = 2, rows = 330;

/// Tiles of rows and what they are of.
struct Kept {
  Index value_dim;
  mha::Tensor<bfloat16, 4> values;  // (blocks, rows, Hkv, Dv), of layer 1
  systolic::CachedValues tiles;

  explicit Kept(Index dim)
      : value_dim(dim),
        values(blocks, rows, heads, dim),
        tiles({.heads = heads, .dim = 8, .value_dim = dim}, layers, {.blocks = blocks, .rows = rows}) {
    std::fill(values.begin(), values.end(), bfloat16(NAN));  // no row is read that was not written
  }

  void write(support::Random& random, Index block, Index begin, Index end) {
    std::vector<Index> to;
    for (Index p = begin; p < end; ++p) {
      to.push_back(block * rows + p);
      for (Index h = 0; h < heads; ++h)
        for (Index d = 0; d < value_dim; ++d) values(block, p, h, d) = bfloat16(static_cast<float>(random.normal()));
    }
    tiles.write(1, values.view(), to, [](const auto& items) { mha::detail::run_serially(items); });
  }

  /// The tiles of a block's first `length` rows against their numbers, zeros behind them.
  void expect_right(Index block, Index length) const {
    for (Index h = 0; h < heads; ++h) {
      const mha::detail::ValueTiles at = tiles.at(1, block, h, length);
      ASSERT_NE(at.tiles, nullptr);
      const systolic::KvTiles kv{at.tiles, nullptr, at.non_finite, 0, value_dim};
      for (Index p = 0; p < systolic::round_up(length, systolic::key_block); ++p)
        for (Index d = 0; d < systolic::round_up(value_dim, systolic::tile_side); ++d) {
          const bfloat16 got =
              kv.value_tiles_at(p / 32 * 32)[d / 16 * systolic::KvTiles::value_tile_stride + d % 16 * 32 + p % 32];
          const bfloat16 want = p < length && d < value_dim ? values(block, p, h, d) : bfloat16{};
          ASSERT_EQ(got.bits, want.bits) << "value " << p << ", " << d << " of " << length;
        }
      for (Index k = 0; k < length; k += systolic::key_block) {
        bool non_finite = false;
        for (Index p = k; p < std::min(length, k + systolic::key_block); ++p)
          for (Index d = 0; d < value_dim; ++d)
            non_finite = non_finite || !std::isfinite(float(values(block, p, h, d)));
        EXPECT_EQ(at.non_finite[k / systolic::key_block] != 0, non_finite) << "block at " << k;
      }
    }
  }
};

TEST(CachedValues, AreThoseOfTheRowsHoweverTheyCame) {
  support::Random random("cached values");
  for (const Index dim : {16, 48, 9}) {
    SCOPED_TRACE(dim);
    Kept kept(dim);
    Index length[blocks] = {};
    for (int round = 0; round < 120; ++round) {
      const auto below = [&](Index n) { return static_cast<Index>(random.engine()() % static_cast<unsigned>(n)); };
      const Index block = below(blocks);
      Index& n = length[block];
      if (below(4) == 0) n -= below(n + 1);  // taken back; what was there is written over
      const Index count = std::min(rows - n, below(3) == 0 ? 1 + below(150) : 1);
      if (count == 0) continue;
      kept.write(random, block, n, n + count);
      n += count;
      kept.expect_right(block, n);
      if (below(5) != 0) continue;
      const Index other = below(n);  // rows that came another way
      for (Index p = other; p < n; ++p)
        for (Index h = 0; h < heads; ++h) kept.values(block, p, h, 0) = bfloat16(3.f);
      if (below(2) == 0)
        kept.tiles.forget(block * rows + other);
      else
        kept.tiles.forget(1, std::vector<Index>{block * rows + n - 1, block * rows + other});
      EXPECT_EQ(kept.tiles.at(1, block, 0, n).tiles, nullptr);
    }
  }
}

TEST(CachedValues, AreNullWhereTheyMayBeWrong) {
  support::Random random("null");
  Kept kept(16);
  EXPECT_EQ(kept.tiles.at(1, 0, 0, 1).tiles, nullptr);
  kept.write(random, 0, 0, 100);
  EXPECT_NE(kept.tiles.at(1, 0, 0, 100).tiles, nullptr);
  EXPECT_EQ(kept.tiles.at(1, 0, 0, 99).tiles, nullptr) << "a row behind the end is in the tiles";
  EXPECT_EQ(kept.tiles.at(1, 0, 0, 101).tiles, nullptr);
  EXPECT_EQ(kept.tiles.at(1, 1, 0, 100).tiles, nullptr) << "of another block";
  EXPECT_EQ(kept.tiles.at(0, 0, 0, 100).tiles, nullptr) << "of another layer";
  kept.values(0, 70, 1, 3) = bfloat16(INFINITY);
  kept.tiles.forget(70);
  std::vector<Index> last{100};
  for (Index d = 0; d < 16; ++d) kept.values(0, 100, 0, d) = kept.values(0, 100, 1, d) = bfloat16(1.f);
  kept.tiles.write(1, kept.values.view(), last, [](const auto& items) { mha::detail::run_serially(items); });
  kept.expect_right(0, 101);
  EXPECT_EQ(kept.tiles.at(1, 0, 1, 101).non_finite[1], 1);
}

TEST(CachedValues, AreNullAfterAWriteThatFailed) {
  support::Random random("failed write");
  Kept kept(16);
  kept.write(random, 0, 0, 100);
  kept.write(random, 1, 0, 100);
  const std::vector<Index> next{100, rows + 100};
  for (const Index block : {0, 1})
    for (Index d = 0; d < 16; ++d) kept.values(block, 100, 0, d) = kept.values(block, 100, 1, d) = bfloat16(1.f);
  const auto one_head = [](const auto& items) {
    mha::detail::run_rows(items, 0, 1);
    throw std::runtime_error("the second head");
  };
  EXPECT_THROW(kept.tiles.write(1, kept.values.view(), next, one_head), std::runtime_error);
  for (const Index block : {0, 1})
    for (const Index length : {100, 101}) EXPECT_EQ(kept.tiles.at(1, block, 0, length).tiles, nullptr);
  kept.tiles.write(1, kept.values.view(), next, [](const auto& items) { mha::detail::run_serially(items); });
  kept.expect_right(0, 101);
  kept.expect_right(1, 101);
}

TEST(CachedValues, TakeNoMemoryInAStep) {
  mha::MultiHeadAttention<bfloat16, mha::Systolic<>, mha::Causal> layer({.d_model = 32, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 300});
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

/// Which caches keep them, and when a step reads them.
TEST(CachedValues, AreOfContiguousCachesInBfloat16) {
  using Layer = mha::MultiHeadAttention<bfloat16, mha::Systolic<>>;
  const Layer layer({.d_model = 32, .num_heads = 2});
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 300}, {.sequences = 2});
  auto narrow = mha::make_cache<bfloat16>(
      mha::MultiHeadAttention<float, mha::Systolic<>>({.d_model = 32, .num_heads = 2}), mha::Contiguous{.length = 300});
  auto wide = mha::make_cache<float>(layer, mha::Contiguous{.length = 300}, {.sequences = 2});
  auto paged = mha::make_cache(layer, mha::Paged{.pages = 8, .length = 300}, {.sequences = 2});
  auto on_cpu = mha::make_cache(mha::MultiHeadAttention<bfloat16, mha::Cpu>({.d_model = 32, .num_heads = 2}),
                                mha::Contiguous{.length = 300}, {.sequences = 2});
  const auto kept = [](const auto& source, Index b) {
    return mha::detail::AnyKv<typename std::remove_cvref_t<decltype(source)>::Scalar>(source).value_tiles(b, 0).tiles !=
           nullptr;
  };
  const auto one_step = [&](auto& of) {
    const mha::SequenceId id = of.add();
    auto step = of.step(id, 70);
    using F = typename std::remove_cvref_t<decltype(of)>::Scalar;
    const mha::Tensor<F, 3> rows_of_it(70, 2, 16);
    EXPECT_FALSE(kept(step.source(0), 0)) << "before the layer wrote";
    step.append(0, rows_of_it, rows_of_it);
    const bool are_kept = kept(step.source(0), 0);
    step.commit();
    return are_kept;
  };
  EXPECT_TRUE(one_step(cache));
  EXPECT_TRUE(one_step(narrow));
  EXPECT_FALSE(one_step(wide));
  EXPECT_FALSE(one_step(paged));
  EXPECT_FALSE(one_step(on_cpu));
  EXPECT_GT(cache.bytes(), on_cpu.bytes() * 3 / 2) << "in whole tiles";
  EXPECT_LT(cache.bytes(), on_cpu.bytes() * 2);

  // What a sequence becomes without a step is packed by the call, until the next step.
  const mha::SequenceId first = cache.ids()[0];
  const auto nothing_more = [&](mha::SequenceId id) {
    auto step = cache.step(id, 0);
    return kept(step.source(0), 0);
  };
  EXPECT_TRUE(nothing_more(first));
  EXPECT_FALSE(nothing_more(cache.fork(first)));
  const auto saved = cache.save(first);
  cache.truncate(first, 40);
  EXPECT_FALSE(nothing_more(first));
  cache.remove(first);
  EXPECT_FALSE(nothing_more(cache.restore(saved)));
}

}  // namespace
