// SPDX-License-Identifier: Apache-2.0
// Attention on the GPU over shapes: head sizes between the kernels', lengths around their tiles, groups, few queries.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "on_gpu.hpp"

namespace {

using on_gpu::expect_right_with;
using on_gpu::Index;
using on_gpu::Inputs;
using on_gpu::Sizes;
using on_gpu::Tensor;

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
  const Index lengths[] = {1,   2,   7,   15,  16,  17,  63,  64,  65,  79,  80,  81,
                           127, 128, 129, 175, 176, 177, 191, 192, 193, 511, 1000};
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
  for (const Index heads : {1, 3, 33})
    for (const Index batch : {1, 3, 33})
      for (const Index queries : {1, 65})
        expect_right_with(Inputs<mha::bfloat16>({batch, queries, 65, heads, heads, 64, 64}, random), mha::Causal{});
}

TEST(CudaAttention, TouchesNothingAroundItsTensors) {
  MHA_NEEDS_GPU();
  support::Random random("cuda guards");
  for (const Index start : {0, 1})
    for (const Index queries : {3, 150})
      for (const Index dim : {32, 40, 64, 72, 96, 128, 192, 256, 300})
        device_checks::check_guards<on_gpu::Gpu, mha::bfloat16>({2, queries, 777, 4, 2, dim, dim}, start, random,
                                                                mha::Causal{});
}

TEST(CudaAttention, BearsOutliersAsSeparateOperationsDo) {
  MHA_NEEDS_GPU();
  support::Random random("cuda outliers");
  for (const Sizes& s : {Sizes{2, 150, 300, 4, 2, 64, 64}, Sizes{2, 200, 200, 2, 2, 128, 128},
                         Sizes{1, 70, 300, 2, 1, 256, 256}, Sizes{2, 2, 3000, 8, 2, 128, 128}}) {
    device_checks::check_outliers<on_gpu::Gpu, mha::bfloat16>(s, random, mha::Causal{});
    device_checks::check_outliers<on_gpu::Gpu, mha::half>(s, random, mha::Full{});
  }
}

template <class T, class... Extra> void expect_repeats(support::Random& random, const Extra&... extra) {
  for (const Index queries : {1, 200}) {
    const Inputs<T> in({2, queries, 3000, 8, 2, 128, 128}, random);
    const auto q = mha::to_device(in.q), k = mha::to_device(in.k), v = mha::to_device(in.v);
    mha::Cuda::Workspace workspace;
    const auto first = mha::to_host(mha::attention<mha::Cuda>(q, k, v, extra..., workspace));
    for (int i = 0; i < 100; ++i)
      ASSERT_EQ(support::differing(first, mha::to_host(mha::attention<mha::Cuda>(q, k, v, extra..., workspace))), 0u);
  }
}

TEST(CudaAttention, RepeatsBitByBit) {
  MHA_NEEDS_GPU();
  support::Random random("cuda repeats");
  expect_repeats<mha::bfloat16>(random, mha::Causal{});
  expect_repeats<float>(random);
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
  for (const Index queries : {1, 300}) {
    const Sizes sizes{2, queries, 4000, 8, 2, 128, 128};
    const Inputs<mha::bfloat16> in(sizes, random), other(sizes, random);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    {
      mha::Cuda::Workspace workspace(stream);
      auto q = mha::to_device(in.q, stream);
      const auto k = mha::to_device(in.k, stream), v = mha::to_device(in.v, stream);
      mha::DeviceTensor<mha::bfloat16, 4> out(2, queries, 8, 128);
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
        check(cudaMemcpyAsync(q.data(), inputs->q.data(), q.size() * sizeof(mha::bfloat16), cudaMemcpyHostToDevice,
                              stream),
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
}

/// (B, L, H, D) in memory ordered (B, H, L, D) that begins `start` elements after 16 bytes.
struct Askew {
  Index start;
  mha::DeviceTensor<mha::bfloat16, 1> memory;
  mha::TensorView<mha::bfloat16, 4> view;

  mha::TensorView<mha::bfloat16, 4> in(mha::bfloat16* data, const Tensor<mha::bfloat16, 4>& x) const {
    return mha::view_bhld(data + start, x.extent(0), x.extent(2), x.extent(1), x.extent(3));
  }
  Askew(const Tensor<mha::bfloat16, 4>& x, Index first) : start(first) {
    Tensor<mha::bfloat16, 1> near(x.size() + static_cast<std::size_t>(start));
    support::poison_all(near);
    for (Index b = 0; b < x.extent(0); ++b)
      for (Index l = 0; l < x.extent(1); ++l)
        for (Index h = 0; h < x.extent(2); ++h)
          for (Index d = 0; d < x.extent(3); ++d) in(near.data(), x)(b, l, h, d) = x(b, l, h, d);
    memory = mha::to_device(near);
    view = in(memory.data(), x);
  }
};

TEST(CudaAttention, MemoryAskew) {
  MHA_NEEDS_GPU();
  support::Random random("cuda strides");
  for (const auto& [queries, start] : {std::pair{2, 0}, std::pair{2, 1}, std::pair{70, 0}, std::pair{70, 1}})
    for (const Index dim : {64, 128, 256, 300}) {
      const Inputs<mha::bfloat16> in({2, queries, 90, 4, 2, dim, dim}, random);
      Tensor<mha::bfloat16, 4> out(2, queries, 4, dim);
      support::poison_all(out);
      const Askew q(in.q, start), k(in.k, start), v(in.v, start), to(out, start);
      mha::attention_into<mha::Cuda>(to.view, q.view, k.view, v.view, mha::Causal{});
      const auto there = mha::to_host(to.memory);
      for (Index b = 0; b < 2; ++b)
        for (Index l = 0; l < queries; ++l)
          for (Index h = 0; h < 4; ++h)
            for (Index d = 0; d < dim; ++d) out(b, l, h, d) = there(start + ((b * 4 + h) * queries + l) * dim + d);
      Tensor<double, 4> expected(2, queries, 4, dim);
      mha::attention_into<mha::Reference>(expected, in.wide(in.q), in.wide(in.k), in.wide(in.v), mha::Causal{});
      on_gpu::expect_near(out, expected, 4 * on_gpu::tolerance<mha::bfloat16>(), in.sizes.text());
      if (start > 0)
        EXPECT_NE(support::to_double(there(0)), support::to_double(there(0))) << "what lies before is written";
    }
}

TEST(CudaAttention, StreamsDoNotMeet) {
  MHA_NEEDS_GPU();
  using mha::cuda::check;
  support::Random random("cuda streams");
  struct Lane {
    Inputs<mha::bfloat16> in;
    cudaStream_t stream = nullptr;
    mha::DeviceTensor<mha::bfloat16, 4> q, k, v, out;
    Tensor<mha::bfloat16, 4> alone;
  };
  std::vector<Lane> lanes;
  for (const Index queries : {1, 1, 300, 300})
    lanes.push_back({Inputs<mha::bfloat16>({2, queries, 3000, 8, 2, 128, 128}, random), nullptr, {}, {}, {}, {}, {}});
  std::vector<std::unique_ptr<mha::Cuda::Workspace>> workspaces;
  const auto call = [&](std::size_t i) {
    Lane& lane = lanes[i];
    mha::attention_into<mha::Cuda>(lane.out, lane.q, lane.k, lane.v, mha::Causal{}, *workspaces[i]);
  };
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    Lane& lane = lanes[i];
    check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    workspaces.push_back(std::make_unique<mha::Cuda::Workspace>(lane.stream));
    lane.q = mha::to_device(lane.in.q, lane.stream);
    lane.k = mha::to_device(lane.in.k, lane.stream);
    lane.v = mha::to_device(lane.in.v, lane.stream);
    lane.out = mha::DeviceTensor<mha::bfloat16, 4>(2, lane.in.sizes.queries, 8, 128);
    call(i);
    lane.alone = mha::to_host(lane.out, lane.stream);
    check(cudaMemsetAsync(lane.out.data(), 0xff, lane.out.size() * 2, lane.stream), "cudaMemsetAsync");
  }
  for (int round = 0; round < 50; ++round)
    for (std::size_t i = 0; i < lanes.size(); ++i) call(i);
  for (Lane& lane : lanes) EXPECT_EQ(support::differing(mha::to_host(lane.out, lane.stream), lane.alone), 0u);
  workspaces.clear();
  for (Lane& lane : lanes) check(cudaStreamDestroy(lane.stream), "cudaStreamDestroy");
}

TEST(CudaAttention, MoreThanTwoToThe31Elements) {
  MHA_NEEDS_GPU();
  using mha::cuda::check;
  using T = mha::bfloat16;
  constexpr Index keys = (Index{1} << 21) + 77, heads = 8, dim = 128;
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  if (free < std::size_t{10} << 30) GTEST_SKIP() << "this test takes 10 GiB, the device has " << free << " bytes free";
  support::Random random("cuda large");
  // Keys and values are 0 but for the last, which the last query looks at alone: its logit is 45, the others' are 0.
  mha::DeviceTensor<T, 4> k(1, keys, heads, dim), v(1, keys, heads, dim);
  Tensor<T, 2> last_key(heads, dim), last_value(heads, dim);
  std::fill(last_key.begin(), last_key.end(), T(4.f));
  random.fill(last_value);
  const std::size_t bytes = last_key.size() * sizeof(T);
  for (auto* const t : {&k, &v}) check(cudaMemset(t->data(), 0, t->size() * sizeof(T)), "cudaMemset");
  check(cudaMemcpy(k.data() + k.size() - last_key.size(), last_key.data(), bytes, cudaMemcpyHostToDevice),
        "cudaMemcpy");
  check(cudaMemcpy(v.data() + v.size() - last_key.size(), last_value.data(), bytes, cudaMemcpyHostToDevice),
        "cudaMemcpy");
  for (const Index queries : {1, 40}) {
    Tensor<T, 4> q(1, queries, heads, dim);
    std::fill(q.begin(), q.end(), T(1.f));
    const auto out = mha::to_host(mha::attention<mha::Cuda>(mha::to_device(q), k, v, mha::Causal{}));
    for (Index h = 0; h < heads; ++h)
      for (Index d = 0; d < dim; ++d) {
        ASSERT_NEAR(float(out(0, queries - 1, h, d)), float(last_value(h, d)), 1e-2) << queries;
        if (queries > 1) ASSERT_EQ(float(out(0, 0, h, d)), 0.f);
      }
  }
}

}  // namespace
