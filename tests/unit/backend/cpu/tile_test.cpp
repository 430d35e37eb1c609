// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/core/tensor.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::TileVisibility;
using Cpu = mha::CpuWith<mha::Serial>;

/// Stripes of hidden keys, 32 and more in the middle of blocks.
struct Stripes {
  static bool hides(Index k) { return k / 40 % 2 == 1 || k / 300 % 2 == 1; }
  bool operator()(Index, Index, Index q, Index k) const { return !hides(k) && k <= q + 900; }
};
/// The same, and says so tile by tile.
struct TiledStripes : Stripes {
  TileVisibility tile(Index, Index, Index q_begin, Index q_end, Index k_begin, Index k_end) const {
    bool any = false, all = k_end - 1 <= q_begin + 900;
    for (Index k = k_begin; k < k_end; ++k) {
      any = any || (!hides(k) && k <= q_end + 899);
      all = all && !hides(k);
    }
    return !any ? TileVisibility::none : all ? TileVisibility::full : TileVisibility::partial;
  }
};

TEST(QueryTile, LeavesHiddenKeysInsideABlockOut) {
  support::Random random("gaps");
  for (const Index queries : {1, 5, 70}) {
    Tensor<float, 4> q(1, queries, 4, 16), k(1, 1000, 2, 16), v(1, 1000, 2, 16);
    for (auto* t : {&q, &k, &v}) random.fill(*t);
    const auto asked = mha::attention<Cpu>(q, k, v, Stripes{});
    EXPECT_EQ(support::differing(mha::attention<Cpu>(q, k, v, TiledStripes{}), asked), 0u) << queries << " queries";
    for (Index j = 0; j < 1000; ++j)
      if (Stripes::hides(j))
        for (Index d = 0; d < 16; ++d) k(0, j, 1, d) = v(0, j, 0, d) = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(support::differing(mha::attention<Cpu>(q, k, v, TiledStripes{}), asked), 0u) << queries << " queries";
    EXPECT_EQ(support::differing(mha::attention<Cpu>(q, k, v, Stripes{}), asked), 0u) << queries << " queries";
  }
}

/// Late queries see the first keys, early ones see none.
struct Late {
  bool operator()(Index, Index, Index q, Index k) const { return q >= 100 && k < 10; }
  TileVisibility tile(Index, Index, Index, Index q_end, Index k_begin, Index) const {
    return q_end <= 100 || k_begin >= 10 ? TileVisibility::none : TileVisibility::partial;
  }
};

// A tile that sees no key, after one that sees some.
TEST(QueryTile, RowsThatSeeNoKeyAreZero) {
  support::Random random("late");
  Tensor<float, 4> q(1, 200, 1, 16), k(1, 200, 1, 16), v(1, 200, 1, 16), out(1, 200, 1, 16);
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  Tensor<float, 3> lse(1, 1, 200);
  mha::Workspace workspace;
  for (int round = 0; round < 2; ++round) {
    std::fill(out.begin(), out.end(), support::poison<float>());
    mha::attention_into<Cpu>(out.view(), q.view(), k.view(), v.view(), Late{}, mha::LogSumExp(lse), workspace);
    for (Index i = 0; i < 200; ++i) {
      EXPECT_EQ(std::isfinite(lse(0, 0, i)), i >= 100) << "row " << i;
      for (Index d = 0; d < 16; ++d) EXPECT_EQ(out(0, i, 0, d) == 0, i < 100) << "row " << i;
    }
  }
}

TEST(QueryTile, WeightsAreZeroWhereHiddenAndSumToOne) {
  support::Random random("weights");
  Tensor<float, 4> q(1, 7, 4, 16), k(1, 1000, 2, 16);
  random.fill(q);
  random.fill(k);
  const auto w = mha::attention_weights<Cpu>(q, k, TiledStripes{});
  for (Index h = 0; h < 4; ++h)
    for (Index i = 0; i < 7; ++i) {
      double sum = 0;
      for (Index j = 0; j < 1000; ++j) {
        EXPECT_EQ(w(0, h, i, j) == 0, !Stripes{}(0, h, 993 + i, j)) << h << ", " << i << ", " << j;
        sum += static_cast<double>(w(0, h, i, j));
      }
      EXPECT_NEAR(sum, 1, 1e-5);
    }
}

/// Only keys of every other chunk are visible to even queries: empty parts are merged from both sides.
struct Chunks {
  bool operator()(Index, Index, Index q, Index k) const { return (k / mha::detail::cpu::key_chunk + q) % 2 == 0; }
};

TEST(QueryTile, MergesChunksOfKeys) {
  support::Random random("chunks");
  const Index keys = 2 * mha::detail::cpu::key_chunk + 100;
  Tensor<double, 4> q(1, 5, 2, 8), k(1, keys, 1, 8), v(1, keys, 1, 8);
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  Tensor<double, 3> lse(1, 2, 5), expected_lse(1, 2, 5);
  const auto out = mha::attention<Cpu>(q, k, v, Chunks{}, mha::LogSumExp(lse), mha::Sink({1.f, -INFINITY}));
  const auto expected =
      mha::attention<mha::Reference>(q, k, v, Chunks{}, mha::LogSumExp(expected_lse), mha::Sink({1.f, -INFINITY}));
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out.data()[i], expected.data()[i], 1e-12);
  for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse.data()[i], expected_lse.data()[i], 1e-12);
}

// How far apart values lie changes no bits: a tile reads them where they are.
template <class T> void expect_bits_of_near_values(Index queries) {
  constexpr Index keys = 300, dim = 20, apart = 4096 / static_cast<Index>(sizeof(T));
  support::Random random("far values");
  Tensor<T, 4> q(1, queries, 1, dim), k(1, keys, 1, dim), v(1, keys, 1, dim), far(1, keys, 1, apart);
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  std::fill(far.begin(), far.end(), support::poison<T>());
  for (Index j = 0; j < keys; ++j)
    for (Index d = 0; d < dim; ++d) far(0, j, 0, d) = v(0, j, 0, d);
  auto view = std::as_const(far).view();
  view.extent[3] = dim;
  EXPECT_EQ(support::differing(mha::attention<Cpu>(q, k, view), mha::attention<Cpu>(q, k, v)), 0u)
      << queries << " queries";
}
TEST(QueryTile, ReadsValuesAPageApartAsThoseNearby) {
  for (const Index queries : {3, 9, 70}) {
    expect_bits_of_near_values<float>(queries);
    expect_bits_of_near_values<double>(queries);
    expect_bits_of_near_values<mha::half>(queries);
  }
}

// A product that underflows to −0 and then meets a hidden key of a mate's tile must not tell.
TEST(QueryTile, ZerosArePositive) {
  Tensor<float, 4> q(1, 1, 1, 16), k(1, 3, 1, 16), v(1, 3, 1, 16);
  for (auto* t : {&q, &k, &v})
    for (float& x : *t) x = 0;
  for (Index d = 0; d < 16; ++d) {
    q(0, 0, 0, d) = k(0, 0, 0, d) = 2;
    v(0, 0, 0, d) = -0.f;
    v(0, 1, 0, d) = -std::numeric_limits<float>::denorm_min();
  }
  for (const float x : mha::attention<Cpu>(q, k, v)) EXPECT_EQ(support::bits(x), 0u);
}

}  // namespace
