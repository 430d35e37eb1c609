// SPDX-License-Identifier: Apache-2.0
// What the bodies of attention on tensor cores have in common, by each of them.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <mha/backend/cuda/forward_rows.hpp>

#include "forward_checks.hpp"

namespace {

using namespace forward_checks;

/// One strip of 16 rows a warp, queries in registers, short key tiles.
struct OfWarps {
  using Small = cuda::ForwardShape<64, 64, 32, 32, 2, cuda::RowLayout::aligned>;
};
struct OfWarpgroups {
  using Small = cuda::WarpgroupShape<64, 64, 1, 64, 1>;
};

template <class Body> class ForwardRows : public testing::Test {};
using Bodies = testing::Types<OfWarps, OfWarpgroups>;
TYPED_TEST_SUITE(ForwardRows, Bodies);

TYPED_TEST(ForwardRows, TakesOddLengths) {
  using Small = typename TypeParam::Small;
  Random random("lengths");
  for (const Index queries : {1, 17, 31, 32, 65})
    for (const Index keys : {1, 15, 32, 33, 64, 97}) {
      const Sizes sizes{.queries = queries, .keys = keys, .heads = 2, .kv_heads = 2};
      const std::string name = std::to_string(queries) + " x " + std::to_string(keys);
      check<Small, bfloat16>(sizes, Full{}, random, "full " + name);
      check<Small, bfloat16>(sizes, Causal{}, random, "causal " + name);
    }
  check<Small, bfloat16>(Sizes{.queries = 3, .keys = 0}, Full{}, random, "no keys");
}

TYPED_TEST(ForwardRows, GroupsQueryHeads) {
  using Small = typename TypeParam::Small;
  Random random("groups");
  for (const auto& [heads, kv_heads] : {std::pair{6, 2}, {4, 4}, {4, 1}, {7, 1}})
    check<Small, bfloat16>(Sizes{.batch = 2, .queries = 20, .keys = 45, .heads = heads, .kv_heads = kv_heads}, Causal{},
                           random, std::to_string(heads) + " over " + std::to_string(kv_heads));
}

TYPED_TEST(ForwardRows, AppliesEveryMask) {
  using Small = typename TypeParam::Small;
  Random random("masks");
  const Sizes sizes{.batch = 2, .queries = 70, .keys = 100, .heads = 4, .kv_heads = 2};
  Problem<bfloat16> problem(sizes, random);
  check<Small>(problem, CausalTopLeft{}, "CausalTopLeft");
  check<Small>(problem, SlidingWindow{.left = 20}, "SlidingWindow");
  check<Small>(problem, SlidingWindow{.left = 3, .right = 40}, "SlidingWindow both ways");
  const std::vector<Index> lengths{37, 64}, prefixes{50, 0};
  check<Small>(problem, Padding{Borrowed<Index>(lengths)}, "Padding");
  check<Small>(problem, Prefix{Borrowed<Index>(prefixes)}, "Prefix");
  std::vector<Index> ids(200);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Index>(i % 100 / 23);
  check<Small>(problem, Document(Borrowed<Index>(ids)), "Document");
  std::vector<std::uint8_t> blocks(4 * 7 * 7);
  for (auto& x : blocks) x = random.chance(0.5);
  check<Small>(problem, BlockSparse({.block = 16, .query_blocks = 7, .key_blocks = 7}, blocks), "BlockSparse");
  const auto table = std::make_unique<bool[]>(4 * 70 * 100);
  for (int i = 0; i < 4 * 70 * 100; ++i) table[static_cast<std::size_t>(i)] = i / 100 % 7 != 0 && random.chance(0.3);
  const auto dense = view(static_cast<const bool*>(table.get()), 4, 70, 100);
  check<Small>(problem, Dense(dense), "Dense");
  check<Small>(problem, Sieve{}, "functor");
  check<Small>(problem, And{Causal{}, Sieve{}}, "And");
  check<Small>(problem, Causal{} && Padding{Borrowed<Index>(lengths)}, "And of tiles");
  check<Small>(problem, Or{SlidingWindow{.left = 9}, Padding{Borrowed<Index>(prefixes)}}, "Or");
  check<Small>(problem, !Causal{}, "Not");
  check<Small>(problem, Not{Full{}}, "nothing");
}

TYPED_TEST(ForwardRows, AppliesEveryScore) {
  using Small = typename TypeParam::Small;
  Random random("scores");
  const Sizes sizes{.batch = 2, .queries = 40, .keys = 70, .heads = 4, .kv_heads = 2};
  Problem<bfloat16> problem(sizes, random);
  check<Small>(problem, Causal{}, "SoftCap", SoftCap{.cap = 2.f});
  check<Small>(problem, Causal{}, "Alibi", Alibi{});
  std::vector<float> bias(4 * 40 * 70);
  for (auto& x : bias)
    x = random.chance(0.2) ? -std::numeric_limits<float>::infinity() : static_cast<float>(random.normal());
  const auto table = view(static_cast<const float*>(bias.data()), 4, 40, 70);
  check<Small>(problem, Full{}, "AdditiveBias", AdditiveBias(table));
  check<Small>(problem, And{Causal{}, Sieve{}}, "AdditiveBias under a mask", AdditiveBias(table));
  std::vector<float> learned(32 * 4);
  random.fill(learned);
  check<Small>(problem, Full{}, "RelativeBias", RelativeBias(learned));
  check<Small>(problem, Full{}, "functor", Far{.slope = 0.25f});
  check<Small>(problem, Causal{}, "Chain", Chain{SoftCap{.cap = 3.f}, Far{.slope = 0.5f}});
  for (auto& x : bias) x = -1e9f;
  check<Small>(problem, Causal{}, "a large finite bias is a number", AdditiveBias(table));
  for (auto& x : bias) x = -std::numeric_limits<float>::infinity();
  check<Small>(problem, Causal{}, "a bias that hides everything", AdditiveBias(table));
}

TYPED_TEST(ForwardRows, TakesAnyScale) {
  using Small = typename TypeParam::Small;
  Random random("scales");
  for (const double scale : {0.5, 0.0, -0.3, 1e-40, 3.0})
    check<Small, bfloat16>(Sizes{.queries = 40, .keys = 70, .scale = scale}, Causal{}, random,
                           "scale " + std::to_string(scale));
  check<Small, bfloat16>(Sizes{.queries = 40, .keys = 70, .scale = -0.3}, Causal{}, random, "negative before a score",
                         SoftCap{.cap = 5.f});
}

TYPED_TEST(ForwardRows, AddsSinksToDenominators) {
  using Small = typename TypeParam::Small;
  Random random("sinks");
  const float inf = std::numeric_limits<float>::infinity();
  const Sizes sizes{.queries = 40, .keys = 30, .heads = 4, .kv_heads = 2, .sink = {0.5f, -inf, 90.f, -3.f}};
  check<Small, bfloat16>(sizes, Causal{}, random, "folded");
  check<Small, bfloat16>(sizes, Causal{}, random, "with a score", SoftCap{.cap = 3.f});
}

TYPED_TEST(ForwardRows, TakesRaggedBatches) {
  using Small = typename TypeParam::Small;
  Random random("ragged");
  check<Small, bfloat16>(Sizes{.batch = 4, .queries = 70, .heads = 4, .kv_heads = 2, .q_offsets = {0, 33, 33, 40, 110}},
                         Causal{}, random, "self");
  check<Small, bfloat16>(Sizes{.batch = 3,
                               .queries = 40,
                               .heads = 2,
                               .kv_heads = 2,
                               .q_offsets = {0, 40, 45, 50},
                               .k_offsets = {0, 3, 3, 80}},
                         Full{}, random, "cross");
}

TYPED_TEST(ForwardRows, TakesKeysInShortRuns) {
  using Small = typename TypeParam::Small;
  Random random("runs");
  for (const Index length : {1, 4, 16, 128}) {
    Problem<bfloat16> problem(Sizes{.batch = 2, .queries = 40, .keys = 75, .heads = 4, .kv_heads = 2}, random);
    problem.with_call(Causal{}, NoScore{}, [&](const auto& call) {
      AttendCall<bfloat16, ShortRuns<bfloat16>, support::AnyMask, NoScore> paged{
          call.q, {call.kv, length}, call.mask, {}, call.out, call.log_sum_exp, call.shape};
      paged.kv_heads = call.kv_heads, paged.head_dim = call.head_dim, paged.value_dim = call.value_dim;
      paged.scale = call.scale;
      run<MachineOf<Small>, Small>(paged);
      expect_attended(paged, "runs of " + std::to_string(length));
    });
  }
}

TYPED_TEST(ForwardRows, TakesAnyStrides) {
  using Small = typename TypeParam::Small;
  Random random("strides");
  Sizes sizes{.batch = 2, .queries = 40, .keys = 75, .heads = 4, .kv_heads = 2};
  sizes.heads_first = true;
  check<Small, bfloat16>(sizes, Causal{}, random, "heads first");
  sizes.gap = 24;
  check<Small, bfloat16>(sizes, Causal{}, random, "rows apart");
}

TYPED_TEST(ForwardRows, KeepsPoisonHidden) {
  using Small = typename TypeParam::Small;
  Random random("poison");
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float poison : {nan, inf, -inf}) {
    Problem<bfloat16> problem(Sizes{.batch = 2, .queries = 64, .keys = 100, .heads = 4, .kv_heads = 2}, random);
    for (const Index k : {36, 50, 77, 99})  // each is hidden from the queries before it
      for (Index d = 0; d < 64; ++d) {
        problem.k.view(0, k, 1, d) = bfloat16(poison);
        if (d % 9 == 0) problem.v.view(1, k, 0, d) = bfloat16(d % 18 == 0 ? poison : -poison);
      }
    check<Small>(problem, Causal{}, "causal");
    check<Small>(problem, Sieve{}, "functor");
    check<Small>(problem, Full{}, "hidden by a score", HidesByScore{});
    const std::vector<Index> lengths{36, 36};
    check<Small>(problem, Padding{Borrowed<Index>(lengths)}, "padding hides all of it");
  }
  Problem<half> problem(Sizes{.queries = 140, .keys = 140}, random);
  for (Index d = 0; d < 64; d += 7) problem.v.view(0, 130, 0, d) = half(d % 2 == 0 ? nan : inf);
  check<Small>(problem, Causal{}, "half");
}

TYPED_TEST(ForwardRows, LeavesNaNOfVisiblePairs) {
  using Small = typename TypeParam::Small;
  Random random("visible NaN");
  Problem<bfloat16> problem(Sizes{.queries = 40, .keys = 64}, random);
  for (auto& x : {&problem.q.view(0, 3, 1, 5), &problem.v.view(0, 2, 0, 7), &problem.k.view(0, 50, 0, 0)})
    *x = bfloat16(std::numeric_limits<float>::quiet_NaN());
  check<Small>(problem, Causal{}, "causal");
  check<Small>(problem, Full{}, "full");
}

TYPED_TEST(ForwardRows, FollowsARisingMaximum) {
  using Small = typename TypeParam::Small;
  Random random("rising");
  Problem<bfloat16> problem(Sizes{.queries = 40, .keys = 200}, random);
  problem.q.fill([&](auto...) { return bfloat16(1.f + static_cast<float>(random.uniform(0, 0.1))); });
  problem.k.fill([&](Index, Index k, Index, Index) {  // logits up to 800, and as small, from tile to tile
    return bfloat16(static_cast<float>((k % 64 < 32 ? 200 - k : k - 200) * random.uniform(0.4, 0.5)));
  });
  check<Small>(problem, Full{}, "full");
  check<Small>(problem, Causal{}, "causal");
  check<Small>(problem, Full{}, "under a score", Far{.slope = 1.f});
}

TYPED_TEST(ForwardRows, KeepsOutliersInBounds) {
  using Small = typename TypeParam::Small;
  Random random("outliers");
  Problem<bfloat16> problem(Sizes{.queries = 140, .keys = 200, .heads = 2, .kv_heads = 2}, random);
  const auto outlier = [&](auto...) {
    return bfloat16(static_cast<float>(random.normal() + (random.chance(0.001) ? 10 * random.normal() : 0)));
  };
  problem.q.fill(outlier), problem.k.fill(outlier), problem.v.fill(outlier);
  check<Small>(problem, Causal{}, "outliers");
}

TYPED_TEST(ForwardRows, DependsOnNeitherBlocksNorBatch) {
  using Small = typename TypeParam::Small;
  Random random("bits");
  Problem<bfloat16> problem(Sizes{.batch = 3, .queries = 70, .keys = 90, .heads = 4, .kv_heads = 2}, random);
  problem.with_call(Causal{}, NoScore{}, [&](auto call) {
    run<MachineOf<Small>, Small>(call);
    const auto out = problem.out.memory;
    const auto lse = problem.lse;
    for (const std::uint32_t seed : {1u, 2u}) {
      support::poison_all(problem.out.memory);
      run<MachineOf<Small>, Small>(call, {support::gpu::Order::shuffled, seed});
      EXPECT_EQ(support::differing(problem.out.memory, out), 0u);
      EXPECT_EQ(support::differing(problem.lse, lse), 0u);
    }
    support::poison_all(problem.out.memory);
    call.shape.batch = 1;
    call.log_sum_exp.data = nullptr;
    run<MachineOf<Small>, Small>(call);
    for (Index l = 0; l < 70; ++l)
      for (Index h = 0; h < 4; ++h)
        for (Index d = 0; d < 64; ++d) {
          const auto at = static_cast<std::size_t>(problem.out.view.pointer(0, l, h, d) - problem.out.memory.data());
          ASSERT_EQ(problem.out.memory[at].bits, out[at].bits);
        }
  });
}

TYPED_TEST(ForwardRows, WritesNothingBesideItsRows) {
  Random random("guard");
  Problem<bfloat16> problem(
      Sizes{.batch = 2, .queries = 37, .keys = 20, .heads = 2, .kv_heads = 2, .dim = 40, .gap = 16}, random);
  check_guard_bands<typename TypeParam::Small>(problem);
}

}  // namespace
