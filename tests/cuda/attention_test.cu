// SPDX-License-Identifier: Apache-2.0
// Attention on the GPU over shapes: head sizes between the kernels', lengths around their tiles, groups, few queries.
#include "on_gpu.hpp"

namespace {

using on_gpu::expect_right_with;
using on_gpu::Index;
using on_gpu::Inputs;
using on_gpu::Sizes;

TEST(CudaAttention, HeadSizes) {
  MHA_NEEDS_GPU();
  support::Random random("cuda head sizes");
  for (const Index dim : {8, 32, 40, 64, 72, 96, 128, 160, 192, 256})
    for (const Index value_dim : {dim, Index{64}})
      expect_right_with(Inputs<mha::bfloat16>({2, 133, 133, 3, 3, dim, value_dim}, random), mha::Causal{});
  for (const Index dim : {5, 33, 300})  // rows that are no whole packs, and more than tensor cores take
    expect_right_with(Inputs<mha::bfloat16>({1, 70, 90, 2, 1, dim, dim}, random), mha::Causal{});
}

TEST(CudaAttention, LengthsAroundTheTiles) {
  MHA_NEEDS_GPU();
  support::Random random("cuda lengths");
  const Index lengths[] = {1, 2, 7, 15, 16, 17, 63, 64, 65, 79, 81, 127, 128, 129, 175, 177, 191, 193, 511, 1000};
  for (const Index queries : lengths)
    for (const Index keys : {queries, Index{1}, Index{129}, Index{1000}})
      expect_right_with(Inputs<mha::bfloat16>({1, queries, keys, 2, 1, 64, 64}, random), mha::Causal{});
  expect_right_with(Inputs<mha::bfloat16>({1, 4097, 4097, 1, 1, 128, 128}, random), mha::Causal{});
}

TEST(CudaAttention, GroupsAndBatches) {
  MHA_NEEDS_GPU();
  support::Random random("cuda groups");
  for (const Index group : {1, 2, 4, 7, 8, 16})
    for (const Index batch : {1, 3, 33})
      for (const Index queries : {1, 3, 65})
        expect_right_with(Inputs<mha::bfloat16>({batch, queries, 200, 3 * group, 3, 64, 64}, random), mha::Causal{});
}

TEST(CudaAttention, RepeatsBitByBit) {
  MHA_NEEDS_GPU();
  support::Random random("cuda repeats");
  for (const Index queries : {1, 200}) {
    const Inputs<mha::bfloat16> in({2, queries, 3000, 8, 2, 128, 128}, random);
    const auto q = mha::to_device(in.q), k = mha::to_device(in.k), v = mha::to_device(in.v);
    mha::Cuda::Workspace workspace;
    const auto first = mha::to_host(mha::attention<mha::Cuda>(q, k, v, mha::Causal{}, workspace));
    for (int i = 0; i < 100; ++i)
      ASSERT_EQ(support::differing(first, mha::to_host(mha::attention<mha::Cuda>(q, k, v, mha::Causal{}, workspace))),
                0u);
  }
}

TEST(CudaAttention, OfFloatAndHalfAndDouble) {
  MHA_NEEDS_GPU();
  support::Random random("cuda scalars");
  for (const Sizes& s :
       {Sizes{2, 133, 150, 4, 2, 64, 64}, Sizes{1, 1, 700, 8, 1, 128, 96}, Sizes{1, 40, 40, 1, 1, 7, 9}}) {
    expect_right_with(Inputs<float>(s, random));
    expect_right_with(Inputs<double>(s, random));
    expect_right_with(Inputs<mha::half>(s, random));
  }
}

TEST(CudaAttention, NoQueriesOrNoKeys) {
  MHA_NEEDS_GPU();
  support::Random random("cuda nothing");
  for (const Sizes& s : {Sizes{2, 3, 0, 2, 1, 64, 64}, Sizes{0, 3, 4, 2, 1, 64, 64}, Sizes{1, 0, 4, 2, 1, 64, 64}})
    expect_right_with(Inputs<mha::bfloat16>(s, random), mha::Causal{});
}

TEST(CudaAttention, AStreamIsRecordedAndReplayed) {
  MHA_NEEDS_GPU();
  using mha::cuda::check;
  support::Random random("cuda graph");
  const Inputs<mha::bfloat16> in({2, 1, 4000, 8, 2, 128, 128}, random), other({2, 1, 4000, 8, 2, 128, 128}, random);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  {
    mha::Cuda::Workspace workspace(stream);
    auto q = mha::to_device(in.q, stream);
    const auto k = mha::to_device(in.k, stream), v = mha::to_device(in.v, stream);
    mha::DeviceTensor<mha::bfloat16, 4> out(2, 1, 8, 128);
    const auto call = [&] { mha::attention_into<mha::Cuda>(out, q, k, v, mha::Causal{}, workspace); };
    call();  // the first allocates
    const int allocations = workspace.allocations();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    call();
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
    for (const auto* inputs : {&other, &in, &other}) {
      check(
          cudaMemcpyAsync(q.data(), inputs->q.data(), q.size() * sizeof(mha::bfloat16), cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
      check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
      const auto found = mha::to_host(out, stream);
      call();
      EXPECT_EQ(support::differing(found, mha::to_host(out, stream)), 0u);
    }
    EXPECT_EQ(workspace.allocations(), allocations);
    check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

}  // namespace
