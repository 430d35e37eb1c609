// SPDX-License-Identifier: Apache-2.0
// Backward passes of whole layers of the CUDA backend on the host, in memory that the host does not reach.
#include <vector>

#include <mha/policy/score/additive_bias.hpp>
#include <mha/policy/score/relative_bias.hpp>

#include "far_cuda.hpp"
#include "layer_training_checks.hpp"
#include "message_of.hpp"
#include "trained_scores.hpp"

namespace training_checks {

template <> inline int device_allocations<support::FarCuda>() { return support::FarStream::allocations(); }

}  // namespace training_checks

namespace {

using support::FarCuda;

TEST(FarLayerTraining, HaveEveryPolicy) {
  training_checks::expect_full_layers<FarCuda, float>("far layers, HaveEveryPolicy, float");
  training_checks::expect_full_layers<FarCuda, double>("far layers, HaveEveryPolicy, double");
  training_checks::expect_full_layers<FarCuda, mha::bfloat16>("far layers, HaveEveryPolicy, bfloat16");
  training_checks::expect_full_layers<FarCuda, mha::half>("far layers, HaveEveryPolicy, half");
}
TEST(FarLayerTraining, OfAMemory) {
  training_checks::expect_memories<FarCuda, float>("far layers, OfAMemory, float");
  training_checks::expect_memories<FarCuda, mha::bfloat16>("far layers, OfAMemory, bfloat16");
}
TEST(FarLayerTraining, WithWhatACallIsGiven) {
  training_checks::expect_calls<FarCuda, float>("far layers, WithWhatACallIsGiven, float");
  training_checks::expect_calls<FarCuda, mha::bfloat16>("far layers, WithWhatACallIsGiven, bfloat16");
}
/// The Workspace of a backward pass has what its cost says.
template <class T> void expect_scratch() {
  support::Random random("far layers, scratch");
  mha::MultiHeadAttention<T, FarCuda, mha::GroupedQuery<mha::Dynamic>, mha::QkNorm> layer(
      {.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<T, 3> rows(2, 20, 24), of_memory(2, 35, 24);
  random.fill(rows), random.fill(of_memory);
  const auto x = mha::to_device(rows), memory = mha::to_device(of_memory);
  mha::DeviceTensor<T, 3> dx(2, 20, 24), d_memory(2, 35, 24);
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  const auto expect = [&](const mha::BackwardCost& cost, const auto&... more) {
    FarCuda::Workspace workspace;
    layer.backward(x, tape, gradients, mha::into(dx), more..., workspace);
    EXPECT_GE(double(workspace.bytes()), cost.scratch_bytes);
    EXPECT_LE(double(workspace.bytes()), 4 * cost.scratch_bytes);
  };
  static_cast<void>(layer(x, tape));
  expect(layer.backward_cost(2, 20, 20));
  static_cast<void>(layer(x, memory, tape));
  expect(layer.backward_cost(2, 20, 35), mha::memory_into(d_memory));
}
TEST(FarLayerTraining, TakesTheScratchOfItsCost) {
  expect_scratch<float>();
  expect_scratch<mha::bfloat16>();
}

TEST(FarLayerTraining, WithHeadsOfTheirOwn) {
  training_checks::expect_bare_layers<FarCuda, float>("far layers, WithHeadsOfTheirOwn, float");
  training_checks::expect_bare_layers<FarCuda, mha::bfloat16>("far layers, WithHeadsOfTheirOwn, bfloat16");
}

using support::BentScore;
using training_checks::sizes;
template <class T, class B, class S>
using ScoredLayer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Causal, S>;

/// Buckets of 4 heads that this suite's lengths pass; other numbers in each.
mha::RelativeBias distances() {
  std::vector<float> table(8 * 4);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = 0.125f * static_cast<float>(i % 7);
  return mha::RelativeBias(table, {.count = 8, .max_distance = 9, .bidirectional = false});
}

/// A layer's own score, of sequences of one length and ragged ones.
template <class T, class S, class Wide> void expect_score(const S& score, const Wide& wide, const char* name) {
  support::Random random(name);
  ScoredLayer<T, FarCuda, S> there(sizes, score);
  ScoredLayer<double, mha::Reference, Wide> here(sizes, wide);
  const mha::Index length = 3 + random.below(20);
  training_checks::expect_layer<FarCuda, T>(there, here, 1 + random.below(3), length, 0, random, name);
  const std::vector<mha::Index> offsets{0, 5, 5, length + 7};
  training_checks::expect_layer<FarCuda, T>(there, here, 1, length + 7, 0, random, name, mha::Ragged{offsets});
}
TEST(FarLayerTraining, TrainAScoreOfTheLayer) {
  expect_score<float>(BentScore<>{0.5f, 0.25f}, BentScore<double>{0.5, 0.25}, "far layers, a functor, float");
  expect_score<mha::bfloat16>(distances(), distances(), "far layers, a table, bfloat16");
  const mha::Chain both{mha::SoftCap{2.f}, distances()};
  expect_score<double>(both, both, "far layers, a cap and a table, double");
}

/// A table that tells its gradients, and one between a table by distance and two numbers.
TEST(FarLayerTraining, TrainAScoreThatAccumulates) {
  const support::TableScore<7> table{{0.5, -1, 0.25, 0, 1, -0.5, 0.75}};
  expect_score<float>(table, table, "far layers, a score that accumulates, float");
  expect_score<mha::bfloat16>(table, table, "far layers, a score that accumulates, bfloat16");
  const mha::Chain mixed{distances(), mha::Chain{table, BentScore<double>{0.5, 0.25}}};
  expect_score<double>(mixed, mixed, "far layers, a score that accumulates in a chain, double");
}

/// Of the layer and of the call: each has its own numbers.
TEST(FarLayerTraining, TrainsTwoScoresThatAccumulate) {
  support::Random random("far layers, two that accumulate");
  using Own = support::TableScore<7>;
  const Own own{{0.5, -1, 0.25, 0, 1, -0.5, 0.75}};
  const mha::Chain of_call{mha::AlibiSlopes({0.5f, 0.25f, 0, -0.125f}), support::TableScore<3>{{1, 2, -1}}};
  ScoredLayer<float, FarCuda, Own> there(sizes, own);
  ScoredLayer<double, mha::Reference, Own> here(sizes, own);
  training_checks::share_layer<float>(there, here, random);
  auto wide_tape = here.tape();
  auto exact = here.gradients();
  auto tape = there.tape();
  auto gradients = there.gradients();
  FarCuda::Workspace workspace;
  for (const mha::Index length : {random.below(20) + 9, random.below(6) + 4}) {
    auto x = training_checks::Rows<float>::drawn(random, 2, length, sizes.d_model);
    auto dy = training_checks::Rows<float>::drawn(random, 2, length, sizes.d_model);
    auto exact_score = of_call, score = of_call;
    static_cast<void>(here(x.wide, wide_tape, of_call));
    static_cast<void>(here.backward(dy.wide, wide_tape, exact, mha::ScoreGradient(exact_score)));
    x.send(), dy.send();
    static_cast<void>(there(x.view(), tape, mha::on_device(of_call), workspace));
    static_cast<void>(there.backward(dy.view(), tape, gradients, mha::ScoreGradient(score), workspace));
    training_checks::expect_scores(score, exact_score, 2e-5, "the call's score");
    training_checks::expect_scores(gradients.to_host(workspace).score, exact.score, 2e-5, "the layer's score");
  }
}

/// Of a layer's own score, the call's and its bias, summed by two steps of different lengths; what is not asked for has
/// the same bits without.
TEST(FarLayerTraining, TrainsAScoreOfTheCallBesideThatOfTheLayer) {
  support::Random random("far layers, scores of the call");
  using Own = BentScore<>;
  ScoredLayer<float, FarCuda, Own> there(sizes, Own{0.5f, 0.25f});
  ScoredLayer<double, mha::Reference, BentScore<double>> here(sizes, BentScore<double>{0.5, 0.25});
  training_checks::share_layer<float>(there, here, random);
  const mha::Chain of_call{distances(), mha::AlibiSlopes({0.5f, 0.25f, 0, -0.125f})};
  const auto of_call_there = mha::on_device(of_call);
  auto wide_tape = here.tape();
  auto exact = here.gradients();
  auto tape = there.tape();
  auto gradients = there.gradients(), alone = there.gradients();
  FarCuda::Workspace workspace;
  for (const mha::Index length : {random.below(20) + 9, random.below(6) + 4}) {
    auto x = training_checks::Rows<float>::drawn(random, 2, length, sizes.d_model);
    auto dy = training_checks::Rows<float>::drawn(random, 2, length, sizes.d_model);
    mha::Tensor<float, 4> bias(1, 4, 1, length), d_bias(1, 4, 1, length);
    random.fill(bias), support::poison_all(d_bias);
    mha::Tensor<double, 4> exact_d_bias(1, 4, 1, length);
    auto exact_score = of_call, score = of_call;
    const mha::AdditiveBias added(bias);
    static_cast<void>(here(x.wide, wide_tape, of_call, added));
    static_cast<void>(
        here.backward(dy.wide, wide_tape, exact, mha::BiasGradient(exact_d_bias), mha::ScoreGradient(exact_score)));
    x.send(), dy.send();
    auto d_bias_there = mha::to_device(d_bias);
    static_cast<void>(there(x.view(), tape, of_call_there, mha::on_device(added), workspace));
    const auto dx = there.backward(dy.view(), tape, gradients, mha::BiasGradient(d_bias_there),
                                   mha::ScoreGradient(score), workspace);
    training_checks::expect_scores(score, exact_score, 2e-5, "the call's score");
    training_checks::expect_norm_wise(mha::to_host(d_bias_there), exact_d_bias, 2e-5, "the bias");
    training_checks::expect_scores(gradients.to_host(workspace).score, exact.score, 2e-5, "the layer's score");
    const auto dx_alone = there.backward(dy.view(), tape, alone, workspace);
    EXPECT_EQ(support::differing(mha::to_host(dx), mha::to_host(dx_alone)), 0u);
    EXPECT_EQ(support::numbers_of(gradients.to_host(workspace).score),
              support::numbers_of(alone.to_host(workspace).score));
  }
}

/// Gradients add up over calls, begin again at 0 and are what update() takes.
TEST(FarLayerTraining, AScoreOnTheDeviceLearnsAsOneOnTheHost) {
  using Here = ScoredLayer<float, mha::Cpu, mha::RelativeBias>;
  ScoredLayer<float, FarCuda, mha::RelativeBias> there(sizes, distances());
  Here here(sizes, distances());
  there.initialize(mha::XavierUniform{.seed = 1}), here.initialize(mha::XavierUniform{.seed = 1});
  support::Random random("far layers, learning");
  auto x = training_checks::Rows<float>::drawn(random, 2, 13, sizes.d_model);
  x.send();
  mha::Tensor<float, 3> rows(2, 13, sizes.d_model);
  auto* next = rows.data();
  x.each([&next](float from, double) { *next++ = from; });
  auto tape = there.tape();
  auto gradients = there.gradients();
  auto tape_here = here.tape();
  auto gradients_here = here.gradients();
  FarCuda::Workspace workspace;
  mha::DeviceTensor<float, 3> y(2, 13, sizes.d_model), dx(2, 13, sizes.d_model);
  for (int step = 0; step < 3; ++step) {
    for (int part = 0; part < 2; ++part) {
      there(x.view(), tape, mha::into(y), workspace);
      there.backward(x.view(), tape, gradients, mha::into(dx), workspace);
      static_cast<void>(here(rows, tape_here));
      static_cast<void>(here.backward(rows, tape_here, gradients_here));
    }
    const auto descend = [](auto numbers, auto d) {
      for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= 1e-3f * d[i];
    };
    there.update([&](auto& p) { p.for_each(gradients.to_host(workspace), descend); });
    here.update([&](auto& p) { p.for_each(gradients_here, descend); });
    gradients.clear(workspace), gradients_here.clear();
    for (const double number : support::numbers_of(gradients.to_host(workspace).score)) EXPECT_EQ(number, 0);
  }
  EXPECT_NE(here.score().table(), distances().table());
  training_checks::expect_scores(there.score(), here.score(), 1e-5, "what has been learned");
}

/// The sums of a recorded step are added at every replay: nothing waits for the host. The kernels that make them run
/// once in this imitation, while they are recorded.
TEST(FarLayerTraining, ARecordedStepAddsItsScoreAtEveryReplay) {
  using Own = mha::Chain<mha::RelativeBias, mha::AlibiSlopes>;
  ScoredLayer<float, FarCuda, Own> layer(sizes, Own{distances(), mha::AlibiSlopes({0.5f, 0.25f, 0, -0.125f})});
  layer.initialize(mha::XavierUniform{.seed = 1});
  support::Random random("far layers, recorded");
  auto x = training_checks::Rows<float>::drawn(random, 2, 9, sizes.d_model);
  x.send();
  mha::DeviceTensor<float, 3> y(2, 9, sizes.d_model), dx(2, 9, sizes.d_model);
  FarCuda::Workspace workspace;
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  const auto step = [&] { layer.backward(y, tape, gradients, mha::into(dx), workspace); };
  const auto sums = [&] { return support::numbers_of(gradients.to_host(workspace).score); };
  layer(x.view(), tape, mha::into(y), workspace);
  step();
  const auto once = sums();
  step();
  const auto twice = sums();
  EXPECT_NE(once, twice);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  mha::cuda::check(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  EXPECT_NO_THROW(step());
  mha::cuda::check(cudaStreamEndCapture(nullptr, &graph), "cudaStreamEndCapture");
  mha::cuda::check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  gradients.clear(workspace);
  for (const auto& expected : {once, twice}) {
    mha::cuda::check(cudaGraphLaunch(replay, nullptr), "cudaGraphLaunch");
    EXPECT_EQ(sums(), expected);
  }
  mha::cuda::check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
  mha::cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

TEST(FarLayerTraining, RefusesGradientsOfAnotherScore) {
  using Layer = ScoredLayer<float, FarCuda, mha::RelativeBias>;
  Layer layer(sizes, distances());
  const Layer further(sizes, mha::RelativeBias(distances().table(), {.count = 8, .max_distance = 11}));
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<float, 3> rows(1, 6, sizes.d_model);
  const auto x = mha::to_device(rows);
  auto tape = layer.tape();
  auto gradients = layer.gradients(), others = further.gradients();
  static_cast<void>(layer(x, tape));
  const auto said = [&](auto& g, const auto&... more) {
    return support::message_of([&] { static_cast<void>(layer.backward(x, tape, g, more...)); });
  };
  EXPECT_EQ(said(others), "backward: the gradients are of another RelativeBias: its max_distance is 11, expected 9");
  mha::AlibiSlopes slopes({1.f, 1.f, 1.f, 1.f});
  EXPECT_EQ(said(gradients, mha::ScoreGradient(slopes)),
            "backward: ScoreGradient is given, but the call on the tape has no score that can be trained");
  mha::Tensor<float, 4> table(1, 4, 1, 6);
  mha::AdditiveBias bias(table);
  static_cast<void>(layer(x, tape, mha::on_device(bias)));
  EXPECT_NE(said(gradients, mha::BiasGradient(table)).find("BiasGradient"), std::string::npos);
  auto table_there = mha::to_device(table);
  EXPECT_EQ(said(gradients, mha::BiasGradient(table_there)), "");
}

/// A table in 16 bits gets what one in float gets, rounded.
TEST(FarLayerTraining, WritesABiasOfTheLayersScalar) {
  using T = mha::bfloat16;
  training_checks::PlainLayer<T, FarCuda> layer(sizes, mha::Dropout{.p = 0.3f});
  layer.initialize(mha::XavierUniform{.seed = 1});
  support::Random random("far layers, a bias in 16 bits");
  mha::Tensor<T, 3> rows(2, 11, sizes.d_model);
  mha::Tensor<T, 4> bias(1, 4, 11, 11), own(1, 4, 11, 11);
  mha::Tensor<float, 4> wide(1, 4, 11, 11);
  random.fill(rows), random.fill(bias), support::poison_all(own), support::poison_all(wide);
  const auto x = mha::to_device(rows);
  const mha::AdditiveBias added(bias);
  auto own_there = mha::to_device(own);
  auto wide_there = mha::to_device(wide);
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  static_cast<void>(layer(x, tape, mha::on_device(added)));
  static_cast<void>(layer.backward(x, tape, gradients, mha::BiasGradient(own_there)));
  static_cast<void>(layer.backward(x, tape, gradients, mha::BiasGradient(wide_there)));
  own = mha::to_host(own_there), wide = mha::to_host(wide_there);
  for (std::size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(own.data()[i] == static_cast<T>(wide.data()[i])) << i;
}

/// Layers that share their weights have scores of their own, whose tables need not be of one size.
TEST(FarLayerTraining, RefusesATapeOfAnotherScore) {
  using Layer = ScoredLayer<float, FarCuda, mha::RelativeBias>;
  Layer owner(sizes, mha::RelativeBias(distances().table(), {.count = 8, .max_distance = 30})),
      borrower(sizes, distances());
  owner.initialize(mha::XavierUniform{.seed = 1});
  borrower.borrow(owner);
  mha::Tensor<float, 3> rows(1, 20, sizes.d_model);
  const auto x = mha::to_device(rows);
  auto tape = owner.tape();
  auto gradients = borrower.gradients();
  static_cast<void>(owner(x, tape));
  const std::string said = support::message_of([&] { static_cast<void>(borrower.backward(x, tape, gradients)); });
  EXPECT_NE(said.find("weights"), std::string::npos) << said;
  const Layer copy = owner;
  auto of_copy = copy.gradients();
  EXPECT_NO_THROW(static_cast<void>(copy.backward(x, tape, of_copy)));
  owner.update([](auto& p) { p.score = distances(); });
  EXPECT_NE(support::message_of([&] { static_cast<void>(owner.backward(x, tape, of_copy)); }), "");
}

/// What goes to the host is refused, and nothing is added.
TEST(FarLayerTraining, RefusesAScoreGradientInARecording) {
  using Layer = ScoredLayer<float, FarCuda, mha::AlibiSlopes>;
  Layer layer(sizes, mha::AlibiSlopes({0.5f, 0.25f, 0, -0.125f}));
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Tensor<float, 3> rows(1, 7, sizes.d_model);
  support::Random("far layers, a score in a recording").fill(rows);
  const auto x = mha::to_device(rows);
  mha::DeviceTensor<float, 3> dx(1, 7, sizes.d_model);
  FarCuda::Workspace workspace;
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  mha::RelativeBias score = distances();
  static_cast<void>(layer(x, tape, mha::on_device(score)));
  const auto step = [&] { layer.backward(x, tape, gradients, mha::into(dx), mha::ScoreGradient(score), workspace); };
  step();
  const auto all = [&] {
    const auto numbers = gradients.to_host(workspace).memory();
    return std::vector<float>(numbers.data, numbers.data + numbers.size());
  };
  const auto before = all();
  cudaGraph_t graph = nullptr;
  mha::cuda::check(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const std::string said = support::message_of(step);
  ASSERT_EQ(cudaStreamEndCapture(nullptr, &graph), cudaSuccess);
  mha::cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  EXPECT_NE(said.find("no ScoreGradient"), std::string::npos) << said;
  EXPECT_EQ(all(), before);
}

/// The numbers of before an update are given back amid the recording of the next step.
TEST(FarLayerTraining, MayBeRecordedAfterAnUpdate) {
  using Layer = mha::MultiHeadAttention<float, FarCuda, mha::GroupedQuery<mha::Dynamic>, mha::AlibiSlopes, mha::Sink>;
  Layer layer(sizes, mha::AlibiSlopes({0.5f, 0.25f, 0, -0.125f}), mha::Sink{{0.5f, -1, 2, 0}});
  layer.initialize(mha::XavierUniform{.seed = 1});
  support::Random random("far layers, recorded after an update");
  auto x = training_checks::Rows<float>::drawn(random, 2, 9, sizes.d_model);
  x.send();
  mha::DeviceTensor<float, 3> y(2, 9, sizes.d_model), dx(2, 9, sizes.d_model);
  FarCuda::Workspace workspace;
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  const auto step = [&] {
    layer(x.view(), tape, mha::into(y), workspace);
    layer.backward(x.view(), tape, gradients, mha::into(dx), workspace);
  };
  step();
  layer.update([](auto& p) { p.score = mha::AlibiSlopes({0.25f, 1, -0.5f, 0}), p.sink = mha::Sink{{1, 0, 0, -1}}; });
  gradients.clear(workspace);
  cudaGraph_t graph = nullptr;
  mha::cuda::check(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  EXPECT_NO_THROW(step());
  ASSERT_EQ(cudaStreamEndCapture(nullptr, &graph), cudaSuccess);
  mha::cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

}  // namespace
