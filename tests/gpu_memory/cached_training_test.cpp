// SPDX-License-Identifier: Apache-2.0
// Backward passes of the CUDA backend over keys and values that a call did not make, those of a cache, of a projected
// memory and of sources, on the host, in memory that the host does not reach.
#include <string>
#include <vector>

#include "cached_training_checks.hpp"
#include "far_cuda.hpp"
#include "message_of.hpp"
#include "replay_checks.hpp"

namespace training_checks {

template <> inline int device_allocations<support::FarCuda>() { return support::FarStream::allocations(); }

}  // namespace training_checks
namespace cached_training_checks {

template <> inline int waits<support::FarCuda>() { return support::FarStream::waits(); }

}  // namespace cached_training_checks

namespace {

using cached_training_checks::Text;
using mha::Index;
using replay_checks::Graph;
using support::FarCuda;
using support::FarStream;

const Text text{{{20, 1, 0}, {1, 10, 33}, {15, 7, 1}}};

TEST(FarCachedTraining, OfAContiguousCache) {
  const mha::Contiguous storage{.length = 48};
  cached_training_checks::expect_text<FarCuda, float>("far cached, contiguous, float", storage, text, mha::Causal{});
  cached_training_checks::expect_text<FarCuda, mha::bfloat16>("far cached, contiguous, bfloat16", storage, text,
                                                              mha::Causal{});
}
TEST(FarCachedTraining, OfAContiguousCacheOfSequencesOfOneLength) {
  const Text even{{{20, 20}, {7, 7}, {1, 1}}};
  cached_training_checks::expect_text<FarCuda, float>("far cached, one length", mha::Contiguous{.length = 48}, even,
                                                      mha::Causal{});
}
TEST(FarCachedTraining, OfPages) {
  const mha::Paged storage{.pages = 12, .length = 64, .page = 16};
  cached_training_checks::expect_text<FarCuda, double>("far cached, pages, double", storage, text, mha::Causal{},
                                                       mha::SoftCap{4.});
  cached_training_checks::expect_text<FarCuda, mha::half>("far cached, pages, half", storage, text, mha::Causal{});
}
TEST(FarCachedTraining, OfARing) {
  const mha::SlidingWindow window{.left = 5};
  const mha::Ring storage{.left = 5, .rows = 40};
  const Text long_one{{{20, 1, 0}, {1, 10, 33}, {25, 7, 9}}};
  cached_training_checks::expect_text<FarCuda, float>("far cached, ring, float", storage, long_one, window);
  cached_training_checks::expect_text<FarCuda, mha::bfloat16>("far cached, ring, bfloat16", storage, long_one, window);
}
TEST(FarCachedTraining, OfAProjectedMemory) {
  cached_training_checks::expect_ragged_memory<FarCuda, float>("far cached, memory, float");
  cached_training_checks::expect_ragged_memory<FarCuda, mha::bfloat16>("far cached, memory, bfloat16");
}
TEST(FarCachedTraining, OfSources) {
  cached_training_checks::expect_sources<FarCuda, float>("far sources, float");
  cached_training_checks::expect_sources<FarCuda, mha::bfloat16>("far sources, bfloat16");
}

/// A step of training on a projected memory can be recorded, which nothing that waits can be. What of it is no kernel
/// of attention has the same numbers at every replay; those run once in this imitation, while they are recorded.
TEST(FarCachedTraining, ATrainingStepOnAMemoryIsReplayed) {
  constexpr Index B = 2, keys = 9, queries = 5;
  const mha::Config& sizes = training_checks::sizes;
  cached_training_checks::Twins<FarCuda, float> twins("far cached, recorded");
  const auto& layer = twins.there;
  mha::Tensor<float, 3> of_memory(B, keys, sizes.d_model), of_x(B, queries, sizes.d_model);
  twins.random.fill(of_memory), twins.random.fill(of_x);
  const auto memory = mha::to_device(of_memory), x = mha::to_device(of_x);
  mha::DeviceTensor<float, 3> y(B, queries, sizes.d_model), dx(B, queries, sizes.d_model),
      d_memory(B, keys, sizes.d_model);
  FarCuda::Workspace workspace;
  auto memory_tape = layer.memory_tape();
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  auto d = layer.key_value_gradients(B, keys);
  const auto projected = layer.project_memory(memory, memory_tape, workspace);
  layer(x, projected, tape, mha::into(y), workspace);
  const auto back_memory = [&] { layer.backward(d, memory_tape, gradients, mha::into(d_memory), workspace); };
  const auto step = [&] {
    d.clear(workspace);
    layer.backward(y, tape, gradients, d, mha::into(dx), workspace);
    back_memory();
  };
  step();
  const auto first = mha::to_host(d_memory);
  const auto poison = [&] {
    mha::cuda::check(cudaMemset(d_memory.data(), 0xff, d_memory.size() * sizeof(float)), "cudaMemset");
  };
  poison();
  const Graph of_memory_alone(nullptr, back_memory), clear(nullptr, [&] { d.clear(workspace); });
  EXPECT_NE(support::differing(mha::to_host(d_memory), first), 0u) << "it was recorded, not done";
  for (int replay = 0; replay < 2; ++replay) {
    poison();
    of_memory_alone.launch();
    EXPECT_EQ(support::differing(mha::to_host(d_memory), first), 0u);
  }
  clear.launch();
  cached_training_checks::expect_zero(d.key, "cleared by a graph");
  cached_training_checks::expect_zero(d.value, "cleared by a graph");
  const Graph whole(nullptr, step);
  const Graph nothing(nullptr, [&] {
    const std::string refused = "Cuda: numbers go between the host and a stream that is being recorded";
    EXPECT_EQ(support::message_of([&] { d.clear(); }).rfind(refused, 0), 0u);
    EXPECT_EQ(FarStream::recorded(), 0u);
  });
}

/// Before anything is written.
TEST(FarCachedTraining, RefusesWhatDoesNotFit) {
  cached_training_checks::Twins<FarCuda, float> twins("far cached, refused");
  const auto& layer = twins.there;
  const Index width = training_checks::sizes.d_model;
  mha::Tensor<float, 3> rows(1, 6, width);
  twins.random.fill(rows);
  const auto x = mha::to_device(rows);
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 16}, {.recordable = true});
  cache.add();
  auto tape = layer.tape();
  auto step = cache.step(6);
  EXPECT_EQ(support::message_of([&] { static_cast<void>(layer(x, step[0], tape)); }),
            "layer: a tape records no step of a recordable cache: make the cache without CacheSizes{.recordable = "
            "true}");
  EXPECT_FALSE(tape.recorded());

  auto plain = mha::make_cache(layer, mha::Contiguous{.length = 16});
  plain.add();
  for (int i = 0; i < 2; ++i) {
    auto once = plain.step(6);
    static_cast<void>(layer(x, once[0], tape));
    once.commit();
  }
  auto d = layer.key_value_gradients(1, 11);
  EXPECT_EQ(support::message_of([&] { static_cast<void>(layer.backward(x, tape, d)); }),
            "backward: the KeyValueGradients' key has 11 positions, but the longest sequence of the call on the tape "
            "has 12");
  cached_training_checks::expect_zero(d.key, "a refused call's");
}

/// A layer of another device than the current one has its tapes and gradients there, and the bits of the first.
TEST(FarCachedTraining, IsOnTheDeviceOfTheLayer) {
  using Layer = cached_training_checks::Layer<float, FarCuda>;
  constexpr FarCuda second{.device = 1};
  const cached_training_checks::Twins<FarCuda, float> twins("far cached, devices");
  Layer other(training_checks::sizes, twins.sink, second);
  other.update([&](auto& p) {
    const auto from = twins.there.parameters().flat();
    std::copy(from.begin(), from.end(), p.flat().begin());
  });
  support::Random random("far cached, devices, rows");
  const Index width = training_checks::sizes.d_model;
  mha::Tensor<float, 3> rows(1, 7, width);
  random.fill(rows);
  const std::vector<Index> of_step{5, 2}, offsets{0, 3, 7}, at{2, 9};
  const auto train = [&](const Layer& layer, const auto& x) {
    auto cache = mha::make_cache(layer, mha::Paged{.pages = 8, .length = 32, .page = 16}, {.sequences = 2});
    for (int i = 0; i < 2; ++i) cache.add();
    std::vector<decltype(layer.tape())> tapes(3);
    for (std::size_t i = 0; i < 2; ++i) {
      auto step = cache.step(cache.ids(), of_step);
      static_cast<void>(layer(x, step[0], tapes[i], mha::Causal{}));
      step.commit();
    }
    auto memory_tape = layer.memory_tape();
    const auto projected = layer.project_memory(x, memory_tape, mha::Ragged{offsets}, mha::Origin{at});
    static_cast<void>(layer(x, projected, tapes[2], mha::Ragged{offsets}));
    auto gradients = layer.gradients();
    auto d = layer.key_value_gradients(2, 10), of_memory = layer.key_value_gradients(2, 4);
    auto second_dx = layer.backward(x, tapes[1], gradients, d), dx = layer.backward(x, tapes[0], gradients, d);
    static_cast<void>(layer.backward(x, tapes[2], gradients, of_memory));
    auto d_memory = layer.backward(of_memory, memory_tape, gradients);
    std::vector<float> all;
    for (const auto& part : {mha::to_host(second_dx), mha::to_host(dx), mha::to_host(d_memory)})
      all.insert(all.end(), part.begin(), part.end());
    const auto keys = mha::to_host(d.key);
    all.insert(all.end(), keys.begin(), keys.end());
    d.clear();
    cached_training_checks::expect_zero(d.key, "cleared");
    const auto& host = gradients.to_host();
    all.insert(all.end(), host.memory().data, host.memory().data + host.memory().extent[0]);
    EXPECT_EQ(mha::cuda::device_of(d.key.data()), mha::cuda::device_of(x.data()));
    EXPECT_EQ(mha::cuda::current_device(), 0);
    return all;
  };
  const auto x0 = mha::to_device(rows), x1 = mha::to_device(rows, second);
  EXPECT_EQ(train(twins.there, x0), train(other, x1));

  auto memory_tape = other.memory_tape();
  auto tape = other.tape();
  const auto projected = other.project_memory(x1, memory_tape);
  static_cast<void>(other(x1, projected, tape));
  auto of_first = twins.there.key_value_gradients(1, 7);
  const auto said = [&](const auto& call) { return support::message_of<mha::ShapeError>(call); };
  EXPECT_EQ(said([&] { static_cast<void>(other.backward(x1, tape, of_first)); }),
            "backward: the KeyValueGradients' key is on device 0, but the call computes on device 1");
  EXPECT_EQ(said([&] { static_cast<void>(other.backward(of_first, memory_tape)); }),
            "backward: the KeyValueGradients' key is on device 0, but the call computes on device 1");
}

}  // namespace
