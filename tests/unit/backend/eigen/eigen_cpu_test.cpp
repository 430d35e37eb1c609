// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/attention.hpp>
#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/policy/score/softcap.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

static_assert(mha::Backend<mha::EigenCpu>);
static_assert(!mha::PacksWeights<mha::EigenCpu, float>);

TEST(EigenCpu, IsTheThreadPoolBackend) {
  EXPECT_TRUE((std::is_same_v<mha::EigenCpu, mha::EigenCpuWith<mha::ThreadPool>>));
  EXPECT_TRUE(mha::EigenCpu{}.supported().ok);
  EXPECT_STREQ(mha::EigenCpu::name, "EigenCpu");
  EXPECT_EQ(mha::EigenCpu(mha::ThreadPool(3)).threads().workers(), 3);
}

TEST(EigenCpu, ExplainsItsTiles) {
  const mha::AttendPlan plan{{2, 4, 100, 300, 200}, 2, 64, 32};
  const std::string text = mha::EigenCpuWith<mha::Serial>{}.explain<mha::half>(plan);
  for (const char* const part :
       {"EigenCpu: fused online softmax in float",
        mha::detail::eigen::panel == 24 ? "tiles of 100 queries x 264 keys" : "tiles of 100 queries x 192 keys",
        "Serial with 1 worker"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
}

TEST(EigenCpu, EmptyCallsAreQuiet) {
  mha::Tensor<float, 4> q(2, 0, 2, 8), k(2, 5, 2, 8), v(2, 5, 2, 8);
  EXPECT_EQ(mha::attention<mha::EigenCpu>(q, k, v).size(), 0u);
  mha::Tensor<float, 4> queries(2, 3, 2, 8), none(2, 0, 2, 8), no_values(2, 5, 2, 0);
  for (const float x : mha::attention<mha::EigenCpu>(queries, none, none)) EXPECT_EQ(x, 0.f);
  EXPECT_EQ(mha::attention<mha::EigenCpu>(queries, k, no_values).size(), 0u);
}

template <class T> class EigenLayer : public testing::Test {};
using Scalars = testing::Types<float, double, mha::bfloat16>;
TYPED_TEST_SUITE(EigenLayer, Scalars);

/// A layer is the reference's with one type changed; so are its attention weights.
TYPED_TEST(EigenLayer, AgreesWithTheLayerOnTheReference) {
  using T = TypeParam;
  support::Random random("layer by Eigen");
  mha::Tensor<T, 3> x(2, 45, 24), memory(2, 61, 24);
  random.fill(x);
  random.fill(memory);
  const auto check = [&]<class... Policies>(const mha::Config& config, const Policies&... policies) {
    mha::MultiHeadAttention<T, mha::EigenCpu, mha::GroupedQuery<2>, Policies...> mine(config, policies...);
    mha::MultiHeadAttention<T, mha::Reference, mha::GroupedQuery<2>, Policies...> reference(config, policies...);
    mine.initialize(mha::XavierUniform{.seed = 7});
    reference.borrow(mine);
    const double bound = 400 * support::unit_roundoff<T>();
    EXPECT_LE(support::largest_difference(mine(x), reference(x)), bound);
    EXPECT_LE(support::largest_difference(mine(x, memory), reference(x, memory)), bound);
    EXPECT_LE(support::largest_difference(mine.attention_weights(x), reference.attention_weights(x)), bound);
  };
  check({.d_model = 24, .num_heads = 4, .bias = true}, mha::Causal{});
  check({.d_model = 24, .num_heads = 6, .value_dim = 5}, mha::SlidingWindow{.left = 9, .right = 2}, mha::SoftCap{4},
        mha::Rotary<mha::Halves>{}, mha::QkNorm{});
  check({.d_model = 24, .num_heads = 4}, mha::PerHeadProjection{}, mha::GatedHeads{});
}

}  // namespace
