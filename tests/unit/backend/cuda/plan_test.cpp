// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/plan.hpp>

namespace {

using namespace mha;
using cuda::CallFacts;
using cuda::DeviceFacts;
using cuda::forward_plan;
using cuda::ForwardPlan;
using cuda::RowLayout;

CallFacts call(Index dim, Index value_dim, RowLayout layout = RowLayout::aligned) {
  return {{2, 8, 1000, 1000}, 2, dim, value_dim, layout};
}
struct Held {
  int dim = 0, value_dim = 0;
  RowLayout layout = RowLayout::any;
};
Held held(const ForwardPlan& plan) {
  Held held;
  with_shape(cuda::ForwardShapes{}, plan.shape, [&](auto shape) {
    using Shape = decltype(shape);
    held = {Shape::head_dim, Shape::value_dim, Shape::layout};
    EXPECT_EQ(plan.threads, Shape::threads);
    EXPECT_EQ(plan.shared_bytes, Shape::shared_bytes);
    EXPECT_EQ(plan.blocks.row_tiles, (1000 + Shape::rows - 1) / Shape::rows);
  });
  return held;
}

TEST(ForwardPlan, HoldsTheHeadSizesInTheLeastShape) {
  for (const auto& [dim, value_dim, padded, padded_value] : std::vector<std::array<Index, 4>>{{8, 8, 32, 32},
                                                                                              {40, 40, 64, 64},
                                                                                              {64, 64, 64, 64},
                                                                                              {72, 8, 96, 96},
                                                                                              {80, 128, 128, 128},
                                                                                              {128, 128, 128, 128},
                                                                                              {192, 128, 192, 128},
                                                                                              {192, 192, 192, 192},
                                                                                              {128, 192, 192, 192},
                                                                                              {256, 64, 256, 256}}) {
    const Held shape = held(forward_plan(call(dim, value_dim), {}));
    EXPECT_EQ(shape.dim, padded) << dim;
    EXPECT_EQ(shape.value_dim, padded_value) << dim;
    EXPECT_EQ(shape.layout, RowLayout::aligned);
  }
  EXPECT_EQ(held(forward_plan(call(32, 32, RowLayout::any), {})).layout, RowLayout::any);
  EXPECT_EQ(held(forward_plan(call(200, 7, RowLayout::any), {})).dim, 256);
  EXPECT_FALSE(forward_plan(call(264, 64), {}));
  EXPECT_FALSE(forward_plan(call(64, 257, RowLayout::any), {}));
}

TEST(ForwardPlan, FitsTheDevice) {
  for (Index dim = 8; dim <= 256; dim += 8)
    for (const cuda::Shared bytes : {99 * 1024, 163 * 1024, 227 * 1024}) {
      const ForwardPlan plan = forward_plan(call(dim, dim), {.shared_bytes = bytes});
      ASSERT_TRUE(plan) << dim;
      EXPECT_LE(plan.shared_bytes, bytes);
    }
  EXPECT_EQ(held(forward_plan(call(256, 256), {.shared_bytes = 99 * 1024})).layout, RowLayout::any);
}

TEST(ForwardPlan, TakesWarpgroupsWhereTheyAre) {
  const DeviceFacts hopper{.warpgroups = true};
  for (const auto& [dim, value_dim, padded, padded_value] : std::vector<std::array<Index, 4>>{{40, 8, 64, 64},
                                                                                              {8, 40, 64, 64},
                                                                                              {72, 64, 128, 128},
                                                                                              {136, 128, 192, 128},
                                                                                              {192, 192, 256, 256},
                                                                                              {256, 256, 256, 256}}) {
    const ForwardPlan plan = forward_plan(call(dim, value_dim), hopper);
    ASSERT_TRUE(plan.warpgroups) << dim;
    with_forward_shape(plan, [&, d = padded, v = padded_value](auto shape) {
      using Shape = decltype(shape);
      EXPECT_EQ(Shape::head_dim, d);
      EXPECT_EQ(Shape::value_dim, v);
      EXPECT_EQ(plan.threads, Shape::threads);
      EXPECT_EQ(plan.shared_bytes, Shape::shared_bytes);
      EXPECT_EQ(plan.grid, 16 * ((1000 + Shape::rows - 1) / Shape::rows));
    });
  }
  EXPECT_FALSE(forward_plan(call(32, 32), hopper).warpgroups) << "half a panel";
  EXPECT_FALSE(forward_plan(call(64, 64, RowLayout::any), hopper).warpgroups);
  EXPECT_FALSE(forward_plan(call(256, 256), {.shared_bytes = 163 * 1024, .warpgroups = true}).warpgroups);
  EXPECT_FALSE(forward_plan(call(264, 64), hopper));
}

TEST(ForwardPlan, HasOneBlockPerRowTileAndHead) {
  const ForwardPlan plan = forward_plan(call(64, 64), {});
  EXPECT_EQ(plan.grid, 8 * 2 * 8);
  EXPECT_EQ(plan.blocks.all, 16);
  EXPECT_EQ(plan.blocks.heads, 8);
  EXPECT_EQ(plan.blocks.together, 16);
  CallFacts large = call(64, 64);
  large.shape.keys = 1 << 16;  // 16 MiB a head
  EXPECT_EQ(forward_plan(large, {}).blocks.together, 4);
  large.shape.batch = 1 << 20;
  large.shape.queries = 1 << 20;
  EXPECT_THROW(forward_plan(large, {}), ShapeError);
}

TEST(Facts, TellAlignedRowsFromOthers) {
  std::vector<bfloat16> memory(4096);
  const auto layout = [&](std::ptrdiff_t shift, Index dim, std::ptrdiff_t row, std::ptrdiff_t along) {
    AttendCall<bfloat16, ContiguousKv<bfloat16>, Full, NoScore> c{};
    const TensorView<bfloat16, 4> v{memory.data() + shift, {2, 3, 2, dim}, {12 * row, 2 * row, row, along}};
    c.q = v, c.kv = {v, v}, c.out = v;
    c.shape = {2, 2, 3, 3}, c.kv_heads = 2, c.head_dim = c.value_dim = dim;
    return cuda::facts(c).layout;
  };
  EXPECT_EQ(layout(0, 64, 64, 1), RowLayout::aligned);
  EXPECT_EQ(layout(8, 40, 48, 1), RowLayout::aligned);
  EXPECT_EQ(layout(1, 64, 64, 1), RowLayout::any);
  EXPECT_EQ(layout(0, 36, 40, 1), RowLayout::any);
  EXPECT_EQ(layout(0, 64, 68, 1), RowLayout::any);
  EXPECT_EQ(layout(0, 32, 64, 2), RowLayout::any);
  EXPECT_EQ(layout(4, 64, 64, 1), RowLayout::any) << "eight bytes behind a multiple of 16";
}

TEST(Facts, AskEveryTensorOfACall) {
  alignas(16) static bfloat16 memory[512];
  for (int n = 0; n < 5; ++n) {  // one of them begins between multiples of 16 bytes, or none
    const auto view = [&](int tensor) {
      return TensorView<bfloat16, 4>{memory + (tensor == n ? 1 : 0), {1, 3, 2, 8}, {1, 16, 8, 1}};
    };
    AttendCall<bfloat16, ContiguousKv<bfloat16>, Full, NoScore> c{};
    c.q = view(0), c.kv = {view(1), view(2)}, c.out = view(3);
    c.shape = {1, 2, 3, 3}, c.kv_heads = 2, c.head_dim = c.value_dim = 8;
    EXPECT_EQ(cuda::facts(c).layout, n == 4 ? RowLayout::aligned : RowLayout::any) << n;
  }
}

}  // namespace
