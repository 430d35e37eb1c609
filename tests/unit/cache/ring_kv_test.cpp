// SPDX-License-Identifier: Apache-2.0
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/cache/ring_kv.hpp>
#include <mha/policy/mask/positional.hpp>

#include "compare.hpp"
#include "kv_copies.hpp"
#include "random.hpp"
#include "scratch.hpp"

namespace {

using mha::Index;
using mha::RingKv;
using mha::Tensor;
using mha_test::message_of;

static_assert(mha::KvSource<RingKv<float>> && mha::DropsKeys<RingKv<float>>);
static_assert(std::is_trivially_copyable_v<RingKv<mha::bfloat16>>);

/// Keys and values whose first element tells the position.
struct Numbered {
  Tensor<float, 4> k, v;
  Numbered(Index batch, Index length) : k(batch, length, 2, 3), v(batch, length, 2, 2) {
    for (Index b = 0; b < batch; ++b)
      for (Index p = 0; p < length; ++p)
        for (Index g = 0; g < 2; ++g) {
          for (Index d = 0; d < 3; ++d) k(b, p, g, d) = static_cast<float>(1000 * b + 10 * p + g);
          for (Index d = 0; d < 2; ++d) v(b, p, g, d) = -k(b, p, g, 0);
        }
  }
};

TEST(RingKv, HoldsTheFirstAndTheLatestPositions) {
  const Numbered all(2, 40);
  for (const Index first : {0, 1, 4})
    for (const Index length : {0, 1, 3, 4, 8, 9, 17, 40}) {
      const Index rows = 9;
      const support::RingCopy<float> ring(all.k.view(), all.v.view(), {length, 40}, rows, first);
      const RingKv<float> kv = ring.source();
      EXPECT_EQ(kv.keys(0), length);
      Index oldest = first;
      while (oldest < length && !ring.holds(0, oldest)) ++oldest;
      EXPECT_EQ(kv.oldest(0), oldest) << first << " of " << length;
      for (Index b = 0; b < 2; ++b)
        for (Index p = 0; p < kv.keys(b); ++p) {
          Index expected = p;
          while (expected < kv.keys(b) && !ring.holds(b, expected)) ++expected;
          ASSERT_EQ(kv.held(b, p), expected) << first << " of " << length << ", position " << p;
          if (expected != p) continue;
          Index end = p;
          while (end < kv.keys(b) && ring.holds(b, end)) ++end;
          EXPECT_EQ(mha::detail::held_end(kv, b, p, kv.keys(b)), end) << first << " of " << length << " at " << p;
          for (Index g = 0; g < 2; ++g) {
            const auto run = kv.run(b, g, p, kv.keys(b));
            ASSERT_GE(run.count, 1);
            ASSERT_LE(run.count, end - p);
            for (Index i = 0; i < run.count; ++i) {
              EXPECT_EQ(run.key[i * run.key_stride], all.k(b, p + i, g, 0));
              EXPECT_EQ(run.value[i * run.value_stride + 1], all.v(b, p + i, g, 1));
            }
          }
        }
    }
}

// The weights of a call over a ring are those over all positions, where a mask hides the dropped ones.
template <class B> void expect_weights() {
  SCOPED_TRACE(B::name);
  constexpr Index batch = 2, length = 23, rows = 9, first = 2;
  support::Random random("weights over a ring");
  Tensor<float, 4> q(batch, 3, 4, 5), k(batch, length, 2, 5), v(batch, length, 2, 3);
  random.fill(q);
  random.fill(k);
  random.fill(v);
  const support::RingCopy<float> ring(k.view(), v.view(), {length, 6}, rows, first);
  const auto seen = [&](Index b, Index, Index, Index p) { return ring.holds(b, p); };
  const Tensor<float, 4> w = mha::attention_weights<B>(q, ring.source(), mha::Causal{}),
                         all = mha::attention_weights<B>(q,
                                                         mha::ContiguousKv<float>{k.view(), v.view(), {}, ring.lengths},
                                                         mha::mask(seen), mha::Causal{});
  ASSERT_EQ(w.extent(3), length);
  EXPECT_EQ(support::differing(w, all), 0u);
  for (Index p = 0; p < length; ++p) EXPECT_EQ(w(0, 0, 2, p) != 0, ring.holds(0, p)) << p;
}

TEST(RingKv, WeightsOfDroppedPositionsAreZero) {
  expect_weights<mha::Cpu>();
  expect_weights<mha::Reference>();
}

TEST(RingKv, HasRoomForItsRows) {
  const mha::Tensor<float, 4> rows(2, 7, 1, 1);
  const std::vector<mha::Index> lengths{1000, 3};
  const mha::KvRoom room = mha::RingKv<float>{rows.view(), rows.view(), lengths, 2}.room();
  EXPECT_EQ(room.keys, 7);
  EXPECT_EQ(room.all, 14);
}

TEST(RingKv, TakesItsScalarFromTheRows) {
  mha::Tensor<float, 4> rows(2, 7, 1, 1);
  const mha::Tensor<float, 4>& constant = rows;
  const std::vector<mha::Index> lengths{1000, 3};
  static_assert(std::is_same_v<decltype(mha::RingKv{rows.view(), rows.view(), lengths}), RingKv<float>>);
  static_assert(std::is_same_v<decltype(mha::RingKv{constant.view(), rows.view(), lengths, 2}), RingKv<float>>);
  EXPECT_EQ((mha::RingKv{rows.view(), constant.view(), lengths, 2}.first), 2);
}

TEST(RingKv, RefusesWhatDoesNotFit) {
  const Tensor<float, 4> k(2, 8, 2, 4), short_v(2, 7, 2, 4), fewer(2, 8, 1, 4);
  const std::vector<Index> two{3, 100}, three{1, 1, 1}, negative{-1, 2};
  const auto refusal = [&](const RingKv<float>& kv) { return message_of<mha::ShapeError>([&] { kv.check("call"); }); };
  EXPECT_EQ(refusal({k.view(), k.view(), two}), "");
  EXPECT_EQ(refusal({k.view(), k.view(), two, 7}), "");
  EXPECT_EQ(refusal({k.view(), k.view(), two, 8}),
            "call: RingKv keeps the first 8 positions in 8 rows, which leaves none for the ring");
  EXPECT_EQ(refusal({k.view(), k.view(), two, -1}),
            "call: RingKv keeps the first -1 positions in 8 rows, which leaves none for the ring");
  EXPECT_EQ(refusal({k.view(), short_v.view(), two}),
            "call: key has axis 1 of extent 8 but value has axis 1 of extent 7");
  EXPECT_EQ(refusal({k.view(), fewer.view(), two}), "call: key has 2 heads but value has 1");
  EXPECT_EQ(refusal({k.view(), k.view(), three}), "call: RingKv has 3 lengths for 2 sequences");
  EXPECT_EQ(refusal({k.view(), k.view(), negative}),
            "call: sequence 0 of RingKv has length -1, expected 0 to 1073741823");
  auto columns = k.view();
  columns.stride[3] = 2;
  columns.extent[3] = 2;
  EXPECT_EQ(refusal({columns, k.view(), two}), "call: RingKv's key has stride 2 along its last axis, it must be 1");
}

}  // namespace
