// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/backward.hpp>
#include <mha/backend/cuda/gradient_params.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/score/softcap.hpp>

#include "gpu_model/launch.hpp"

namespace {

using mha::GradientTo;
using mha::Index;
using mha::cuda::GradientParams;
using mha::cuda::GradientRows;
using mha::cuda::GradientWalk;

template <class M> using CallOf = mha::AttendCall<float, mha::ContiguousKv<float>, M, mha::NoScore>;

template <class M>
CallOf<M> call_of(const M& mask, Index batch, Index heads, Index kv_heads, Index queries, Index keys) {
  CallOf<M> call{{}, {}, mask, {}, {}, {}, {batch, heads, queries, keys, keys - queries}};
  call.kv_heads = kv_heads;
  call.kv.key.extent[1] = keys;
  return call;
}

template <class Call> GradientParams<Call> params_of(const Call& call) {
  return {call, {}, {}, {}, nullptr, nullptr, nullptr, {}, {}, {}, nullptr};
}

/// All (b, h, query, key) that the blocks of a walk come to, each seen pair once. `heads_met`: query heads that a block
/// of keys meets at least, if there are as many.
template <bool ByQuery, class M> void expect_to_meet_all(const CallOf<M>& call, Index heads_met = 99) {
  constexpr Index own = 4, others = 8;
  using Walk = GradientWalk<ByQuery, own, others, CallOf<M>>;
  GradientParams<CallOf<M>> params = params_of(call);
  params.shares.group = call.shape.heads / call.kv_heads;
  params.shares.least_queries = heads_met * call.shape.queries;
  params.shares.most = params.shares.of(call.shape.queries);
  const Index rows = ByQuery ? call.shape.queries : call.shape.keys, tiles = (rows + own - 1) / own;
  const Index heads = ByQuery ? call.shape.heads : call.kv_heads * params.shares.most;
  params.blocks = {tiles, heads, heads * call.shape.batch, 2};
  std::set<std::tuple<Index, Index, Index, Index>> met;
  for (Index block = 0; block < tiles * heads * call.shape.batch; ++block) {
    const Walk walk(params, block);
    EXPECT_EQ(walk.place, params.blocks[block].h);
    Index last_head = -1;
    for (auto step = walk.begin(); step; step = walk.after(step)) {
      EXPECT_GE(step.h, last_head) << "heads ascend";
      last_head = step.h;
      EXPECT_EQ(call.kv_head(step.h), walk.g);
      for (Index r = 0; r < walk.count; ++r)
        for (Index c = 0; c < others; ++c) {
          const Index other = step.tile.index * others + c;
          if (other >= walk.others) {
            EXPECT_TRUE(step.tile.partial);
            continue;
          }
          const Index q = Walk::query(walk.first + r, other), k = Walk::key(walk.first + r, other);
          const bool seen = call.mask(walk.b, step.h, call.position(walk.b, q), k);
          EXPECT_TRUE(seen ? met.insert({walk.b, step.h, q, k}).second : step.tile.partial);
        }
    }
  }
  for (Index b = 0; b < call.shape.batch; ++b)
    for (Index h = 0; h < call.shape.heads; ++h)
      for (Index q = 0; q < call.shape.queries; ++q)
        for (Index k = 0; k < call.shape.keys; ++k)
          EXPECT_EQ(met.count({b, h, q, k}), call.mask(b, h, call.position(b, q), k) ? 1u : 0u);
}

TEST(GradientWalk, MeetsEverySeenPairOnce) {
  for (const Index queries : {1, 9, 21})
    for (const Index keys : {1, 8, 19}) {
      expect_to_meet_all<true>(call_of(mha::Causal{}, 2, 4, 2, queries, keys));
      expect_to_meet_all<false>(call_of(mha::Causal{}, 2, 4, 2, queries, keys));
      expect_to_meet_all<false>(call_of(mha::SlidingWindow{3, 2}, 1, 3, 1, queries, keys));
      expect_to_meet_all<true>(call_of(mha::Full{}, 1, 2, 2, queries, keys));
      for (const Index heads_met : {1, 2, 3}) {
        expect_to_meet_all<false>(call_of(mha::Causal{}, 2, 10, 2, queries, keys), heads_met);
        expect_to_meet_all<false>(call_of(mha::SlidingWindow{3, 2}, 1, 3, 3, queries, keys), heads_met);
      }
    }
}

TEST(GradientWalk, BeginsWithTheRowsThatMeetMostUnderACausalMask) {
  using Call = CallOf<mha::Causal>;
  const Call call = call_of(mha::Causal{}, 1, 2, 1, 32, 32);
  GradientParams<Call> p = params_of(call);
  p.shares = {2, 32, 2};
  p.blocks = {8, 2, 2, 2};
  EXPECT_EQ((GradientWalk<true, 4, 8, Call>(p, 0).first), 28);
  EXPECT_EQ((GradientWalk<false, 4, 8, Call>(p, 0).first), 0);
  EXPECT_EQ((GradientWalk<false, 4, 8, Call>(p, 15).first), 28);
  p.blocks.row_tiles = 4;
  p.first_row = 16;  // the second half of the keys
  EXPECT_EQ((GradientWalk<false, 4, 8, Call>(p, 0).first), 16);
  EXPECT_EQ((GradientWalk<false, 4, 8, Call>(p, 7).first), 28);
}

/// A batch of two whose second sequence has fewer queries, and so fewer shares.
TEST(GradientWalk, HasNoWorkForSharesThatAShortSequenceLacks) {
  using Call = CallOf<mha::Full>;
  const std::vector<Index> offsets{0, 12, 16};
  Call call = call_of(mha::Full{}, 2, 4, 1, 12, 4);
  call.q_offsets = offsets.data();
  GradientParams<Call> p = params_of(call);
  p.shares = {4, 12, 4};
  p.blocks = {1, 4, 8, 1};
  std::vector<int> heads_met;
  for (Index block = 0; block < 8; ++block) {
    const GradientWalk<false, 4, 16, Call> walk(p, block);
    int heads = 0;
    if (walk.count > 0)
      for (auto step = walk.begin(); step; step = walk.after(step)) ++heads;
    heads_met.push_back(heads);
  }
  EXPECT_EQ(heads_met, (std::vector<int>{1, 1, 1, 1, 4, 0, 0, 0}));
}

TEST(HeadShares, DependOnTheSequenceAlone) {
  const mha::cuda::HeadShares shares{8, 2048};
  EXPECT_EQ(shares.of(0), 1);
  EXPECT_EQ(shares.of(255), 1);
  EXPECT_EQ(shares.of(256), 1);
  EXPECT_EQ(shares.of(512), 2);
  EXPECT_EQ(shares.of(800), 2) << "of four heads: a share of two and one of three would be of 1600 and 2400 queries";
  EXPECT_EQ(shares.of(1024), 4);
  EXPECT_EQ(shares.of(2047), 4);
  EXPECT_EQ(shares.of(2048), 8);
  EXPECT_EQ(shares.of(1 << 30), 8);
  EXPECT_EQ((mha::cuda::HeadShares{1, 2048}.of(1 << 30)), 1);
  EXPECT_EQ((mha::cuda::HeadShares{0, 2048}.of(1 << 30)), 1) << "without heads";
  Index before = 1;
  for (Index queries = 1; queries < 3000; ++queries) {
    const mha::cuda::HeadShares odd{7, 2048};
    const Index n = odd.of(queries);
    EXPECT_GE(n, before) << "a longer sequence has no fewer: the longest one has the most";
    before = n;
    EXPECT_EQ(odd.first_head(0, n), 0);
    EXPECT_EQ(odd.first_head(n, n), 7);
    for (Index share = 0; n > 1 && share < n; ++share)
      EXPECT_GE((odd.first_head(share + 1, n) - odd.first_head(share, n)) * queries, 2048) << queries;
  }
}

TEST(GradientRows, WritesOrAddsInEitherPrecision) {
  mha::Tensor<mha::half, 4> narrow(1, 3, 2, 4);
  mha::Tensor<float, 4> wide(1, 3, 2, 4);
  narrow(0, 2, 1, 3) = mha::half(1.f);
  const std::vector<Index> offsets{0, 1, 3};
  support::gpu::launch({1, 1, 1}, 32, 0, [&](support::gpu::HostMachine& m) {
    if (m.thread() != 0) return;
    const GradientTo<mha::half> added = mha::add_to(narrow), wider = wide;
    const GradientRows<mha::half> sum(added, nullptr), to(wider, offsets.data());
    sum.put(m, sum.row(0, 2, 1), 3, 2.f);
    to.put(m, to.row(1, 1, 1), 2, 1.0009765625f);
  });
  EXPECT_EQ(float(narrow(0, 2, 1, 3)), 3.f);
  EXPECT_EQ(wide(0, 2, 1, 2), 1.0009765625f);
  EXPECT_EQ((GradientRows<float>(GradientTo<float>{}, nullptr).data), nullptr);
}

TEST(LiftedScore, TellsTheLogitAndItsDerivative) {
  mha::AttendCall<double, mha::ContiguousKv<double>, mha::Full, mha::SoftCap> call{{}, {}, {}, mha::SoftCap{2.f},
                                                                                   {}, {}, {}};
  const auto t = mha::cuda::LiftedScore(call, 0, 0)(0.7, 1, 2);
  EXPECT_NEAR(t.value, 2 * std::tanh(0.35), 1e-15);
  EXPECT_NEAR(t.slope, 1 - std::tanh(0.35) * std::tanh(0.35), 1e-15);
  const CallOf<mha::Full> plain{};
  EXPECT_EQ(mha::cuda::LiftedScore(plain, 0, 0)(0.7f, 1, 2).value, 0.7f);
  EXPECT_EQ(mha::cuda::LiftedScore(plain, 0, 0)(0.7f, 1, 2).slope, 1.f);
}

}  // namespace
