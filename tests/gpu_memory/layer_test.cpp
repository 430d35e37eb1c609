// SPDX-License-Identifier: Apache-2.0
// Whole layers of the CUDA backend on the host: what they pack, stage, multiply and copy, and in which memory.
#include <mha/layer/multi_head_attention.hpp>

#include "far_cuda.hpp"
#include "layer_checks.hpp"

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

}  // namespace
