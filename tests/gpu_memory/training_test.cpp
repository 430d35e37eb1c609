// SPDX-License-Identifier: Apache-2.0
// Backward passes of blocks of the CUDA backend on the host: what they multiply, add up and keep, and in which memory.
#include <cstddef>
#include <string>
#include <vector>

#include "far_cuda.hpp"
#include "message_of.hpp"
#include "training_checks.hpp"

namespace training_checks {

template <> inline int device_allocations<support::FarCuda>() { return support::FarStream::allocations(); }

}  // namespace training_checks

namespace {

using support::FarCuda;

TEST(FarTraining, LinearsOfFloat) { training_checks::expect_linears<FarCuda, float>("far linears, float"); }
TEST(FarTraining, LinearsOfDouble) { training_checks::expect_linears<FarCuda, double>("far linears, double"); }
TEST(FarTraining, LinearsOfBfloat16) {
  training_checks::expect_linears<FarCuda, mha::bfloat16>("far linears, bfloat16");
}
TEST(FarTraining, LinearsOfHalf) { training_checks::expect_linears<FarCuda, mha::half>("far linears, half"); }

TEST(FarTraining, FeedForwards) {
  training_checks::expect_feed_forwards<FarCuda, float, mha::Gelu>("far feed-forward, float");
  training_checks::expect_feed_forwards<FarCuda, double, mha::SwiGlu>("far feed-forward, double, gated");
  training_checks::expect_feed_forwards<FarCuda, mha::bfloat16, mha::SwiGlu>("far feed-forward, bfloat16, gated");
}

/// What a call enqueues, as a graph.
template <class Call> cudaGraphExec_t recorded(const Call& call) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  mha::cuda::check(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  EXPECT_NO_THROW(call());
  mha::cuda::check(cudaStreamEndCapture(nullptr, &graph), "cudaStreamEndCapture");
  mha::cuda::check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  mha::cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return replay;
}

/// A recorded step adds at every replay, and clear() counts, in the recording or between replays, whatever the host
/// called when it was recorded.
TEST(FarTraining, ARecordedStepAddsAtEveryReplay) {
  support::Random random("far training, recorded");
  mha::FeedForward<float, FarCuda, mha::SwiGlu> block({.d_model = 12, .d_hidden = 20});
  const auto draw = [&](auto& p) {
    for (float& w : p.flat()) w = static_cast<float>(random.uniform(-0.3, 0.3));
  };
  block.up().update(draw), block.down().update(draw);
  mha::Tensor<float, 3> rows(2, 7, 12);
  random.fill(rows);
  const auto x = mha::to_device(rows);
  random.fill(rows);
  const auto dy = mha::to_device(rows);
  mha::DeviceTensor<float, 3> y(2, 7, 12), dx(2, 7, 12);
  FarCuda::Workspace workspace;
  auto tape = block.tape();
  auto gradients = block.gradients();
  const auto step = [&] {
    block(x, tape, mha::into(y), workspace);
    block.backward(dy, tape, gradients, mha::into(dx), workspace);
  };
  const auto sums = [&] {
    const auto all = gradients.to_host(workspace).memory();
    return std::vector<float>(all.data, all.data + all.extent[0]);
  };
  step();
  const auto once = sums();
  step();
  const auto twice = sums();
  EXPECT_NE(once, twice);
  const auto run = [](cudaGraphExec_t graph) { mha::cuda::check(cudaGraphLaunch(graph, nullptr), "cudaGraphLaunch"); };
  for (const bool cleared : {false, true}) {
    if (cleared) gradients.clear(workspace);
    const auto graph = recorded(step);
    for (int replay = 0; replay < 2; ++replay) {
      if (cleared)
        gradients.clear(workspace);
      else
        gradients.clear();
      run(graph);
      EXPECT_EQ(sums(), once) << "cleared before the recording: " << cleared;
      run(graph);
      EXPECT_EQ(sums(), twice) << "cleared before the recording: " << cleared;
    }
    mha::cuda::check(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  }
  static_cast<void>(recorded([&] {
    const std::string refused = "Cuda: numbers go between the host and a stream that is being recorded";
    EXPECT_EQ(support::message_of([&] { gradients.to_host(workspace); }).rfind(refused, 0), 0u);
    EXPECT_EQ(support::message_of([&] { gradients.clear(); }).rfind(refused, 0), 0u);
    EXPECT_EQ(support::FarStream::recorded(), 0u);
  }));
  const auto whole = recorded([&] { gradients.clear(workspace), step(); });
  for (int replay = 0; replay < 2; ++replay) {
    run(whole);
    EXPECT_EQ(sums(), once) << "clear() is in the recording";
  }
  mha::cuda::check(cudaGraphExecDestroy(whole), "cudaGraphExecDestroy");
}

/// A step of an optimiser through FeedForward::update(): calls after it allocate nothing, and have the bits of the same
/// step through both Linears. The third update allocates as often as the second.
TEST(FarTraining, AFeedForwardIsUpdatedAsItsLinearsAre) {
  support::Random random("far training, update");
  mha::FeedForward<float, FarCuda, mha::SwiGlu> block({.d_model = 12, .d_hidden = 20}), apart = block;
  block.initialize(mha::XavierUniform{.seed = 1});
  apart.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<float, 3> rows(2, 7, 12);
  random.fill(rows);
  const auto x = mha::to_device(rows);
  mha::DeviceTensor<float, 3> y(2, 7, 12), dx(2, 7, 12), expected(2, 7, 12);
  FarCuda::Workspace workspace;
  auto tape = block.tape();
  auto gradients = block.gradients();
  const auto descend = [](auto numbers, auto d) {
    for (std::size_t i = 0; i < d.size(); ++i) numbers[i] -= 0.1f * d[i];
  };
  int of_updates[3] = {};
  for (int step = 0; step < 3; ++step) {
    const int before = support::FarStream::allocations();
    block(x, tape, mha::into(y), workspace);
    block.backward(y, tape, gradients, mha::into(dx), workspace);
    const int of_calls = support::FarStream::allocations() - before;
    EXPECT_TRUE(step == 0 || of_calls == 0) << "step " << step << ": " << of_calls;
    const auto& host = gradients.to_host(workspace);
    const int updating = support::FarStream::allocations();
    block.update([&](const auto& p) { p.for_each(host, descend); });
    of_updates[step] = support::FarStream::allocations() - updating;
    apart.up().update([&](const auto& p) { p.for_each(host.up, descend); });
    apart.down().update([&](const auto& p) { p.for_each(host.down, descend); });
    block(x, mha::into(y), workspace);
    apart(x, mha::into(expected), workspace);
    EXPECT_EQ(support::differing(mha::to_host(y), mha::to_host(expected)), 0u) << "step " << step;
  }
  EXPECT_EQ(of_updates[2], of_updates[1]);
}

TEST(FarTraining, NormsOfFloat) { training_checks::expect_norms<FarCuda, float>("far norms, float"); }
TEST(FarTraining, NormsOfDouble) { training_checks::expect_norms<FarCuda, double>("far norms, double"); }
TEST(FarTraining, NormsOfBfloat16) { training_checks::expect_norms<FarCuda, mha::bfloat16>("far norms, bfloat16"); }

}  // namespace
