// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/backend.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/policy/mask/positional.hpp>
#include <mha/policy/score/softcap.hpp>

#include "plain_backend.hpp"

namespace {

using Call = mha::AttendCall<float, mha::ContiguousKv<float>, mha::Full, mha::NoScore>;

/// A backend without dense products.
struct NoGemm {
  static constexpr const char* name = "NoGemm";
  using Workspace = mha::Workspace;
  mha::Support supported() const { return {}; }
  template <class C> void attend(const C&, Workspace&) const {}
  template <class T> std::string explain(const mha::AttendPlan&) const { return {}; }
};

TEST(Backend, IsModelledByEachBackend) {
  EXPECT_TRUE(mha::Backend<mha::Reference>);
  EXPECT_TRUE(mha::Backend<mha::Cpu>);
  EXPECT_TRUE(mha::Backend<mha::CpuWith<mha::Serial>>);
  EXPECT_TRUE(mha::Backend<support::PlainBackend>);
}

TEST(Backend, IsNotModelledWithoutGemm) {
  EXPECT_FALSE(mha::Backend<NoGemm>);
  EXPECT_FALSE(mha::Backend<int>);
}

TEST(AttendCall, SharesKeyHeadsAmongContiguousGroups) {
  Call call;
  call.shape.heads = 6;
  call.kv_heads = 2;
  const int expected[] = {0, 0, 0, 1, 1, 1};
  for (int h = 0; h < 6; ++h) EXPECT_EQ(call.kv_head(h), expected[h]) << h;
  call.kv_heads = 1;
  EXPECT_EQ(call.kv_head(5), 0);
  call.kv_heads = 6;
  EXPECT_EQ(call.kv_head(5), 5);
}

TEST(AttendCall, KeepsAllButItsSourceAndPoliciesWithOthers) {
  float q[4] = {}, out[4] = {}, lse[2] = {}, maximum[2] = {}, sum[2] = {}, sink[2] = {};
  const mha::Index offsets[] = {0, 1, 2};
  Call call;
  call.q = mha::view(static_cast<const float*>(q), 1, 2, 1, 2);
  call.out = mha::view(out, 1, 2, 1, 2);
  call.log_sum_exp = mha::view(lse, 1, 1, 2);
  call.shape = {2, 1, 2, 7, 4};
  call.kv_heads = 3, call.head_dim = 4, call.value_dim = 5, call.scale = 0.5f;
  call.sink = {sink, 2};
  call.q_offsets = offsets;
  call.states = {maximum, sum};
  call.dropout.seed = 9;
  mha::ContiguousKv<float> source;
  source.key.extent[1] = 7;
  const auto other = call.with(source, mha::SlidingWindow{.left = 3}, mha::SoftCap{.cap = 2.f});
  EXPECT_EQ(other.kv.keys(0), 7);
  EXPECT_EQ(other.mask.left.value, 3);
  EXPECT_EQ(other.score.cap.value, 2.f);
  EXPECT_EQ(other.q.data, q);
  EXPECT_EQ(other.out.data, out);
  EXPECT_EQ(other.log_sum_exp.data, lse);
  EXPECT_EQ(other.shape.origin[0], 4);
  EXPECT_EQ(other.kv_heads, 3);
  EXPECT_EQ(other.head_dim, 4);
  EXPECT_EQ(other.value_dim, 5);
  EXPECT_EQ(other.scale, 0.5f);
  EXPECT_EQ(other.sink.data, sink);
  EXPECT_EQ(other.q_offsets, offsets);
  EXPECT_EQ(other.states.level, maximum);
  EXPECT_EQ(other.dropout.seed, 9u);
}

TEST(AttendCall, ReachesTheRowsOfABatch) {
  float q[2 * 3 * 2 * 4] = {}, out[2 * 3 * 2 * 5] = {}, lse[2 * 2 * 3] = {};
  Call call;
  call.q = mha::view(static_cast<const float*>(q), 2, 3, 2, 4);
  call.out = mha::view(out, 2, 3, 2, 5);
  call.log_sum_exp = mha::view(lse, 2, 2, 3);
  call.kv.key.extent[1] = 7;
  call.shape = {2, 2, 3, 7, 4};
  EXPECT_EQ(call.queries(1), 3);
  EXPECT_EQ(call.keys(1), 7);
  EXPECT_EQ(call.position(1, 2), 6);
  EXPECT_EQ(call.query(1, 2, 1), q + ((1 * 3 + 2) * 2 + 1) * 4);
  EXPECT_EQ(call.output(1, 2, 1), out + ((1 * 3 + 2) * 2 + 1) * 5);
  EXPECT_EQ(&call.row_log_sum_exp(1, 1, 2), lse + (1 * 2 + 1) * 3 + 2);
}

TEST(AttendCall, ReachesTheRowsOfPackedSequences) {
  float q[9 * 2 * 4] = {}, out[9 * 2 * 5] = {}, lse[2 * 9] = {};
  const mha::Index q_offsets[] = {0, 2, 9}, k_offsets[] = {0, 5, 6}, origins[] = {3, -6};
  Call call;
  call.q = mha::view(static_cast<const float*>(q), 1, 9, 2, 4);
  call.out = mha::view(out, 1, 9, 2, 5);
  call.log_sum_exp = mha::view(lse, 1, 2, 9);
  call.shape = {2, 2, 7, 5, mha::Origins(origins)};
  call.q_offsets = q_offsets;
  call.kv.offsets = {k_offsets, 3};
  EXPECT_EQ(call.queries(0), 2);
  EXPECT_EQ(call.queries(1), 7);
  EXPECT_EQ(call.keys(0), 5);
  EXPECT_EQ(call.keys(1), 1);
  EXPECT_EQ(call.position(0, 1), 4);
  EXPECT_EQ(call.position(1, 1), -5);
  EXPECT_EQ(call.query(1, 3, 1), q + (5 * 2 + 1) * 4);
  EXPECT_EQ(call.output(1, 3, 1), out + (5 * 2 + 1) * 5);
  EXPECT_EQ(&call.row_log_sum_exp(1, 1, 3), lse + 9 + 5);
}

}  // namespace
