// SPDX-License-Identifier: Apache-2.0
// Steps of a cache that a CUDA graph replays, of a backend whose tensors are DeviceTensors.
#pragma once

#include <algorithm>
#include <memory>

#include <cuda_runtime_api.h>

#include "layer_checks.hpp"

namespace replay_checks {

using layer_checks::Index;

/// A graph of what `work` enqueues in the stream.
class Graph {
 public:
  template <class Work> Graph(cudaStream_t stream, const Work& work) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    mha::cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    EXPECT_NO_THROW(work());
    mha::cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    mha::cuda::check(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    mha::cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { static_cast<void>(cudaGraphExecDestroy(exec_)); }
  void launch() const { mha::cuda::check(cudaGraphLaunch(exec_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

class Stream {
 public:
  Stream() { mha::cuda::check(cudaStreamCreate(&stream_), "cudaStreamCreate"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Row i of sequence b.
template <class T> void copy_row(mha::Tensor<T, 2>& to, Index row, const mha::Tensor<T, 3>& from, Index b, Index i) {
  std::copy_n(&from(b, i, 0), 256, &to(row, 0));
}

/// Two sequences that grow by a row each, over pages where there are some, in a cache whose step is recorded once,
/// beside the double reference and beside a cache whose steps are not recorded: the same bits. after() is called after
/// each step.
template <class B, class T, class Storage, class After>
void expect_replays(const char* name, const Storage& storage, const After& after) {
  support::Random random(name);
  constexpr Index length = 60;
  const layer_checks::Twins<B, T> twins(random);
  const auto x = layer_checks::drawn<T, 3>(random, 2, length, 256);
  const auto expected = twins.here(device_checks::doubled(x, mha::Tensor<double, 3>(2, length, 256)));
  const Stream stream;
  typename B::Workspace workspace(stream), other(stream);
  const mha::CacheSizes sizes{.sequences = 2, .recordable = true};
  auto cache = mha::make_cache(twins.there, storage, sizes, typename B::Workspace(stream));
  auto plain = mha::make_cache(twins.there, storage, sizes, typename B::Workspace(stream));
  const mha::SequenceId ids[] = {cache.add(), cache.add()};
  plain.add();
  plain.add();
  Index at[] = {19, 30};
  mha::Tensor<T, 2> prompt(at[0] + at[1], 256);
  for (Index i = 0; i < at[0]; ++i) copy_row(prompt, i, x, 0, i);
  for (Index i = 0; i < at[1]; ++i) copy_row(prompt, at[0] + i, x, 1, i);
  const auto far_prompt = mha::to_device(prompt, stream);
  for (auto* c : {&cache, &plain}) {
    auto step = c->step(c->ids(), at);
    static_cast<void>(twins.there(far_prompt, step[0], other));
    step.commit();
  }

  mha::DeviceTensor<T, 2> in(2, 256), out(2, 256);
  std::unique_ptr<const Graph> graph;
  mha::RecordedStep recorded;
  const Index rows[] = {1, 1};
  for (int n = 0; at[1] < length; ++n) {
    mha::Tensor<T, 2> now(2, 256);
    mha::Tensor<double, 2> of_whole(2, 256);
    for (Index b = 0; b < 2; ++b) {
      copy_row(now, b, x, b, at[b]);
      copy_row(of_whole, b, expected, b, at[b]);
      ++at[b];
    }
    mha::cuda::check(cudaMemcpy(in.data(), now.data(), now.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    mha::cuda::check(cudaMemset(out.data(), 0xff, out.size() * sizeof(T)), "cudaMemset");
    {
      auto step = graph != nullptr ? cache.step(recorded, ids) : cache.step(ids, rows);
      const auto work = [&] { twins.there(in, step[0], mha::into(out), workspace); };
      if (n == 0) work();  // what a first call allocates
      if (n == 1) {
        graph = std::make_unique<const Graph>(stream, work);
        recorded = step.recorded();
      }
      if (graph != nullptr) graph->launch();
      step.commit();
    }
    after();
    const auto replayed = mha::to_host(out, stream);
    device_checks::expect_near(replayed, of_whole, layer_checks::bound<T>(), "a replay");
    auto step = plain.step(plain.ids(), rows);
    const auto unrecorded = mha::to_host(twins.there(in, step[0], other), stream);
    step.commit();
    EXPECT_EQ(support::differing(replayed, unrecorded), 0u) << "step " << n;
    EXPECT_EQ(cache.length(ids[0]), at[0]);
  }
}

}  // namespace replay_checks
