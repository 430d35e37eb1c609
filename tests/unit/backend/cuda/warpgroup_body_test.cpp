// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include <mha/backend/cuda/warpgroup_body.hpp>

#include "forward_checks.hpp"

namespace {

using namespace forward_checks;
using cuda::WarpgroupShape;
using support::gpu::Flaw;

using Small = WarpgroupShape<64, 64, 1, 64, 1>;
using Two = WarpgroupShape<64, 64, 2, 64, 1>;
/// Logits of a tile need 64 bits to say which are hidden.
using Long = WarpgroupShape<64, 64, 1, 128, 1>;

TEST(WarpgroupBody, TakesEveryShippedShape) {
  Random random("shapes");
  for (int i = 0; i < cuda::WarpgroupShapes::size; ++i)
    with_shape(cuda::WarpgroupShapes{}, i, [&](auto shape) {
      using Shape = decltype(shape);
      check_head_sizes<Shape, bfloat16>(Shape::head_dim, Shape::value_dim, random);
    });
}

TEST(WarpgroupBody, PadsHeadSizesBetween) {
  Random random("padding");
  check_head_sizes<Small, bfloat16>(40, 40, random);
  check_head_sizes<Two, half>(48, 64, random);
  check_head_sizes<WarpgroupShape<128, 128, 1, 64, 2>, bfloat16>(72, 120, random);
}

TEST(WarpgroupBody, TakesAnyNumberOfTiles) {
  Random random("tiles");
  for (const Index keys : {1, 63, 64, 65, 128, 129, 300}) {
    const Sizes sizes{.queries = 150, .keys = keys, .heads = 2, .kv_heads = 1};
    check<Two, bfloat16>(sizes, Full{}, random, "full " + std::to_string(keys));
    check<Two, bfloat16>(sizes, Causal{}, random, "causal " + std::to_string(keys));
    check<Long, half>(sizes, Causal{}, random, "long causal " + std::to_string(keys));
  }
}

TEST(WarpgroupBody, TakesRowsThatSeeNothing) {
  Random random("nothing");
  Problem<bfloat16> problem(Sizes{.queries = 200, .keys = 200, .heads = 2, .kv_heads = 1}, random);
  check<Two>(problem, SlidingWindow{.left = 10}, "tiles that a warp or a warpgroup sees nothing of");
  check<Two>(problem, CausalTopLeft{}, "top left");
  check<Two>(problem, Not{Full{}}, "nothing at all");
  check<Two, bfloat16>(Sizes{.queries = 200, .keys = 60, .origin = -100}, Causal{}, random, "queries before all keys");
}

TEST(WarpgroupBody, KeepsPoisonOfAnyTileHidden) {
  Random random("poison");
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Index k : {3, 100, 190}) {
    Problem<bfloat16> problem(Sizes{.batch = 2, .queries = 200, .keys = 200, .heads = 2, .kv_heads = 1}, random);
    for (Index d = 0; d < 64; ++d) {
      problem.k.view(0, k, 0, d) = bfloat16(nan);
      problem.v.view(1, k, 0, d) = bfloat16(d % 3 == 0 ? nan : d % 3 == 1 ? inf : -inf);
    }
    const std::string name = std::to_string(k);
    check<Two>(problem, Causal{}, "causal " + name);
    check<Long>(problem, Causal{}, "long causal " + name);
    check<Two>(problem, Sieve{}, "functor " + name);
    check<Long>(problem, Full{}, "hidden by a score " + name, HidesByScore{});
  }
}

TEST(WarpgroupBody, EveryFlawIsSeen) {
  const auto see = [](auto shape, const char* name) {
    check_flaws<decltype(shape)>(name, {{Flaw::no_sync},
                                        {Flaw::no_sync_any},
                                        {Flaw::no_commit},
                                        {Flaw::no_wait},
                                        {Flaw::shorter_wait},
                                        {Flaw::no_zero_fill},
                                        {Flaw::swapped_a},
                                        {Flaw::swapped_b},
                                        {Flaw::swapped_d},
                                        {Flaw::no_transpose},
                                        {Flaw::other_lane},
                                        {Flaw::no_shuffle},
                                        {Flaw::swapped_pack},
                                        {Flaw::no_fence_proxy},
                                        {Flaw::no_wgmma_fence},
                                        {Flaw::no_wgmma_commit},
                                        {Flaw::no_wgmma_wait},
                                        {Flaw::shorter_wgmma_wait}});
  };
  see(Small{}, "one warpgroup");
  see(Two{}, "two warpgroups");
}

}  // namespace
