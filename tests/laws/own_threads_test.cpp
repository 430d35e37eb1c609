// SPDX-License-Identifier: Apache-2.0
// A backend is a value: layers and calls on a pool of the user's own give the bits of one thread.
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <mha/eigen.hpp>
#include <mha/systolic.hpp>

#include "law.hpp"

namespace {

using laws::Index;
using laws::Inputs;
using laws::Sizes;
using SerialCpu = mha::CpuWith<mha::Serial>;

/// Large enough for the kernels to go parallel.
constexpr Sizes large{
    .batch = 2, .heads = 4, .kv_heads = 2, .queries = 160, .keys = 160, .head_dim = 16, .value_dim = 16};

/// Layers of one configuration, and rows for them.
const mha::Config config{.d_model = 96, .num_heads = 6, .bias = true};
template <class B>
using LayerOn = mha::MultiHeadAttention<float, B, mha::GroupedQuery<3>, mha::SlidingWindow, mha::QkNorm>;
mha::Tensor<float, 3> rows(const char* name) {
  support::Random random(name);
  mha::Tensor<float, 3> x(3, 150, 96);
  random.fill(x);
  return x;
}

class OwnThreads : public testing::TestWithParam<Index> {};
INSTANTIATE_TEST_SUITE_P(Pools, OwnThreads, testing::Values(1, 2, 3));

TEST_P(OwnThreads, AttentionHasTheBitsOfOneThread) {
  support::Random random("own threads");
  const Inputs<float> in(large, random);
  const mha::Cpu backend(mha::ThreadPool{GetParam()});
  ASSERT_EQ(backend.threads().workers(), GetParam());
  const auto expected = mha::attention(in.q, in.k, in.v, mha::Causal{}, SerialCpu{});
  EXPECT_EQ(support::differing(mha::attention(in.q, in.k, in.v, mha::Causal{}, backend), expected), 0u);
  EXPECT_EQ(support::differing(mha::attention(in.q, in.k, in.v, backend, mha::Causal{}), expected), 0u);
  EXPECT_EQ(support::differing(mha::attention<mha::Cpu>(in.q, in.k, in.v, backend, mha::Causal{}), expected), 0u);
  mha::Tensor<float, 4> out(large.batch, large.queries, large.heads, large.value_dim);
  mha::Workspace workspace;
  mha::attention_into(out, in.q, in.k, in.v, workspace, backend, mha::Causal{});
  EXPECT_EQ(support::differing(out, expected), 0u);
  EXPECT_EQ(support::differing(mha::attention_weights(in.q, in.k, backend, mha::Causal{}),
                               mha::attention_weights(in.q, in.k, SerialCpu{}, mha::Causal{})),
            0u);
}

TEST_P(OwnThreads, LayersHaveTheBitsOfOneThread) {
  const mha::SlidingWindow window{.left = 40};
  LayerOn<SerialCpu> alone(config, window);
  alone.initialize(mha::XavierUniform{.seed = 11});
  const auto x = rows("rows of own threads");
  const auto expected = alone(x);

  LayerOn<mha::Cpu> layer(config, mha::Cpu(mha::ThreadPool{GetParam()}), window), by_call(config, window);
  layer.borrow(alone);
  by_call.borrow(alone);
  EXPECT_EQ(layer.backend().threads().workers(), GetParam());
  EXPECT_NE(layer.explain(1, 5, 5).find("ThreadPool with " + std::to_string(GetParam()) +
                                        (GetParam() == 1 ? " worker," : " workers")),
            std::string::npos);
  EXPECT_EQ(support::differing(layer(x), expected), 0u);
  mha::Workspace workspace;
  const mha::Cpu backend(mha::ThreadPool{GetParam()});
  EXPECT_EQ(support::differing(by_call(x, backend, workspace), expected), 0u);
  EXPECT_EQ(support::differing(layer(x, layer.project_memory(x, backend), backend), alone(x, x)), 0u);
  EXPECT_EQ(support::differing(layer.attention_weights(x, backend), alone.attention_weights(x)), 0u);
  EXPECT_EQ(support::differing(layer.mean_attention_weights(x, backend), alone.mean_attention_weights(x)), 0u);

  auto made = mha::make_attention<float>(config, window, mha::GroupedQuery<3>{}, backend, mha::QkNorm{});
  made.borrow(alone);
  EXPECT_EQ(made.backend().threads().workers(), GetParam());
  EXPECT_EQ(support::differing(made(x), expected), 0u);
}

/// A layer of the backend on a pool of its own, and one that is given it with the call, against one on one thread.
template <class B> void expect_layers_on_a_pool(Index workers) {
  const mha::SlidingWindow window{.left = 40};
  LayerOn<B> alone(config, window, B(mha::ThreadPool{1}));
  alone.initialize(mha::XavierUniform{.seed = 13});
  const auto x = rows("rows of other backends");
  const auto expected = alone(x);
  const B backend(mha::ThreadPool{workers});
  LayerOn<B> layer(config, backend, window), by_call(config, window);
  layer.borrow(alone);
  by_call.borrow(alone);
  EXPECT_EQ(layer.backend().threads().workers(), workers);
  EXPECT_EQ(support::differing(layer(x), expected), 0u);
  EXPECT_EQ(support::differing(by_call(x, backend), expected), 0u);
}

TEST_P(OwnThreads, LayersOfOtherBackendsHaveTheBitsOfOneThread) {
  expect_layers_on_a_pool<mha::EigenCpu>(GetParam());
  expect_layers_on_a_pool<mha::Systolic<>>(GetParam());
}

/// An executor that tells which tasks it ran: what has no default constructor is given.
class Counted {
 public:
  static constexpr const char* name = "Counted";
  explicit Counted(std::atomic<int>& tasks) : tasks_(&tasks) {}
  Index workers() const { return 2; }
  template <class F> void run(Index tasks, F&& f) const {
    *tasks_ += tasks;
    mha::Serial{}.run(tasks, f);
  }

 private:
  std::atomic<int>* tasks_;
};

TEST(OwnThreads, TheCallsExecutorRunsTheTasksAndNotTheLayers) {
  std::atomic<int> of_layer{0}, of_call{0};
  using On = mha::CpuWith<Counted>;
  mha::MultiHeadAttention<float, On> layer({.d_model = 96, .num_heads = 6}, On(Counted(of_layer)));
  layer.initialize(mha::XavierUniform{.seed = 2});
  const auto x = rows("counted");
  of_layer = 0;  // packing is the layer's
  const auto there = layer(x, On(Counted(of_call)));
  EXPECT_EQ(of_layer, 0);
  EXPECT_GT(of_call, 0);
  const int tasks = of_call;
  const auto here = layer(x);
  EXPECT_EQ(of_layer, tasks);
  EXPECT_EQ(of_call, tasks);
  EXPECT_EQ(support::differing(here, there), 0u);
}

/// A mask whose evaluation runs a whole layer on the same pool.
struct Nested {
  const LayerOn<mha::Cpu>* layer;
  const mha::Tensor<float, 3>* x;
  const mha::Tensor<float, 3>* expected;
  std::atomic<int>* wrong;
  bool operator()(Index, Index h, Index q, Index k) const {
    if (h == 1 && q == 9 && k == 9) *wrong += support::differing((*layer)(*x), *expected) != 0 ? 1 : 0;
    return true;
  }
};

TEST(OwnThreads, NestedAndConcurrentCallsOnOnePoolAgree) {
  const mha::SlidingWindow window{.left = 40};
  LayerOn<SerialCpu> alone(config, window);
  alone.initialize(mha::XavierUniform{.seed = 12});
  const auto x = rows("concurrent rows");
  const auto expected = alone(x);
  const mha::Cpu backend(mha::ThreadPool{3});
  LayerOn<mha::Cpu> layer(config, window, backend), sharing(config, window, backend);
  layer.borrow(alone);
  sharing.borrow(alone);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&, t] {
      mha::Workspace workspace;
      for (int i = 0; i < 3; ++i) {
        const auto y = t % 2 == 0 ? layer(x, workspace) : sharing(x, workspace, Nested{&layer, &x, &expected, &wrong});
        wrong += support::differing(y, expected) != 0 ? 1 : 0;
      }
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(OwnThreads, APoolEndsWithItsLastCopy) {
  const auto x = rows("short-lived");
  mha::Tensor<float, 3> first;
  for (int i = 0; i < 3; ++i) {
    LayerOn<mha::Cpu> layer(config, mha::SlidingWindow{.left = 9}, mha::Cpu(mha::ThreadPool{2}));
    layer.initialize(mha::XavierUniform{.seed = 5});
    auto copy = layer;  // shares the pool's threads
    auto y = copy(x);
    if (i == 0)
      first = std::move(y);
    else
      EXPECT_EQ(support::differing(y, first), 0u);
  }
}

}  // namespace
