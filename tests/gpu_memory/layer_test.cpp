// SPDX-License-Identifier: Apache-2.0
// Whole layers of the CUDA backend on the host: what they pack, stage, multiply and copy, and in which memory.
#include <mha/block/feed_forward.hpp>
#include <mha/block/linear.hpp>
#include <mha/block/norm.hpp>
#include <mha/layer/multi_head_attention.hpp>

#include "far_cuda.hpp"
#include "layer_checks.hpp"
#include "message_of.hpp"

namespace {

using layer_checks::drawn;
using mha::bfloat16;
using support::FarCuda;

TEST(FarLayer, OfBfloat16) { layer_checks::expect_layers<FarCuda, bfloat16>("far layer bfloat16"); }
TEST(FarLayer, OfFloat) { layer_checks::expect_layers<FarCuda, float>("far layer float"); }

TEST(FarLayer, StepsOfACache) {
  layer_checks::expect_steps<FarCuda, bfloat16>("far steps, paged", mha::Paged{.pages = 12, .length = 64, .page = 16});
  layer_checks::expect_steps<FarCuda, float>("far steps, contiguous", mha::Contiguous{.length = 64});
  layer_checks::expect_steps<FarCuda, float>("far steps, ring", mha::Ring{.left = 10, .rows = 20},
                                             mha::SlidingWindow{.left = 10});
}

/// A call like one before it, which wrote `out`: it does it again under a recording and allocates nothing.
template <class Out, class Call>
void expect_recordable(const mha::cuda::Workspace& workspace, Out& out, const Call& call) {
  const auto expected = mha::to_host(out);
  const int allocations = workspace.allocations();
  mha::cuda::check(cudaMemset(out.data(), 0xff, out.size() * sizeof(*out.data())), "cudaMemset");
  cudaGraph_t graph = nullptr;
  mha::cuda::check(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  EXPECT_NO_THROW(call());
  mha::cuda::check(cudaStreamEndCapture(nullptr, &graph), "cudaStreamEndCapture");
  EXPECT_NE(support::differing(mha::to_host(out), expected), 0u) << "a recording does nothing itself";
  cudaGraphExec_t replay = nullptr;
  mha::cuda::check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  mha::cuda::check(cudaGraphLaunch(replay, nullptr), "cudaGraphLaunch");
  mha::cuda::check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
  mha::cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  EXPECT_EQ(support::differing(mha::to_host(out), expected), 0u);
  EXPECT_EQ(workspace.allocations(), allocations);
}

TEST(FarLayer, TheSteadyStateDoesNothingThatARecordingForbids) {
  support::Random random("far steady layer");
  const layer_checks::Twins<FarCuda, bfloat16> twins(random);
  mha::cuda::Workspace workspace;
  const auto x = mha::to_device(drawn<bfloat16, 2>(random, 20, 256));
  mha::DeviceTensor<bfloat16, 2> y(20, 256);
  const auto call = [&] { twins.there(x, mha::into(y), workspace); };
  call();
  expect_recordable(workspace, y, call);
}

TEST(FarAttention, ASecondCallDoesNothingThatARecordingForbids) {
  support::Random random("far steady attention");
  for (const mha::Index queries : {1, 40}) {
    SCOPED_TRACE(queries);
    const device_checks::Inputs<bfloat16> in({1, queries, 900, 4, 2, 64, 64}, random);
    mha::cuda::Workspace workspace;
    const auto q = mha::to_device(in.q), k = mha::to_device(in.k), v = mha::to_device(in.v);
    mha::DeviceTensor<bfloat16, 4> out(1, queries, 4, 64);
    const auto call = [&] { mha::attention_into<FarCuda>(out, q, k, v, mha::Causal{}, workspace); };
    call();
    expect_recordable(workspace, out, call);
  }
}

TEST(FarLayer, ANewWorkspaceCannotBeRecorded) {
  support::Random random("far first layer");
  const layer_checks::Twins<FarCuda, float> twins(random);
  mha::cuda::Workspace workspace;
  const auto x = mha::to_device(drawn<float, 2>(random, 3, 256));
  mha::DeviceTensor<float, 2> y(3, 256);
  cudaGraph_t graph = nullptr;
  mha::cuda::check(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  EXPECT_THROW(twins.there(x, mha::into(y), workspace), mha::CudaError);
  mha::cuda::check(cudaStreamEndCapture(nullptr, &graph), "cudaStreamEndCapture");
}

constexpr FarCuda second{.device = 1};

int device_of(const void* p) { return mha::cuda::device_of(p); }

/// The same weights on the current device and on the second.
struct OnBoth {
  layer_checks::Twins<FarCuda, float> first;
  layer_checks::Layer<float, FarCuda> other;

  explicit OnBoth(support::Random& random) : first(random), other(layer_checks::config, first.sink, second) {
    other.update([&](auto& p) {
      const auto from = first.there.parameters().flat();
      std::copy(from.begin(), from.end(), p.flat().begin());
    });
  }
};

TEST(FarDevices, ALayerHoldsItsOwn) {
  support::Random random("far devices layer");
  const OnBoth layers(random);
  const auto x = drawn<float, 2>(random, 3, 256);
  const auto x0 = mha::to_device(x), x1 = mha::to_device(x, second);
  const auto y = layers.other(x1);
  EXPECT_EQ(device_of(y.data()), 1);
  EXPECT_EQ(mha::cuda::current_device(), 0);
  EXPECT_EQ(support::differing(mha::to_host(y), mha::to_host(layers.first.there(x0))), 0u);
  EXPECT_EQ(device_of(layers.other.mean_attention_weights(x1).data()), 1);
  // Given the call as well.
  EXPECT_EQ(support::differing(mha::to_host(layers.other(x1, second)), mha::to_host(y)), 0u);
  const auto memory = layers.other.project_memory(x1);
  EXPECT_EQ(device_of(memory.key.data()), 1);
  EXPECT_EQ(device_of(layers.other(x1, memory).data()), 1);
  EXPECT_EQ(mha::cuda::current_device(), 0);
}

TEST(FarDevices, ACacheIsOnItsLayers) {
  support::Random random("far devices cache");
  const OnBoth layers(random);
  const auto x = drawn<float, 2>(random, 3, 256);
  const auto x1 = mha::to_device(x, second);
  const auto steps = [&](const auto& layer, const auto& rows) {
    auto cache = mha::make_cache(layer, mha::Paged{.pages = 8, .length = 64, .page = 16}, {.sequences = 2});
    const auto id = cache.add();
    auto now = cache.step(std::vector{id}, std::vector<mha::Index>{3});
    auto y = layer(rows, now[0]);
    now.commit();
    const auto fork = cache.fork(id);
    auto after = cache.step(std::vector{fork}, std::vector<mha::Index>{3});
    auto z = layer(rows, after[0]);
    after.commit();
    EXPECT_EQ(mha::cuda::current_device(), 0);
    return std::pair(mha::to_host(y), mha::to_host(z));
  };
  const auto first = steps(layers.first.there, mha::to_device(x)), other = steps(layers.other, x1);
  EXPECT_EQ(support::differing(first.first, other.first), 0u);
  EXPECT_EQ(support::differing(first.second, other.second), 0u);

  auto cache = mha::make_cache(layers.first.there, mha::Contiguous{.length = 64});
  const auto id = cache.add();
  auto step = cache.step(std::vector{id}, std::vector<mha::Index>{3});
  const auto said = support::message_of<mha::ShapeError>([&] { static_cast<void>(layers.other(x1, step[0])); });
  EXPECT_EQ(said, "layer: the source's key is on device 0, but the call computes on device 1");
  EXPECT_EQ(mha::cuda::current_device(), 0);
}

TEST(FarDevices, WeightsOfAnotherAreRefused) {
  support::Random random("far devices weights");
  const OnBoth layers(random);
  const auto x = drawn<float, 2>(random, 3, 256);
  const auto x0 = mha::to_device(x), x1 = mha::to_device(x, second);
  const auto said = [](const auto& call) { return support::message_of<mha::ShapeError>(call); };
  EXPECT_EQ(said([&] { static_cast<void>(layers.first.there(x1, second)); }),
            "Cuda: the weights were packed on device 0, but the call computes on device 1");
  EXPECT_EQ(said([&] { static_cast<void>(layers.other(x0)); }),
            "layer: x is on device 0, but the call computes on device 1");
  mha::Linear<float, FarCuda> linear({.inputs = 256, .outputs = 32}, second);
  linear.initialize(mha::XavierUniform{});
  EXPECT_EQ(device_of(linear(x1).data()), 1);
  EXPECT_EQ(said([&] { static_cast<void>(linear(x0)); }),
            "linear: x is on device 0, but the call computes on device 1");
  mha::FeedForward<float, FarCuda, mha::Gelu> wide({.d_model = 256, .d_hidden = 8}, second);
  wide.initialize(mha::XavierUniform{});
  EXPECT_EQ(device_of(wide(x1).data()), 1);
  const mha::RmsNorm<float, FarCuda> norm({.width = 256}, second);
  EXPECT_EQ(device_of(norm(x1).data()), 1);
  EXPECT_EQ(said([&] { static_cast<void>(norm(x0, FarCuda{.device = 0})); }).substr(0, 41),
            "RmsNorm: the norm's weight is on device 1");
  EXPECT_EQ(mha::cuda::current_device(), 0);
}

}  // namespace
