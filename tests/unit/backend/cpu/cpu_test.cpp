// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/mha.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

TEST(Cpu, IsTheThreadPoolBackend) {
  EXPECT_TRUE((std::is_same_v<mha::Cpu, mha::CpuWith<mha::ThreadPool>>));
  EXPECT_TRUE(mha::Cpu{}.supported().ok);
  EXPECT_STREQ(mha::Cpu::name, "Cpu");
}

TEST(Cpu, ExplainsItsKernel) {
  const mha::AttendPlan plan{{2, 4, 100, 300, 200}, 2, 64, 32};
  const mha::IsaLevel before = mha::current_isa();
  mha::force_isa(mha::IsaLevel::baseline);
  const std::string text = mha::CpuWith<mha::Serial>{}.explain<mha::bfloat16>(plan);
  mha::force_isa(before);
  const mha::Index queries = mha::detail::simd::widest_tile<float>(mha::IsaLevel::baseline);
  const std::string tiles = "tiles of " + std::to_string(queries) + " queries x 128 keys";
  for (const char* const part : {"kernel baseline", "bfloat16 widened block by block", "online softmax in float",
                                 tiles.c_str(), "Serial with 1 worker"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  EXPECT_EQ(mha::CpuWith<mha::Serial>{}.explain<double>(plan).find("widened"), std::string::npos);
}

TEST(Cpu, ExplainsThatKeysAreShared) {
  const mha::CpuWith<mha::ThreadPool> two(mha::ThreadPool(2));
  const auto shared = [](const auto& cpu, const mha::AttendPlan& plan) {
    return cpu.template explain<float>(plan).find("2 workers, which can share the keys in 9 chunks, ") !=
           std::string::npos;
  };
  EXPECT_TRUE(shared(two, {{1, 8, 1, 9000, 8999}, 1, 64, 64}));
  EXPECT_FALSE(shared(two, {{1, 8, 1, 1024, 1023}, 1, 64, 64})) << "one chunk";
  EXPECT_FALSE(shared(two, {{1, 8, 1, 9000, 8999}, 8, 64, 64})) << "tiles enough";
  EXPECT_FALSE(shared(two, {{1, 1, 1, 9000, 8999}, 1, 8, 8})) << "too little work";
  EXPECT_FALSE(shared(mha::CpuWith<mha::Serial>{}, {{1, 8, 1, 9000, 8999}, 1, 64, 64})) << "one worker";
}

/// Logits from dot products (no score, 0 < scale ≤ 1) and from a score that changes nothing must agree.
TEST(Cpu, BothFormsOfTheLogitsAgree) {
  support::Random random("logit forms");
  mha::Tensor<float, 4> q(1, 30, 2, 8), k(1, 150, 2, 8), v(1, 150, 2, 8);
  for (auto* t : {&q, &k, &v}) random.fill(*t);
  const auto same = mha::score([](auto s, Index, Index, Index, Index) { return s; });
  for (const double scale : {0.05, 0.3535, 1.0}) {
    mha::Tensor<float, 3> lse(1, 2, 30), scored_lse(1, 2, 30);
    const auto plain = mha::attention(q, k, v, mha::Scale{scale}, mha::LogSumExp(lse), mha::Sink({1.f, -2.f}));
    const auto scored =
        mha::attention(q, k, v, mha::Scale{scale}, same, mha::LogSumExp(scored_lse), mha::Sink({1.f, -2.f}));
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(plain.data()[i], scored.data()[i], 2e-5f) << scale;
    for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse.data()[i], scored_lse.data()[i], 2e-5f) << scale;
  }
}

TEST(Cpu, KeepsAZeroLengthCallQuiet) {
  mha::Tensor<float, 4> q(2, 0, 2, 8), k(2, 5, 2, 8), v(2, 5, 2, 8);
  EXPECT_EQ(mha::attention(q, k, v).size(), 0u);
  mha::Tensor<float, 4> queries(2, 3, 2, 8), none(2, 0, 2, 8);
  for (const float x : mha::attention(queries, none, none)) EXPECT_EQ(x, 0.f);
}

TEST(Cpu, WritesTheLogSumExpOfValuesWithoutWidth) {
  support::Random random("no values");
  mha::Tensor<float, 4> q(1, 3, 1, 8), k(1, 5, 1, 8), v(1, 5, 1, 0);
  random.fill(q);
  random.fill(k);
  mha::Tensor<float, 3> lse(1, 1, 3), expected(1, 1, 3);
  support::poison_all(lse);
  static_cast<void>(mha::attention(q, k, v, mha::LogSumExp(lse)));
  static_cast<void>(mha::attention<mha::Reference>(q, k, v, mha::LogSumExp(expected)));
  for (Index i = 0; i < 3; ++i) EXPECT_NEAR(lse(0, 0, i), expected(0, 0, i), 1e-5f);
}

}  // namespace
