// SPDX-License-Identifier: Apache-2.0
// Threads change neither bits nor errors.
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "forked.hpp"
#include "law.hpp"
#include "runs_at_once.hpp"

namespace {

using laws::Index;
using laws::Inputs;
using laws::Sizes;

/// Compiled here, so that this file is a program of its own under the thread sanitizer.
template <class B, class... Arguments> auto attend(Arguments&&... arguments) {
  return laws::attend<B, laws::PolicyTypes::own>(arguments...);
}

// Before main, and so before the pool starts: more threads than a small machine has, unless the caller says otherwise.
[[maybe_unused]] const int four_threads = setenv("MHA_NUM_THREADS", "4", 0);

/// Large enough for the kernels to go parallel.
constexpr Sizes large{
    .batch = 2, .heads = 4, .kv_heads = 2, .queries = 160, .keys = 160, .head_dim = 16, .value_dim = 16};

template <class T> class Threads : public testing::Test {};
using Scalars = testing::Types<float, double, mha::bfloat16>;
TYPED_TEST_SUITE(Threads, Scalars);

TYPED_TEST(Threads, NumberOfThreadsDoesNotChangeBits) {
  support::Random random("threads");
  const Inputs<TypeParam> in(large, random);
  const auto serial = attend<mha::CpuWith<mha::Serial>>(in, mha::Causal{});
  expect_same_bits(attend<mha::Cpu>(in, mha::Causal{}), serial, "pool");
  expect_same_bits(laws::attend_on_new_threads(2, in, mha::Causal{}), serial, "2 threads");
  expect_same_bits(laws::attend_on_new_threads(3, in, mha::Causal{}), serial, "3 threads");
  expect_same_bits(laws::attend_on_new_threads(7, in, mha::Causal{}), serial, "7 threads");
}

TYPED_TEST(Threads, NumberOfThreadsDoesNotChangeBitsByEigen) {
  support::Random random("threads by Eigen");
  const Inputs<TypeParam> in(large, random);
  const auto check = [&](const char* name, const auto&... policies) {
    const auto serial = attend<mha::EigenCpuWith<mha::Serial>>(in, policies...);
    expect_same_bits(attend<mha::EigenCpuWith<mha::Serial>>(in, policies...), serial, std::string(name) + ", again");
    expect_same_bits(attend<mha::EigenCpu>(in, policies...), serial, std::string(name) + ", pool");
    for (const Index n : {3, 7})
      expect_same_bits(laws::attend_on_new_threads<mha::EigenCpuWith<laws::NewThreads>>(n, in, policies...), serial,
                       std::string(name) + ", new threads");
  };
  check("causal", mha::Causal{});
  check("functor and score", laws::Strided{}, mha::Alibi{});

  mha::Tensor<TypeParam, 2> a(300, 130), b(130, 520), one(300, 520), other(300, 520);
  random.fill(a), random.fill(b);
  const mha::GemmCall<TypeParam> call{a.view(), b.view(), {}, one.view()};
  mha::GemmCall<TypeParam> again = call;
  again.c = other.view();
  mha::Workspace workspace;
  mha::EigenCpuWith<mha::Serial>{}.gemm(call, workspace);
  mha::EigenCpuWith<laws::NewThreads>{laws::NewThreads{3}}.gemm(again, workspace);
  EXPECT_EQ(support::differing(one, other), 0u);
}

TYPED_TEST(Threads, WeightsDoNotDependOnThreadsEither) {
  support::Random random("threads and weights");
  const Inputs<TypeParam> in(large, random);
  const auto serial = mha::attention_weights<mha::CpuWith<mha::Serial>>(in.q, in.k, mha::Causal{});
  EXPECT_EQ(support::differing(mha::attention_weights<mha::Cpu>(in.q, in.k, mha::Causal{}), serial), 0u);
}

/// A mask that fails at one pair.
struct Failing {
  bool operator()(Index b, Index h, Index q, Index k) const {
    if (b == 1 && h == 2 && q == 100 && k == 50) throw std::runtime_error("pair (100, 50)");
    return true;
  }
};

TEST(ThreadsShared, ErrorsOfAFunctorReachTheCaller) {
  support::Random random("errors");
  const Inputs<float> in(large, random);
  mha::Workspace workspace;
  const auto clean = attend<mha::Cpu>(in, mha::Causal{}, workspace);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THROW(attend<mha::Cpu>(in, Failing{}, workspace), std::runtime_error);
    EXPECT_THROW(attend<mha::CpuWith<mha::Serial>>(in, Failing{}, workspace), std::runtime_error);
    EXPECT_THROW(laws::attend_on_new_threads(3, in, Failing{}, workspace), std::runtime_error);
    expect_same_bits(attend<mha::Cpu>(in, mha::Causal{}, workspace), clean, "after an error");
  }
}

TEST(ThreadsShared, AForkedChildComputesTheSameAndExits) {
  if (!mha_test::child_may_start_threads) GTEST_SKIP() << "ThreadSanitizer ends a child that starts threads";
  support::Random random("fork");
  const Inputs<float> in(large, random);
  const auto parent = attend<mha::Cpu>(in, mha::Causal{});
  ASSERT_TRUE(mha_test::runs_at_once(mha::detail::shared_pool, mha::detail::shared_pool.size()));
  EXPECT_EQ(mha_test::forked([] { return true; }), "exit 0");
  EXPECT_EQ(mha_test::forked([&] {
              expect_same_bits(attend<mha::Cpu>(in, mha::Causal{}), parent, "child");
              return !testing::Test::HasFailure();
            }),
            "exit 0");
}

TEST(ThreadsShared, ConcurrentCallsAgreeWithSerialOnes) {
  support::Random random("concurrent");
  const Inputs<float> in(large, random),
      other({.batch = 1, .heads = 8, .kv_heads = 8, .queries = 130, .keys = 200}, random);
  const auto first = attend<mha::CpuWith<mha::Serial>>(in, mha::Causal{});
  const auto second = attend<mha::CpuWith<mha::Serial>>(other, mha::SlidingWindow{.left = 70});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 5; ++t)
    threads.emplace_back([&, t] {
      mha::Workspace workspace;
      for (int i = 0; i < 4; ++i)
        if ((t + i) % 2 == 0) {
          const auto r = attend<mha::Cpu>(in, mha::Causal{}, workspace);
          wrong += support::differing(r.out, first.out) != 0 ? 1 : 0;
        } else {
          const auto r = attend<mha::Cpu>(other, mha::SlidingWindow{.left = 70}, workspace);
          wrong += support::differing(r.out, second.out) != 0 ? 1 : 0;
        }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

/// A mask that runs a whole attention of its own, once per call of the outer one's first pair of each head.
struct Nested {
  const Inputs<float>* inner;
  const laws::Result<float>* expected;
  std::atomic<int>* wrong;
  std::atomic<int>* runs;
  bool operator()(Index, Index, Index q, Index k) const {
    if (q == 7 && k == 7) {
      ++*runs;
      *wrong += support::differing(attend<mha::Cpu>(*inner, mha::Causal{}).out, expected->out) != 0 ? 1 : 0;
    }
    return k <= q;
  }
};

TEST(ThreadsShared, NestedCallsAgreeWithSerialOnes) {
  support::Random random("nested");
  const Inputs<float> in(large, random);
  const auto expected = attend<mha::CpuWith<mha::Serial>>(in, mha::Causal{});
  std::atomic<int> wrong{0}, runs{0};
  const auto outer = attend<mha::Cpu>(in, Nested{&in, &expected, &wrong, &runs});
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(runs, 8);
  expect_same_bits(outer, expected, "the outer call");
}

TEST(ThreadsShared, OneConstLayerServesManyThreads) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<2>, mha::Causal> layer({.d_model = 64, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 3});
  support::Random random("one layer");
  mha::Tensor<float, 3> x(2, 150, 64);
  random.fill(x);
  const auto expected = layer(x);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      mha::Workspace workspace;
      for (int i = 0; i < 3; ++i) wrong += support::differing(layer(x, workspace), expected) != 0 ? 1 : 0;
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
