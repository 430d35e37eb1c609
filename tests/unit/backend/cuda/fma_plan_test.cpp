// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include <gtest/gtest.h>

#include <mha/backend/cuda/fma_plan.hpp>

#include "random.hpp"

namespace {

using namespace mha::cuda;
using mha::Index;

CallFacts sizes(Index batch, Index queries, Index keys, Index heads, Index kv_heads, Index dim, Index value_dim) {
  return {{batch, heads, queries, keys, keys - queries}, kv_heads, dim, value_dim, RowLayout::aligned};
}

template <class T> void check_few_plans() {
  support::Random random("FmaPlan.Few");
  for (int n = 0; n < 500; ++n) {
    const Index kv_heads = 1 + random.below(8), group = 1 + random.below(12), queries = 1 + random.below(12);
    const CallFacts call = sizes(1 + random.below(40), queries, random.below(100000), kv_heads * group, kv_heads,
                                 1 + random.below(300), 1 + random.below(300));
    const DeviceFacts device{1 + random.below(150), (48 + random.below(180)) * 1024};
    const FewPlan plan = few_plan<T>(call, device);
    if (!plan) {
      const bool small = std::max(call.head_dim, call.value_dim) <= 256 && queries <= 8;
      EXPECT_TRUE(!small || device.shared_bytes < 200 * 1024);
      continue;
    }
    with_shape(FewShapes<T>{}, plan.shape, [&](auto shape) {
      using Shape = decltype(shape);
      EXPECT_GE(Shape::width, std::max(call.head_dim, call.value_dim));
      EXPECT_GE(plan.passes * Shape::rows, group * queries);
      EXPECT_LT((plan.passes - 1) * Shape::rows, group * queries);
      EXPECT_EQ(plan.shared_bytes, Shape::bytes(plan.splits));
      EXPECT_LE(plan.shared_bytes, device.shared_bytes);
      EXPECT_EQ(plan.threads, Shape::threads);
      const Index groups = call.shape.batch * kv_heads * plan.passes;
      EXPECT_EQ(plan.grid, groups * plan.splits);
      if (plan.splits == 1) {
        EXPECT_EQ(plan.parts, 0);
        EXPECT_EQ(plan.counters, 0);
      } else {
        EXPECT_LE(plan.grid, 2 * device.multiprocessors);  // one wave
        EXPECT_EQ(plan.counters, groups);
        EXPECT_EQ(plan.parts, std::ptrdiff_t{plan.grid} * Shape::rows * (Shape::width + 2));
        EXPECT_GE(call.shape.keys, plan.splits * 2 * Shape::warps * Shape::keys - Shape::keys + 1);
      }
    });
  }
}

TEST(FmaPlan, FewQueriesFitTheDevice) {
  check_few_plans<mha::bfloat16>();
  check_few_plans<mha::half>();
  check_few_plans<float>();
  check_few_plans<double>();
}

TEST(FmaPlan, DecodingFillsTheDevice) {
  const DeviceFacts device;
  EXPECT_EQ(few_plan<mha::bfloat16>(sizes(1, 1, 32768, 64, 8, 128, 128), device).splits, 33);
  EXPECT_EQ(few_plan<mha::bfloat16>(sizes(128, 1, 32768, 64, 8, 128, 128), device).splits, 1);
  EXPECT_EQ(few_plan<mha::bfloat16>(sizes(1, 1, 100, 64, 8, 128, 128), device).splits, 1);
}

// Chunks are as many as a device of so many multiprocessors asks for, however little memory its blocks have.
template <class T> void check_split_plans() {
  int plans = 0;
  for (Index bytes = 4096; bytes <= 232448; bytes += 4096)
    for (const Index dim : {64, 128, 256}) {
      const FewPlan plan = few_plan<T>(sizes(1, 1, 1 << 20, 1, 1, dim, dim), {1000, bytes});
      EXPECT_LE(plan.shared_bytes, bytes) << dim;
      EXPECT_TRUE(!plan || plan.splits == SplitLimits{}.most_chunks) << dim;
      plans += plan ? 1 : 0;
    }
  EXPECT_GT(plans, 50);
}
TEST(FmaPlan, TheMostChunksFitTheDevice) {
  check_split_plans<mha::bfloat16>();
  check_split_plans<float>();
  check_split_plans<double>();
}

TEST(FmaPlan, ACallWithoutColumnsOfValuesHasBlocksForItsLogSumExp) {
  const FmaPlan plan = fma_plan<float>(sizes(2, 5, 7, 3, 3, 8, 0), {});
  EXPECT_EQ(plan.value_parts, 1);
  EXPECT_EQ(plan.grid, 6);
}

// Of a ragged call: the sequences of at most eight queries, whatever the fewest are, if others have more.
TEST(FmaPlan, SequencesOfFewQueriesHaveALaunchBesideTheOthers) {
  const auto beside = [](Index fewest, Index most) {
    CallFacts call = sizes(4, most, 1000, 8, 2, 64, 64);
    call.shape.fewest_queries = fewest;
    const FewPlan plan = few_plan_beside<float>(call, {});
    return plan ? plan.most : 0;
  };
  for (const Index fewest : {1, 3, 7, 8}) EXPECT_EQ(beside(fewest, 9), 8) << fewest;
  EXPECT_EQ(beside(3, 1000), 8);
  EXPECT_EQ(beside(9, 1000), 0);
  EXPECT_EQ(beside(0, 1000), 0) << "not ragged";
  EXPECT_EQ(beside(3, 8), 0) << "they have the launch of the whole call";
  EXPECT_EQ(few_plan<float>(sizes(4, 3, 1000, 8, 2, 64, 64), {}).most, 3);
}

TEST(FmaPlan, ManyQueriesAndWideHeadsAreForOtherBodies) {
  const DeviceFacts device;
  EXPECT_TRUE(few_plan<float>(sizes(1, 8, 1000, 64, 8, 64, 64), device));
  EXPECT_FALSE(few_plan<float>(sizes(1, 17, 1000, 64, 8, 64, 64), device));
  EXPECT_TRUE(few_plan<float>(sizes(1, 16, 1000, 8, 8, 64, 64), device));
  EXPECT_FALSE(few_plan<float>(sizes(1, 1, 1000, 8, 8, 257, 64), device));
  EXPECT_FALSE(few_plan<mha::bfloat16>(sizes(1, 1, 1000, 8, 8, 64, 300), device));
}

template <class T> void check_fma_plans() {
  support::Random random("FmaPlan.Fma");
  for (int n = 0; n < 500; ++n) {
    const CallFacts call = sizes(1 + random.below(9), 1 + random.below(500), random.below(500), 6, 3,
                                 1 + random.below(1000), 1 + random.below(1000));
    const DeviceFacts device{1 + random.below(150), (99 + random.below(128)) * 1024};
    const FmaPlan plan = fma_plan<T>(call, device);
    ASSERT_TRUE(plan);
    with_shape(FmaShapes<T>{}, plan.shape, [&](auto shape) {
      using Shape = decltype(shape);
      EXPECT_GE(plan.value_parts * Shape::values, call.value_dim);
      EXPECT_LT((plan.value_parts - 1) * Shape::values, call.value_dim);
      EXPECT_EQ(plan.shared_bytes, Shape::bytes(call.head_dim, plan.q_stays));
      EXPECT_LE(plan.shared_bytes, device.shared_bytes);
      EXPECT_GE(plan.blocks.row_tiles * Shape::rows, call.shape.queries);
      EXPECT_LT((plan.blocks.row_tiles - 1) * Shape::rows, call.shape.queries);
      EXPECT_EQ(plan.blocks.heads, 6);
      EXPECT_EQ(plan.blocks.all, 6 * call.shape.batch);
      EXPECT_EQ(plan.blocks.together, 2) << "the heads of a group";
      EXPECT_EQ(plan.grid, plan.blocks.row_tiles * plan.value_parts * call.shape.batch * 6);
      EXPECT_EQ(plan.threads, Shape::threads);
    });
  }
}

TEST(FmaPlan, EveryCallHasAMultiplyAddPlan) {
  check_fma_plans<float>();
  check_fma_plans<double>();
  check_fma_plans<mha::bfloat16>();
}

TEST(FmaPlan, ColumnsAreSharedOutOnlyBeyondTheWidestShape) {
  const DeviceFacts device;
  EXPECT_EQ(fma_plan<float>(sizes(1, 64, 64, 1, 1, 64, 200), device).value_parts, 1);
  EXPECT_EQ(fma_plan<float>(sizes(1, 64, 64, 1, 1, 64, 300), device).value_parts, 2);
  EXPECT_EQ(fma_plan<double>(sizes(1, 64, 64, 1, 1, 64, 129), device).value_parts, 2);
  EXPECT_TRUE(fma_plan<float>(sizes(1, 64, 64, 1, 1, 256, 256), device).q_stays);
  EXPECT_FALSE(fma_plan<float>(sizes(1, 64, 64, 1, 1, 2000, 64), device).q_stays);
}

TEST(FmaPlan, QueriesOfTheWidestHeadsDoNotStay) {
  const DeviceFacts device;
  const auto check = [&](const FmaPlan& plan, Index dim) {
    ASSERT_TRUE(plan) << dim;
    EXPECT_FALSE(plan.q_stays) << dim;
    EXPECT_GT(plan.shared_bytes, 0) << dim;
    EXPECT_LE(plan.shared_bytes, device.shared_bytes) << dim;
  };
  // All queries of a block take more bytes than an int holds, in float 2^32 + 2048 at 14913088.
  for (const Index dim : {7456544, 14913088, mha::detail::longest_axis}) {
    check(fma_plan<float>(sizes(1, 64, 64, 1, 1, dim, 64), device), dim);
    check(fma_plan<double>(sizes(1, 64, 64, 1, 1, dim, 64), device), dim);
  }
}

}  // namespace
