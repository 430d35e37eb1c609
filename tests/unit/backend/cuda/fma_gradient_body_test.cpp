// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cuda/fma_gradient_body.hpp>
#include <mha/policy/mask/positional.hpp>

#include "gpu_model/backward_model.hpp"
#include "gpu_model/faulty_machine.hpp"

namespace {

using mha::Index;
using support::BackwardCase;
using support::BackwardSizes;
using support::gpu::FaultyMachine;
using support::gpu::Flaw;
using support::gpu::gradient_error;

constexpr const char* body = "attention_backward (multiply-adds)";

template <class T, class... Extra>
void check(const std::string& name, const BackwardSizes& sizes, const Extra&... extra) {
  EXPECT_LE(gradient_error(BackwardCase<T>(name, sizes), extra...), 1) << name;
  EXPECT_EQ(support::gpu::BackwardModel<>::kernels.back(), body) << name;
  EXPECT_EQ(support::SimulatedCuda::state.counted.bank_conflicts, 0) << name;
}

TEST(FmaGradientBody, TakesTailsOfQueriesAndKeys) {
  for (const auto& [queries, keys] :
       std::vector<std::pair<int, int>>{{1, 1}, {1, 64}, {17, 31}, {64, 130}, {65, 65}, {65, 1}, {65, 130}}) {
    const std::string name = "fma gradient " + std::to_string(queries) + " x " + std::to_string(keys);
    check<float>(name, {1, queries, keys, 2, 1, 20, 24}, mha::Causal{});
    check<double>(name, {1, queries, keys, 1, 1, 20, 24});
  }
}

TEST(FmaGradientBody, TakesAnyHeadSizes) {
  for (const auto& [dim, value_dim] : std::vector<std::pair<int, int>>{{1, 64}, {32, 3}, {40, 150}, {130, 64}}) {
    const std::string name = "fma gradient of " + std::to_string(dim) + " and " + std::to_string(value_dim);
    check<float>(name, {1, 9, 70, 1, 1, dim, value_dim}, mha::Causal{});
    check<double>(name, {1, 9, 70, 1, 1, dim, value_dim}, mha::Causal{});
  }
  check<float>("fma gradient of 300", {1, 5, 70, 1, 1, 300, 260});
}

TEST(FmaGradientBody, TakesSixteenBitScalars) {
  check<mha::half>("fma gradient in half", {1, 20, 70, 2, 1, 40, 50}, mha::Causal{});
  check<mha::bfloat16>("fma gradient in bfloat16", {1, 9, 70, 2, 2, 300, 48});
}

TEST(FmaGradientBody, SumsTheHeadsOfAGroup) {
  for (const int kv_heads : {1, 2})
    check<float>("fma gradient of groups", {2, 33, 40, 4, kv_heads, 16, 12},
                 mha::SlidingWindow{.left = 20, .right = 7});
}

/// The flaws of a machine are noticed where rows are copied, and where they are not.
TEST(FmaGradientBody, ChecksOfThisFileNoticeFlaws) {
  for (const int dim : {40, 41}) {
    const BackwardCase<float> c("fma gradient flaws", {1, 65, 70, 1, 1, dim, 36});
    const auto expected = c.as<double>().gradients<mha::Reference>(mha::Causal{});
    const auto right = [&] {
      return gradient_error<float>(c.gradients<support::gpu::BackwardModel<FaultyMachine>>(mha::Causal{}), expected) <=
             1;
    };
    FaultyMachine::plant({Flaw::none});
    ASSERT_TRUE(right());
    auto missed = support::gpu::unnoticed(right, {{Flaw::no_sync, 1}, {Flaw::no_sync, 4}, {Flaw::no_shuffle}});
    EXPECT_EQ(missed, std::vector<std::string>{});
    if (dim != 40) continue;
    missed = support::gpu::unnoticed(right, {{Flaw::no_sync}});
    EXPECT_EQ(missed, std::vector<std::string>{});
    missed = support::gpu::unnoticed(
        right,
        {{Flaw::no_wait}, {Flaw::shorter_wait}, {Flaw::no_commit, 0}, {Flaw::no_commit, 3}, {Flaw::no_zero_fill}});
    EXPECT_EQ(missed, std::vector<std::string>{});
  }
}

/// What is hidden is not met: a vote that says so wrongly lets a NaN through.
TEST(FmaGradientBody, LeavesOutWhatIsHidden) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  BackwardCase<float> c("fma gradient hidden", {1, 70, 90, 2, 1, 16, 20});
  const auto expected = c.gradients<support::gpu::BackwardModel<>>(mha::CausalTopLeft{});
  for (Index k = 70; k < 90; ++k) {  // no query sees these
    c.k(0, k, 0, 3) = nan;
    c.v(0, k, 0, 4) = nan;
  }
  const auto found = c.gradients<support::gpu::BackwardModel<>>(mha::CausalTopLeft{});
  EXPECT_EQ(support::differing(found.query, expected.query), 0u);
  EXPECT_EQ(support::differing(found.key, expected.key), 0u);
  EXPECT_EQ(support::differing(found.value, expected.value), 0u);

  BackwardCase<float> empty("fma gradient empty", {1, 90, 40, 2, 1, 16, 20});
  const auto before = empty.gradients<support::gpu::BackwardModel<>>(mha::Causal{});
  for (Index i = 0; i < 50; ++i) empty.d_out(0, i, 1, i % 20) = empty.q(0, i, 1, 2) = nan;  // rows that see nothing
  const auto after = empty.gradients<support::gpu::BackwardModel<>>(mha::Causal{});
  EXPECT_EQ(support::differing(after.query, before.query), 0u);
  EXPECT_EQ(support::differing(after.key, before.key), 0u);
  EXPECT_EQ(support::differing(after.value, before.value), 0u);
  for (Index d = 0; d < 16; ++d) EXPECT_EQ(after.query(0, 49, 1, d), 0);

  const auto right = [&] {
    const auto faulty = empty.gradients<support::gpu::BackwardModel<FaultyMachine>>(mha::Causal{});
    return support::differing(faulty.key, before.key) == 0 && support::differing(faulty.value, before.value) == 0;
  };
  EXPECT_EQ(support::gpu::unnoticed(right, {{Flaw::vote_false}}), std::vector<std::string>{});
}

TEST(FmaGradientBody, KeepsANanThatIsSeen) {
  BackwardCase<float> c("fma gradient NaN", {1, 20, 30, 1, 1, 16, 16});
  c.d_out(0, 7, 0, 3) = std::numeric_limits<float>::quiet_NaN();
  const auto g = c.gradients<support::gpu::BackwardModel<>>();
  for (Index d = 0; d < 16; ++d) EXPECT_TRUE(std::isnan(g.query(0, 7, 0, d)));
  for (Index d = 0; d < 16; ++d) EXPECT_FALSE(std::isnan(g.query(0, 8, 0, d)));
  for (Index k = 0; k < 30; ++k) EXPECT_TRUE(std::isnan(g.key(0, k, 0, 0)) && std::isnan(g.value(0, k, 0, 3)));
  for (Index k = 0; k < 30; ++k) EXPECT_FALSE(std::isnan(g.value(0, k, 0, 4)));
}

}  // namespace
