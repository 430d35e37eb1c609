// SPDX-License-Identifier: Apache-2.0
// A layer on the GPU: projections by cuBLASLt, norm, rotation, sink, gates, output; in its own stream, in the steady
// state, in a graph.
#include <vector>

#include "on_gpu.hpp"

namespace {

using mha::Tensor;
using on_gpu::Index;

const mha::Config config{
    .d_model = 256, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .value_dim = 32, .bias = true};
template <class T, class B>
using Layer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Causal, mha::QkNorm, mha::Rotary<>,
                                      mha::Sink, mha::GatedHeads>;

template <class T, int Rank, class... I> Tensor<T, Rank> drawn(support::Random& random, I... extents) {
  Tensor<T, Rank> x(extents...);
  random.fill(x);
  return x;
}

/// The same weights, rounded to T, in both layers.
template <class T> struct Twins {
  const mha::Sink sink{{0.5f, -1, 2, 0}};
  Layer<T, mha::Cuda> there{config, sink};
  Layer<double, mha::Reference> here{config, sink};

  explicit Twins(support::Random& random) {
    std::vector<T> weights(static_cast<std::size_t>(here.parameter_count()));
    for (T& w : weights) w = support::Random::rounded<T>(random.uniform(-0.1, 0.1));
    there.update([&](auto& p) { std::copy(weights.begin(), weights.end(), p.flat().begin()); });
    here.update([&](auto& p) {
      std::transform(weights.begin(), weights.end(), p.flat().begin(), [](T w) { return support::to_double(w); });
    });
  }
};

template <class T> double bound() {
  return sizeof(T) == 8 ? 1e-11 : sizeof(T) == 4 ? 1e-4 : 64 * support::unit_roundoff<T>();
}

template <class T> void expect_layers(const char* name) {
  support::Random random(name);
  const Twins<T> twins(random);
  mha::Cuda::Workspace workspace;
  const auto x = drawn<T, 3>(random, 2, 77, 256);
  const auto wide = [](const auto& t) {
    return on_gpu::doubled(t, Tensor<double, 3>(t.extent(0), t.extent(1), t.extent(2)));
  };
  const auto y = mha::to_host(twins.there(mha::to_device(x), workspace));
  on_gpu::expect_near(y, twins.here(wide(x)), bound<T>(), "self-attention");
  const auto memory = drawn<T, 3>(random, 2, 90, 256);
  const auto far_x = mha::to_device(x), far_memory = mha::to_device(memory);
  const auto cross = twins.here(wide(x), wide(memory));
  on_gpu::expect_near(mha::to_host(twins.there(far_x, far_memory, workspace)), cross, bound<T>(), "cross-attention");
  const auto made = twins.there.project_memory(far_memory, workspace);
  on_gpu::expect_near(mha::to_host(twins.there(far_x, made, workspace)), cross, bound<T>(), "memory projected once");

  const std::vector<Index> offsets{0, 5, 5, 70, 77};
  const auto rows = drawn<T, 2>(random, 77, 256);
  const auto wide_rows = on_gpu::doubled(rows, Tensor<double, 2>(77, 256));
  on_gpu::expect_near(mha::to_host(twins.there(mha::to_device(rows), mha::Packed{offsets}, workspace)),
                      twins.here(wide_rows, mha::Packed{offsets}), bound<T>(), "ragged");
}

TEST(CudaLayer, OfBfloat16) {
  MHA_NEEDS_GPU();
  expect_layers<mha::bfloat16>("cuda layer bfloat16");
}
TEST(CudaLayer, OfFloat) {
  MHA_NEEDS_GPU();
  expect_layers<float>("cuda layer float");
}
TEST(CudaLayer, OfDouble) {
  MHA_NEEDS_GPU();
  expect_layers<double>("cuda layer double");
}

TEST(CudaLayer, TheSteadyStateAllocatesNothingAndIsRecorded) {
  MHA_NEEDS_GPU();
  using mha::cuda::check;
  support::Random random("cuda steady layer");
  const Twins<mha::bfloat16> twins(random);
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

}  // namespace
