// SPDX-License-Identifier: Apache-2.0
// Caches in the memory of the CUDA backend, on the host: what they allocate, copy and enqueue.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <mha/layer/multi_head_attention.hpp>

#include "far_cuda.hpp"
#include "layer_checks.hpp"
#include "message_of.hpp"
#include "replay_checks.hpp"

namespace {

using layer_checks::drawn;
using mha::Index;
using replay_checks::Graph;
using support::FarCuda;
using support::FarStream;

TEST(FarCache, SavesAllLayersThroughOneAllocation) {
  support::Random random("far save");
  constexpr Index layers = 3, rows = 20;
  const layer_checks::Layer<float, FarCuda> layer(layer_checks::config, mha::Sink{{0.5f, -1, 2, 0}});
  auto cache = mha::make_cache(layer, mha::Paged{.pages = 4, .length = 64, .page = 16}, {.layers = layers});
  const auto id = cache.add();
  auto step = cache.step(rows);
  mha::Tensor<float, 3> key[layers], value[layers];
  for (Index i = 0; i < layers; ++i) {
    key[i] = drawn<float, 3>(random, rows, 2, 64);
    value[i] = drawn<float, 3>(random, rows, 2, 32);
    step.append(i, mha::to_device(key[i]), mha::to_device(value[i]));
  }
  step.commit();
  static_cast<void>(cache.save(id));  // allocates what the workspace keeps
  const int before = FarStream::allocations();
  const auto bytes = cache.save(id);
  EXPECT_EQ(FarStream::allocations(), before + 1);

  const float* saved = reinterpret_cast<const float*>(bytes.data() + bytes.size()) - layers * rows * 2 * (64 + 32);
  for (Index i = 0; i < layers; ++i)
    for (Index row = 0; row < rows; ++row) {
      for (const float* e = &key[i](row, 0, 0); e != &key[i](row, 0, 0) + 2 * 64; ++e) ASSERT_EQ(*saved++, *e);
      for (const float* e = &value[i](row, 0, 0); e != &value[i](row, 0, 0) + 2 * 32; ++e) ASSERT_EQ(*saved++, *e);
    }
}

TEST(FarCache, HasValuesInItsKeys) {
  layer_checks::expect_values_in_keys<FarCuda, mha::bfloat16>("far values in keys, bfloat16");
  layer_checks::expect_values_in_keys<FarCuda, float>("far values in keys, float");
}

/// A model of three layers, each called with the rows of a step; its results, one layer after another.
struct Model {
  static constexpr Index layers = 3;
  std::vector<layer_checks::Layer<float, FarCuda>> all;
  explicit Model(support::Random& random) {
    for (Index i = 0; i < layers; ++i) {
      all.emplace_back(layer_checks::config, mha::Sink{{0.5f, -1, 2, 0}});
      all.back().update([&](auto& p) {
        for (float& w : p.flat()) w = static_cast<float>(random.uniform(-0.1, 0.1));
      });
    }
  }
};

TEST(FarCache, AStepsNumbersAreSentOnceForAllLayers) {
  support::Random random("far numbers");
  const Model model(random);
  const mha::Paged storage{.pages = 12, .length = 64, .page = 16};
  mha::cuda::Workspace workspace;
  cudaStream_t elsewhere = reinterpret_cast<cudaStream_t>(&random);  // the imitation looks at no stream
  mha::cuda::Workspace other(elsewhere);
  const mha::CacheSizes sizes{.layers = Model::layers, .sequences = 2};
  auto once = mha::make_cache(model.all[0], storage, sizes), each = mha::make_cache(model.all[0], storage, sizes);
  for (int i = 0; i < 2; ++i) once.add(), each.add();
  for (const std::vector<Index>& rows : {std::vector<Index>{17, 3}, {1, 30}, {1, 1}, {0, 2}, {20, 1}}) {
    SCOPED_TRACE(rows[0]);
    auto here = once.step(once.ids(), rows), there = each.step(each.ids(), rows);
    const auto x = drawn<float, 2>(random, rows[0] + rows[1], 256);
    auto a = mha::to_device(x), b = mha::to_device(x);
    for (Index i = 0; i < Model::layers; ++i) {
      const int before = FarStream::pinned_copies();
      a = model.all[std::size_t(i)](a, here[i], workspace);
      EXPECT_EQ(FarStream::pinned_copies(), before);
      b = model.all[std::size_t(i)](b, there[i], other);
      EXPECT_GE(FarStream::pinned_copies(), before + 5) << "offsets, positions, lengths, the table, where rows go";
    }
    here.commit();
    there.commit();
    EXPECT_EQ(support::differing(mha::to_host(a), mha::to_host(b)), 0u);
  }
}

// So does project_memory(), whose launches a graph may therefore have.
TEST(FarCache, AMemoryIsWrittenByTheNumbersOfItsStep) {
  support::Random random("far memories");
  mha::MultiHeadAttention<float, FarCuda, mha::Rotary<>> layer({.d_model = 64, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::cuda::Workspace workspace;
  auto cache =
      mha::make_cache(layer, mha::Paged{.pages = 12, .length = 64, .page = 16}, {.sequences = 2, .recordable = true});
  const mha::SequenceId ids[] = {cache.add(), cache.add()};
  const Index rows[] = {17, 3};
  const auto memory = mha::to_device(drawn<float, 2>(random, 20, 64));
  {
    auto step = cache.step(ids, rows);
    const int before = FarStream::pinned_copies();
    layer.project_memory(memory, step[0], workspace);
    EXPECT_EQ(FarStream::pinned_copies(), before);
    step.commit();
  }
  std::vector<std::vector<std::byte>> saved;
  for (const auto id : ids) {
    saved.push_back(cache.save(id));
    cache.truncate(id, 0);
  }
  auto step = cache.step(ids, rows);
  const Graph graph(nullptr, [&] { layer.project_memory(memory, step[0], workspace); });
  graph.launch();
  step.commit();
  for (std::size_t b = 0; b < 2; ++b) EXPECT_EQ(cache.save(ids[b]), saved[b]);

  mha::cuda::Workspace elsewhere(reinterpret_cast<cudaStream_t>(&random));
  auto next = cache.step(ids, rows);
  EXPECT_EQ(support::message_of([&] { layer.project_memory(memory, next[0], elsewhere); }),
            "layer: a recordable cache sends a step's numbers in a stream of its own, the layer is called in another: "
            "make the cache with a Workspace of that stream, make_cache(…, workspace)");
}

// A copy of a fork's rows, and numbers that are sent before the last step's have been read, are done in their order.
TEST(FarCache, NumbersOfAStepWaitForTheLast) {
  support::Random random("far order");
  const Model model(random);
  mha::cuda::Workspace workspace;
  auto cache = mha::make_cache(model.all[0], mha::Contiguous{.length = 32}, {.sequences = 2});
  const mha::SequenceId ids[] = {cache.add(), cache.add()};
  const auto x = drawn<float, 3>(random, 2, 32, 256);
  const auto expected = model.all[0](mha::to_device(x), workspace);
  const auto whole = mha::to_host(expected);
  for (Index i = 0; i < 32; ++i) {
    mha::Tensor<float, 3> row(2, 1, 256);
    for (Index b = 0; b < 2; ++b) std::copy_n(&x(b, i, 0), 256, &row(b, 0, 0));
    const Index rows[] = {1, 1};
    auto step = cache.step(ids, rows);
    const auto y = mha::to_host(model.all[0](mha::to_device(row), step[0], workspace));
    step.commit();
    for (Index b = 0; b < 2; ++b)
      for (Index e = 0; e < 256; ++e) ASSERT_NEAR(y(b, 0, e), whole(b, i, e), 1e-4);
  }
}

TEST(FarCache, AReplayedStepReadsWhatTheCacheHasByThen) {
  const auto in_chunks = [](Index splits) {  // as many whatever the lengths
    return [splits] { EXPECT_EQ(FarCuda::last.grid.x, 2 * 2 * splits); };
  };
  replay_checks::expect_replays<FarCuda, float>("far replay, paged", mha::Paged{.pages = 12, .length = 512, .page = 16},
                                                in_chunks(4));
  replay_checks::expect_replays<FarCuda, mha::bfloat16>("far replay, contiguous", mha::Contiguous{.length = 300},
                                                        in_chunks(2));
}

/// As a model records it: three layers, sequences of other slots than were recorded, a fork that copies its page.
TEST(FarCache, AReplayServesOtherSequences) {
  support::Random random("far replay of a model");
  const Model model(random);
  mha::cuda::Workspace workspace, other;
  const mha::Paged storage{.pages = 20, .length = 256, .page = 16};
  const mha::CacheSizes sizes{.layers = Model::layers, .sequences = 4, .recordable = true};
  auto cache = mha::make_cache(model.all[0], storage, sizes), plain = mha::make_cache(model.all[0], storage, sizes);
  mha::DeviceTensor<float, 2> in(2, 256), h(2, 256), out(2, 256);
  const auto run = [&](const auto& step, auto& to, mha::cuda::Workspace& in_workspace) {
    model.all[0](in, step[0], mha::into(h), in_workspace);
    model.all[1](h, step[1], mha::into(h), in_workspace);
    model.all[2](h, step[2], mha::into(to), in_workspace);
  };
  const auto both = [&](const auto& f) {
    f(cache);
    f(plain);
  };
  std::vector<mha::SequenceId> ids, plain_ids;
  ids = {cache.add(), cache.add()};
  plain_ids = {plain.add(), plain.add()};
  const auto prompt = mha::to_device(drawn<float, 2>(random, 29, 256));
  both([&](auto& c) {
    const Index rows[] = {9, 20};
    auto step = c.step(c.ids(), rows);
    auto x = model.all[0](prompt, step[0], other);
    x = model.all[1](x, step[1], other);
    x = model.all[2](x, step[2], other);
    step.commit();
  });
  const Index rows[] = {1, 1};
  std::unique_ptr<const Graph> graph;
  mha::RecordedStep recorded;
  for (int n = 0; n < 16; ++n) {
    SCOPED_TRACE(n);
    if (n == 5) {
      ids[0] = cache.fork(ids[1]), plain_ids[0] = plain.fork(plain_ids[1]);
    }
    if (n == 9) {
      cache.truncate(ids[1], 7), plain.truncate(plain_ids[1], 7);
      std::swap(ids[0], ids[1]), std::swap(plain_ids[0], plain_ids[1]);
    }
    const auto x = drawn<float, 2>(random, 2, 256);
    mha::cuda::check(cudaMemcpy(in.data(), x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
    {
      auto step = graph != nullptr ? cache.step(recorded, ids) : cache.step(ids, rows);
      if (n == 0) run(step, out, workspace);
      if (n == 1) {
        graph = std::make_unique<const Graph>(nullptr, [&] { run(step, out, workspace); });
        recorded = step.recorded();
      }
      const int copies = FarStream::pinned_copies();
      if (graph != nullptr) graph->launch();
      EXPECT_EQ(FarStream::pinned_copies(), copies);
      step.commit();
    }
    const auto replayed = mha::to_host(out);
    mha::DeviceTensor<float, 2> again(2, 256);
    auto step = plain.step(plain_ids, rows);
    run(step, again, other);
    step.commit();
    EXPECT_EQ(support::differing(replayed, mha::to_host(again)), 0u);
  }
}

TEST(FarCache, WhatCannotBeReplayedSaysSo) {
  support::Random random("far refusals");
  const Model model(random);
  mha::cuda::Workspace workspace, elsewhere(reinterpret_cast<cudaStream_t>(&random));
  const auto& layer = model.all[0];
  const mha::Paged storage{.pages = 6, .length = 40, .page = 16};
  const auto x = mha::to_device(drawn<float, 2>(random, 2, 256));
  const auto says = [](const auto& call, const char* sentence) {
    try {
      call();
      ADD_FAILURE() << "expected: " << sentence;
    } catch (const mha::ShapeError& e) {
      EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
    }
  };
  says([&] { static_cast<void>(mha::make_cache(layer, mha::Ring{.left = 5}, {.recordable = true})); },
       "a step of a Ring cannot be recorded");

  auto cache = mha::make_cache(layer, storage, {.sequences = 3, .recordable = true});
  const mha::SequenceId ids[] = {cache.add(), cache.add(), cache.add()};
  const std::span<const mha::SequenceId> two(ids, 2);
  const Index one_each[] = {1, 1, 1}, long_one[] = {38, 0, 0};
  mha::RecordedStep recorded;
  says([&] { static_cast<void>(cache.step(recorded, two)); }, "the RecordedStep is of no step");
  {
    auto step = cache.step(two, std::span(one_each, 2));
    says([&] { static_cast<void>(step.recorded()); }, "recorded: layer 0 of the cache has not written");
    says([&] { static_cast<void>(layer(x, step[0], elsewhere)); }, "make the cache with a Workspace of that stream");
    static_cast<void>(layer(x, step[0], workspace));
    recorded = step.recorded();
    step.commit();
  }
  says([&] { static_cast<void>(cache.step(recorded, ids)); },
       "step: sequences has size 3 but the recorded step has size 2");
  {
    auto step = cache.step(ids, long_one);
    static_cast<void>(layer(mha::to_device(drawn<float, 2>(random, 38, 256)), step[0], workspace));
    step.commit();
  }
  {
    auto step = cache.step(recorded, two);  // the 40th position
    says([&] { static_cast<void>(layer(x, step[0], workspace)); }, "was written in this step already");
    step.commit();
  }
  says([&] { static_cast<void>(cache.step(recorded, two)); },
       "sequence 0 of length 40 and 1 rows more would be longer than the cache's 40");
  cache.remove(ids[2]);
  const mha::SequenceId others[] = {ids[1], cache.add()};
  {
    auto step = cache.step(others[1], 2);
    static_cast<void>(model.all[1](x, step[0], workspace));
    step.commit();
  }
  says([&] { static_cast<void>(cache.step(recorded, others)); }, "sequence 1 has keys and values of layer 0");

  auto unplanned = mha::make_cache(layer, storage);
  unplanned.add();
  auto step = unplanned.step(2);
  static_cast<void>(layer(x, step[0], workspace));
  says([&] { static_cast<void>(step.recorded()); }, "make the cache with CacheSizes{.recordable = true}");
}

// Numbers that are copied in a recording would be copied again from memory that has others by then.
TEST(FarCache, NumbersAreNotSentInARecording) {
  support::Random random("far recording");
  const Model model(random);
  mha::cuda::Workspace workspace;
  auto cache = mha::make_cache(model.all[0], mha::Contiguous{.length = 8}, {.recordable = true});
  cache.add();
  const auto x = mha::to_device(drawn<float, 2>(random, 1, 256));
  mha::DeviceTensor<float, 2> y(1, 256);
  model.all[0].step(x, cache, mha::into(y), workspace);
  const Graph nothing(nullptr, [&] {
    EXPECT_THROW(model.all[0].step(x, cache, mha::into(y), workspace), mha::ShapeError);
    EXPECT_THROW(static_cast<void>(cache.step(1)), mha::ShapeError);
  });
  const Graph beside(reinterpret_cast<cudaStream_t>(&random), [&] {  // and the cache's is the default stream
    EXPECT_THROW(static_cast<void>(cache.step(1)), mha::ShapeError);
  });
  EXPECT_EQ(cache.length(cache.ids()[0]), 1);
  model.all[0].step(x, cache, mha::into(y), workspace);
}

// A first step allocates, and that of a fork copies the page it shares: neither may come before the refusal.
TEST(FarCache, AStepThatARecordingRefusesDoesNothing) {
  support::Random random("far refused step");
  const Model model(random);
  const auto& layer = model.all[0];
  const mha::Paged storage{.pages = 6, .length = 32, .page = 16};
  const mha::CacheSizes sizes{.sequences = 2, .recordable = true};
  auto cache = mha::make_cache(layer, storage, sizes), plain = mha::make_cache(layer, storage, sizes);
  const auto prompt = mha::to_device(drawn<float, 2>(random, 5, 256));
  mha::cuda::Workspace workspace;
  const auto refused = [&](mha::Index rows) {
    const Index free = cache.free_pages();
    const int allocations = FarStream::allocations();
    const Graph nothing(nullptr, [&] {
      try {
        static_cast<void>(cache.step(rows));
        ADD_FAILURE() << "a step was recorded";
      } catch (const mha::ShapeError& e) {
        EXPECT_NE(std::string(e.what()).find("make a cache's step before the recording"), std::string::npos);
      }
      EXPECT_EQ(FarStream::recorded(), 0u);
    });
    EXPECT_EQ(FarStream::allocations(), allocations);
    EXPECT_EQ(cache.free_pages(), free);
  };
  cache.add();
  plain.add();
  refused(5);
  for (auto* c : {&cache, &plain}) {
    auto step = c->step(5);
    static_cast<void>(layer(prompt, step[0], workspace));
    step.commit();
    c->fork(c->ids()[0]);
  }
  refused(1);   // copies a page
  refused(10);  // is of a size that no step had
  const auto x = mha::to_device(drawn<float, 2>(random, 2, 256));
  const auto y = mha::to_host(layer.step(x, cache, workspace)),
             expected = mha::to_host(layer.step(x, plain, workspace));
  EXPECT_EQ(support::differing(y, expected), 0u);
}

// Copies that a recording keeps for later would leave a fork without its rows.
TEST(FarCache, RowsAreNotCopiedInARecording) {
  support::Random random("far recorded fork");
  const Model model(random);
  auto cache = mha::make_cache(model.all[0], mha::Contiguous{.length = 8}, {.sequences = 3});
  const mha::SequenceId ids[] = {cache.add(), cache.add()};
  static_cast<void>(model.all[0].step(mha::to_device(drawn<float, 2>(random, 6, 256)), cache));
  const Index both_first[] = {0, 0};
  const auto second = cache.save(ids[1]);
  const Graph nothing(nullptr, [&] {
    EXPECT_THROW(static_cast<void>(cache.fork(ids[0])), mha::ShapeError);
    EXPECT_THROW(cache.reorder(ids, both_first), mha::ShapeError);
    EXPECT_EQ(FarStream::recorded(), 0u);
  });
  EXPECT_EQ(cache.sequences(), 2);
  EXPECT_EQ(cache.save(ids[1]), second);
}

TEST(FarCache, AResultIsNotAllocatedInARecording) {
  support::Random random("far recorded result");
  const Model model(random);
  const auto& layer = model.all[0];
  mha::cuda::Workspace workspace;
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 8}, {.recordable = true});
  cache.add();
  const auto x = mha::to_device(drawn<float, 2>(random, 1, 256));
  mha::DeviceTensor<float, 2> y(1, 256);
  layer.step(x, cache, mha::into(y), workspace);
  const auto said = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::exception& e) {
      return e.what();
    }
    return "nothing";
  };
  {
    const auto step = cache.step(1);
    const Graph result(nullptr, [&] {
      const std::string text = said([&] { static_cast<void>(layer(x, step[0], workspace)); });
      EXPECT_NE(text.find("give a call its result by into(y)"), std::string::npos) << text;
      EXPECT_EQ(FarStream::recorded(), 0u);
      layer(x, step[0], mha::into(y), workspace);
    });
  }
  const Graph nothing(nullptr, [&] {
    const std::string text = said([&] { static_cast<void>(layer.step(x, cache, workspace)); });
    EXPECT_NE(text.find("call layer(x, step[i], mha::into(y)) in it"), std::string::npos) << text;
    EXPECT_EQ(said([&] { static_cast<void>(layer.prefill(x, cache, workspace)); }), text);
    EXPECT_EQ(FarStream::recorded(), 0u);
  });
  EXPECT_EQ(cache.length(cache.ids()[0]), 1);
}

// Masks and scores of a prompt that a Ring takes in pieces are those of the whole prompt, on the device too.
TEST(FarCache, APromptInPiecesHasTheMasksOfTheWholePrompt) {
  support::Random random("far pieces");
  constexpr Index B = 2, L = 9, E = 64;
  using Layer = mha::MultiHeadAttention<float, FarCuda, mha::And<mha::CausalTopLeft, mha::SlidingWindow>>;
  Layer layer({.d_model = E, .num_heads = 2}, mha::CausalTopLeft{} && mha::SlidingWindow{.left = 12});
  layer.initialize(mha::XavierUniform{.seed = 4});
  const auto x = mha::to_device(drawn<float, 3>(random, B, L, E));
  auto ring = mha::make_cache(layer, mha::Ring{.left = 12, .rows = 4}, {.sequences = B});
  auto all = mha::make_cache(layer, mha::Contiguous{.length = L}, {.sequences = B});
  for (Index b = 0; b < B; ++b) {
    ring.add();
    all.add();
  }
  mha::cuda::Workspace workspace;
  const auto y = mha::to_host(layer.prefill(x, ring, workspace)),
             whole = mha::to_host(layer.prefill(x, all, workspace));
  double furthest = 0;
  for (std::size_t i = 0; i < whole.size(); ++i)
    furthest = std::max(furthest, std::abs(double(y.data()[i]) - double(whole.data()[i])));
  EXPECT_LT(furthest, 1e-5);
}

// Tables are of the longest sequence, as in the call; what is counted is the step.
TEST(FarCache, CostOfARecordableStepTakesItsTables) {
  support::Random random("far recordable cost");
  const Model model(random);
  const auto& layer = model.all[0];
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 32}, {.sequences = 2, .recordable = true});
  cache.add();
  cache.add();
  std::vector<Index> ids(32, 1);
  std::fill_n(ids.begin(), 3, 0);
  const mha::Document documents{mha::Borrowed<Index>(ids.data(), 32)}, short_one{mha::Borrowed<Index>(ids.data(), 5)};
  const auto x = mha::to_device(drawn<float, 2>(random, 8, 256));
  {
    const Index rows[] = {5, 3};
    auto step = cache.step(cache.ids(), rows);
    EXPECT_EQ(layer.cost(step[0], documents).visible_pairs, (1 + 2 + 3 + 1 + 2) + (1 + 2 + 3));
    EXPECT_THROW(static_cast<void>(layer.cost(step[0], short_one)), mha::ShapeError);
    EXPECT_NE(layer.explain(step[0], documents).find("visible:     15 of 34 pairs"), std::string::npos);
    const auto there = mha::on_device(documents);
    static_cast<void>(layer(x, step[0], there));
    EXPECT_THROW(static_cast<void>(layer.cost(step[0], there)), mha::ShapeError) << "read on the host";
    EXPECT_THROW(static_cast<void>(layer.explain(1, 32, 32, there)), mha::ShapeError);
    step.commit();
  }
  mha::Tensor<bool, 2> table(1, 32);
  table(0, 2) = table(0, 3) = true;
  table(0, 4) = table(0, 31) = false;
  auto step = cache.step(1);
  EXPECT_EQ(layer.cost(step[0], mha::Dense(table)).visible_pairs, 2 + 2);
}

// Sequences of few rows have a launch of their own beside those of many.
TEST(FarCache, ExplainNamesTheKernelsOfAStep) {
  support::Random random("far explained step");
  const Model model(random);
  const auto& layer = model.all[0];
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = 64}, {.sequences = 2});
  cache.add();
  cache.add();
  const Index rows[] = {40, 1};
  auto step = cache.step(cache.ids(), rows);
  const std::string text = layer.explain(step[0]);
  EXPECT_NE(text.find("few queries"), std::string::npos) << text;
  const int before = FarCuda::launches;
  static_cast<void>(layer(mha::to_device(drawn<float, 2>(random, 41, 256)), step[0]));
  EXPECT_EQ(FarCuda::launches, before + 2);
  EXPECT_NE(text.find("\nkernel:      multiply-adds in float, " +
                      std::to_string(FarCuda::last.grid.x * FarCuda::last.grid.y * FarCuda::last.grid.z) + " blocks"),
            std::string::npos)
      << text;
}

}  // namespace
