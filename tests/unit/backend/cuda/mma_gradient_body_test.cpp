// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/mma_gradient_body.hpp>
#include <mha/policy/mask/positional.hpp>

#include "gpu_model/backward_model.hpp"
#include "gpu_model/faulty_machine.hpp"

namespace {

using mha::bfloat16;
using mha::Index;
using support::BackwardCase;
using support::BackwardSizes;
using support::gpu::BackwardModel;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;
using support::gpu::gradient_error;
using support::gpu::Seed;

constexpr const char* body = "attention_backward (tensor cores)";

template <class T, class... Extra>
void check(const std::string& name, const BackwardSizes& sizes, const Extra&... extra) {
  EXPECT_LE(gradient_error(BackwardCase<T>(name, sizes), extra...), 1) << name;
  EXPECT_EQ(BackwardModel<>::kernels.back(), body) << name;
  EXPECT_EQ(support::SimulatedCuda::state.counted.bank_conflicts, 0) << name;
}

TEST(MmaGradientBody, TakesTailsOfQueriesAndKeys) {
  for (const auto& [queries, keys] :
       std::vector<std::pair<int, int>>{{1, 1}, {1, 64}, {17, 31}, {64, 130}, {65, 65}, {130, 1}, {130, 130}}) {
    const std::string name = "mma gradient " + std::to_string(queries) + " x " + std::to_string(keys);
    check<bfloat16>(name, {1, queries, keys, 2, 1, 64, 64}, mha::Causal{});
    check<mha::half>(name, {1, queries, keys, 1, 1, 128, 128});
  }
}

TEST(MmaGradientBody, TakesHeadSizesUpTo128) {
  for (const auto& [dim, value_dim] :
       std::vector<std::pair<int, int>>{{8, 64}, {40, 16}, {64, 120}, {72, 64}, {128, 16}, {128, 120}})
    check<bfloat16>("mma gradient of " + std::to_string(dim) + " and " + std::to_string(value_dim),
                    {1, 70, 90, 1, 1, dim, value_dim}, mha::Causal{});
}

TEST(MmaGradientBody, SumsTheHeadsOfAGroup) {
  for (const int kv_heads : {1, 2})
    check<bfloat16>("mma gradient of groups", {2, 33, 40, 4, kv_heads, 16, 24},
                    mha::SlidingWindow{.left = 20, .right = 7});
}

TEST(MmaGradientBody, ChecksOfThisFileNoticeFlaws) {
  for (const int dim : {64, 128}) {
    const BackwardCase<bfloat16> c("mma gradient flaws", {1, 70, 90, 1, 1, dim, dim - 8});
    const auto expected = c.as<double>().gradients<mha::Reference>(mha::Causal{});
    const auto right = [&] {
      return gradient_error<bfloat16>(c.gradients<BackwardModel<FaultyMachine>>(mha::Causal{}), expected) <= 1;
    };
    FaultyMachine::plant({Flaw::none});
    ASSERT_TRUE(right());
    const auto missed = support::gpu::unnoticed(right, {{Flaw::no_sync},
                                                        {Flaw::no_wait},
                                                        {Flaw::shorter_wait},
                                                        {Flaw::no_commit, 0},
                                                        {Flaw::no_commit, 1},
                                                        {Flaw::no_zero_fill},
                                                        {Flaw::swapped_a},
                                                        {Flaw::swapped_b},
                                                        {Flaw::swapped_d},
                                                        {Flaw::no_transpose},
                                                        {Flaw::transpose},
                                                        {Flaw::other_place, Seed::always, 0, 64 * 2 * dim},
                                                        {Flaw::swapped_pack},
                                                        {Flaw::lane_absent, 0}});
    EXPECT_EQ(missed, std::vector<std::string>{});
  }
}

/// What is hidden adds nothing, be it NaN: bits as without it.
TEST(MmaGradientBody, LeavesOutWhatIsHidden) {
  const bfloat16 nan(std::numeric_limits<float>::quiet_NaN()), inf(std::numeric_limits<float>::infinity());
  BackwardCase<bfloat16> c("mma gradient hidden", {1, 70, 90, 2, 1, 16, 24});
  const auto expected = c.gradients<BackwardModel<>>(mha::CausalTopLeft{});
  for (Index k = 70; k < 90; ++k) {  // no query sees these
    c.k(0, k, 0, 3) = nan;
    c.v(0, k, 0, 4) = k % 2 == 0 ? nan : inf;
  }
  const auto found = c.gradients<BackwardModel<>>(mha::CausalTopLeft{});
  EXPECT_EQ(support::differing(found.query, expected.query), 0u);
  EXPECT_EQ(support::differing(found.key, expected.key), 0u);
  EXPECT_EQ(support::differing(found.value, expected.value), 0u);

  BackwardCase<bfloat16> empty("mma gradient empty", {1, 90, 40, 2, 1, 16, 24});
  const auto before = empty.gradients<BackwardModel<>>(mha::Causal{});
  for (Index i = 0; i < 50; ++i) empty.d_out(0, i, 1, i % 24) = empty.q(0, i, 1, 2) = nan;  // rows that see nothing
  const auto after = empty.gradients<BackwardModel<>>(mha::Causal{});
  EXPECT_EQ(support::differing(after.query, before.query), 0u);
  EXPECT_EQ(support::differing(after.key, before.key), 0u);
  EXPECT_EQ(support::differing(after.value, before.value), 0u);
  for (Index d = 0; d < 16; ++d) EXPECT_EQ(float(after.query(0, 49, 1, d)), 0);

  const auto right = [&] {
    const auto faulty = empty.gradients<BackwardModel<FaultyMachine>>(mha::Causal{});
    return support::differing(faulty.key, before.key) == 0 && support::differing(faulty.value, before.value) == 0;
  };
  EXPECT_EQ(support::gpu::unnoticed(right, {{Flaw::vote_false}, {Flaw::vote_true}}), std::vector<std::string>{});
}

TEST(MmaGradientBody, KeepsANanThatIsSeen) {
  BackwardCase<bfloat16> c("mma gradient NaN", {1, 20, 30, 1, 1, 16, 16});
  c.d_out(0, 7, 0, 3) = bfloat16(std::numeric_limits<float>::quiet_NaN());
  const auto g = c.gradients<BackwardModel<>>();
  for (Index d = 0; d < 16; ++d) EXPECT_TRUE(std::isnan(float(g.query(0, 7, 0, d))));
  for (Index d = 0; d < 16; ++d) EXPECT_FALSE(std::isnan(float(g.query(0, 8, 0, d))));
  for (Index k = 0; k < 30; ++k)
    EXPECT_TRUE(std::isnan(float(g.key(0, k, 0, 0))) && std::isnan(float(g.value(0, k, 0, 3))));
  for (Index k = 0; k < 30; ++k) EXPECT_FALSE(std::isnan(float(g.value(0, k, 0, 4))));
}

}  // namespace
