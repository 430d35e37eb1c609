// SPDX-License-Identifier: Apache-2.0

#include <mha/backend/cuda/forward_body.hpp>

#include "forward_checks.hpp"

namespace {

using namespace forward_checks;
using cuda::ForwardShape;
using cuda::RowLayout;
using support::gpu::Flaw;

using Shape64 = ForwardShape<64, 64, 128, 64, 4, RowLayout::aligned>;
using Any64 = ForwardShape<64, 64, 128, 64, 4, RowLayout::any>;
/// The shape for small tests: one strip of 16 rows a warp, queries in registers, short key tiles.
using Small = ForwardShape<64, 64, 32, 32, 2, RowLayout::aligned>;

TEST(ForwardBody, TakesEveryShippedShape) {
  Random random("shapes");
  for (int i = 0; i < cuda::ForwardShapes::size; ++i)
    with_shape(cuda::ForwardShapes{}, i, [&](auto shape) {
      using Shape = decltype(shape);
      const bool any = Shape::layout == RowLayout::any;
      check_head_sizes<Shape, bfloat16>(Shape::head_dim - (any ? 3 : 0), Shape::value_dim - (any ? 5 : 0), random);
    });
}

TEST(ForwardBody, PadsHeadSizesBetween) {
  Random random("padding");
  check_head_sizes<Shape64, bfloat16>(40, 40, random);
  check_head_sizes<Shape64, half>(48, 64, random);
  check_head_sizes<ForwardShape<96, 96, 128, 32, 4, RowLayout::aligned>, bfloat16>(72, 80, random);
  check_head_sizes<Any64, half>(37, 41, random);
  check_head_sizes<Any64, half>(1, 1, random);
}

TEST(ForwardBody, TakesRowsAskew) {
  Random random("strides");
  Sizes sizes{.batch = 2, .queries = 140, .keys = 75, .heads = 4, .kv_heads = 2, .shift = 1};
  check<Any64, half>(sizes, Causal{}, random, "a base on two bytes");
  sizes.gap = 3;
  check<Any64, half>(sizes, Causal{}, random, "odd rows");
  sizes.spread = 2;
  check<Any64, half>(sizes, Causal{}, random, "apart along D");
}

TEST(ForwardBody, WritesNothingBesideRowsAskew) {
  Random random("guard");
  Problem<bfloat16> problem(
      Sizes{.batch = 2, .queries = 37, .keys = 20, .heads = 2, .kv_heads = 2, .dim = 40, .gap = 3}, random);
  check_guard_bands<Any64>(problem);
}

TEST(ForwardBody, EveryFlawIsSeen) {
  // The first barrier of a warp, that of the block without poison: those between products over visible pairs are for
  // the compiler alone. Other places of keys and values alone: the order of queries and keys alike is nothing to a dot
  // product.
  const auto see = [](auto shape, const char* name) {
    check_flaws<decltype(shape)>(name, {{Flaw::no_sync},
                                        {Flaw::no_sync_warp, 0},
                                        {Flaw::no_commit},
                                        {Flaw::no_wait},
                                        {Flaw::shorter_wait},
                                        {Flaw::no_zero_fill},
                                        {Flaw::swapped_a},
                                        {Flaw::swapped_b},
                                        {Flaw::swapped_d},
                                        {Flaw::no_transpose},
                                        {Flaw::transpose},
                                        {Flaw::other_place, -1, decltype(shape)::head_bytes},
                                        {Flaw::other_lane},
                                        {Flaw::no_shuffle},
                                        {Flaw::swapped_pack},
                                        {Flaw::vote_false},
                                        {Flaw::lane_absent}});
  };
  see(Small{}, "queries in registers");
  see(ForwardShape<64, 64, 64, 32, 2, RowLayout::aligned>{}, "queries in shared memory");
}

}  // namespace
