// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/simd/pair_gradients.hpp>
#include <mha/call.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/score.hpp>

#include "random.hpp"

namespace {

namespace simd = mha::detail::simd;
using mha::Index;

constexpr float cap = 1.5f;
struct Cap {
  template <class T> T operator()(T s, Index, Index, Index, Index) const { return cap * mha::tanh(s * (1 / cap)); }
};

/// One tile of 13 queries, one of which sees nothing, against five keys under a causal mask and a soft cap: dS and P
/// from products that are given, against the formula in double.
TEST(PairGradients, AreTheFormulaOnPairsOfATile) {
  constexpr Index lanes = 16, count = 13, keys = 5, dim = 3;
  constexpr float scale = 0.5f, d_lse = 0.3f;
  const float hidden = -std::numeric_limits<float>::infinity();
  support::Random random("pairs");
  mha::Tensor<float, 4> out(1, count, 1, dim), d_out(1, count, 1, dim);
  mha::Tensor<float, 3> d_log_sum_exp(1, 1, count);
  std::vector<float> level(count), sum(count), dots(keys * lanes), dp(keys * lanes);
  for (auto* t : {&out, &d_out})
    for (float& x : *t) x = static_cast<float>(random.normal());
  for (float& x : d_log_sum_exp) x = d_lse;
  for (auto* t : {&dots, &dp})
    for (float& x : *t) x = static_cast<float>(random.normal());
  for (float& x : level) x = static_cast<float>(random.normal());
  for (float& x : sum) x = static_cast<float>(1 + std::abs(random.normal()));
  level[0] = hidden;
  sum[0] = 0;

  using Call = mha::AttendBackwardCall<float, mha::ContiguousKv<float>, mha::Causal, Cap>;
  Call call{};
  call.forward.shape.batch = call.forward.shape.heads = call.forward.kv_heads = 1;
  call.forward.shape.queries = count;
  call.forward.shape.keys = keys;
  call.forward.shape.origin = -1;  // the first query sees nothing
  call.forward.head_dim = call.forward.value_dim = dim;
  call.forward.scale = scale;
  call.out = out.view();
  call.d_out = d_out.view();
  call.d_log_sum_exp = d_log_sum_exp.view();
  call.level = level.data();
  call.sum = sum.data();
  call.query = out;  // wanted
  for (int i = 0; i <= static_cast<int>(mha::best_isa()); ++i) {
    const auto isa = static_cast<mha::IsaLevel>(i);
    const simd::AnyBackwardCall<float> any(call, isa);
    EXPECT_FALSE(any.log_sum_exp_apart());
    mha::Workspace workspace;
    auto frame = workspace.frame();
    const simd::RowMemory<float> rows(frame, 1, lanes, false, 0);
    const simd::PairScratch<float> scratch(frame, keys, lanes, false, false, 0);
    const simd::PairKernels<float> kernels = simd::backward_kernels<float>(isa, 100);
    const simd::PairGradients<float> pairs(any, kernels, rows, lanes, 0, 0);
    EXPECT_TRUE(pairs.wants_ds());
    pairs.prepare(0, count, d_out.data(), dim);
    EXPECT_EQ(rows.sink[0], 0);
    std::vector<float> s = dots, ds = dp;
    const simd::PairGradients<float>::Pairs all{0, 0, lanes, {0, keys, mha::TileVisibility::partial}, 0};
    pairs.logits(all, s.data(), keys, scratch);
    pairs.weigh(all, s.data(), ds.data(), scratch);
    for (Index k = 0; k < keys; ++k)
      for (Index q = 0; q < count; ++q) {
        const std::size_t at = static_cast<std::size_t>(k * lanes + q);
        if (k > q - 1) {
          EXPECT_EQ(s[at], 0);
          EXPECT_EQ(ds[at], 0);
          continue;
        }
        double delta = -double(d_lse);
        for (Index d = 0; d < dim; ++d) delta += double(out(0, q, 0, d)) * double(d_out(0, q, 0, d));
        const double t = std::tanh(double(scale) * double(dots[at]) / double(cap));
        const std::size_t row = static_cast<std::size_t>(q);
        const double p = std::exp(double(cap) * t - double(level[row])) / double(sum[row]);
        EXPECT_NEAR(double(s[at]), p, 2e-6 * (1 + p)) << k << ' ' << q;
        EXPECT_NEAR(double(ds[at]), p * (double(dp[at]) - delta) * (1 - t * t), 5e-6 * (1 + p)) << k << ' ' << q;
      }
  }
}

}  // namespace
