// SPDX-License-Identifier: Apache-2.0
// A layer on the GPU: projections by cuBLASLt, norm, rotation, sink, gates, output; in its own stream, in the steady
// state, in a graph.
#include "layer_checks.hpp"
#include "some_of_cuda.cuh"

namespace {

using layer_checks::drawn;
using layer_checks::expect_layers;
using layer_checks::Twins;
using mha::Index;
using on_gpu::SomeOfCuda;

TEST(CudaLayer, OfBfloat16) {
  MHA_NEEDS_GPU();
  expect_layers<SomeOfCuda, mha::bfloat16>("cuda layer bfloat16");
}
TEST(CudaLayer, OfFloat) {
  MHA_NEEDS_GPU();
  expect_layers<SomeOfCuda, float>("cuda layer float");
}
TEST(CudaLayer, OfDouble) {
  MHA_NEEDS_GPU();
  expect_layers<SomeOfCuda, double>("cuda layer double");
}

TEST(CudaLayer, TheSteadyStateAllocatesNothingAndIsRecorded) {
  MHA_NEEDS_GPU();
  using mha::cuda::check;
  support::Random random("cuda steady layer");
  const Twins<SomeOfCuda, mha::bfloat16> twins(random);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  {
    mha::Cuda::Workspace workspace(stream);
    const auto x = mha::to_device(drawn<mha::bfloat16, 2>(random, 100, 256), stream);
    mha::DeviceTensor<mha::bfloat16, 2> y(100, 256);
    for (int i = 0; i < 2; ++i) twins.there(x, mha::into(y), workspace);
    const auto expected = mha::to_host(y, stream);
    const int allocations = workspace.allocations();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    twins.there(x, mha::into(y), workspace);
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
    check(cudaMemsetAsync(y.data(), 0xff, y.size() * 2, stream), "cudaMemsetAsync");
    check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    EXPECT_EQ(support::differing(mha::to_host(y, stream), expected), 0u);
    EXPECT_EQ(workspace.allocations(), allocations);
    check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

// A source of a user's for the processor: nvcc would warn where AttendCall, which devices have too, calls it.
TEST(CudaLayer, StandsBesideSourcesOfTheHostAlone) {
  struct OnHost {
    using Scalar = float;
    Index keys(Index b) const { return 7 + b; }
  };
  const mha::AttendCall<float, OnHost, mha::Full, mha::NoScore> call{};
  EXPECT_EQ(call.keys(2), 9);
}

}  // namespace
