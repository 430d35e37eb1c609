// SPDX-License-Identifier: Apache-2.0
// Threads change neither bits nor errors.
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "law.hpp"

namespace {

using laws::attend;
using laws::Index;
using laws::Inputs;
using laws::Sizes;

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
  expect_same_bits(attend<mha::CpuWith<laws::NewThreads<2>>>(in, mha::Causal{}), serial, "2 threads");
  expect_same_bits(attend<mha::CpuWith<laws::NewThreads<3>>>(in, mha::Causal{}), serial, "3 threads");
  expect_same_bits(attend<mha::CpuWith<laws::NewThreads<7>>>(in, mha::Causal{}), serial, "7 threads");
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
    EXPECT_THROW(attend<mha::CpuWith<laws::NewThreads<3>>>(in, Failing{}, workspace), std::runtime_error);
    expect_same_bits(attend<mha::Cpu>(in, mha::Causal{}, workspace), clean, "after an error");
  }
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
