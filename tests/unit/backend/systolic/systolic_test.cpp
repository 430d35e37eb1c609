// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <compare.hpp>
#include <gtest/gtest.h>
#include <random.hpp>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/systolic/systolic.hpp>
#include <mha/block.hpp>
#include <mha/mha.hpp>

#include "backward_case.hpp"
#include "units.hpp"

namespace {

using mha::AmxArray;
using mha::DefaultPrecision;
using mha::HighPrecision;
using mha::Index;
using mha::MatrixUnit;
using mha::Serial;
using mha::Systolic;
using mha::Tensor;
using mha::TensorView;
using mha::TpuArray;

static_assert(mha::Backend<Systolic<>> && mha::Backend<Systolic<TpuArray<256>, HighPrecision, Serial>>);
static_assert(mha::PacksWeights<Systolic<>, float> && mha::PacksWeights<Systolic<>, mha::bfloat16>);

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Systolic, ExplainsUnitArrayAndHowFullItIs) {
  const mha::AttendPlan plan{{1, 2, 4, 4, {}}, 2, 80, 64};
  const std::string on_amx = Systolic<>{}.explain<float>(plan);
  EXPECT_TRUE(contains(on_amx, "array of 16 x 16 x 32")) << on_amx;
  EXPECT_TRUE(contains(on_amx, "head size 80 fills 83 %")) << on_amx;
  EXPECT_TRUE(contains(on_amx, "value size 64 100 %")) << on_amx;
  EXPECT_TRUE(contains(on_amx, "default precision")) << on_amx;
  const std::string tall = Systolic<mha::SystolicArray<128, 16, 32>, HighPrecision, Serial>{}.explain<float>(plan);
  EXPECT_TRUE(contains(tall, "value size 64 50 %")) << "values lie along the rows, as an ArrayMeter counts: " << tall;
  const std::string on_tpu = Systolic<TpuArray<128>, HighPrecision, Serial>{}.explain<mha::bfloat16>(plan);
  EXPECT_TRUE(contains(on_amx, "Systolic: float rounded to bfloat16, sums in float")) << on_amx;
  EXPECT_TRUE(contains(on_tpu, "Systolic: bfloat16, sums in float")) << on_tpu;
  EXPECT_TRUE(contains(on_tpu, "128 x 128 x 128 emulated (no hardware has this shape)")) << on_tpu;
  EXPECT_TRUE(contains(on_tpu, "head size 80 fills 62 %")) << on_tpu;
  EXPECT_TRUE(contains(on_tpu, "high precision, Serial with 1 worker")) << on_tpu;
  EXPECT_TRUE(contains(on_tpu, "attention's own products in bfloat16 whatever the precision")) << on_tpu;
}

/// Runs tasks one after another as if there were three workers, and keeps how many there were.
struct Counting {
  static constexpr const char* name = "Counting";
  std::vector<Index>* tasks;
  Index workers() const { return 3; }
  template <class F> void run(Index n, F&& f) const {
    tasks->push_back(n);
    for (Index t = 0; t < n; ++t) f(t, t % 3);
  }
};

TEST(Systolic, SharesTheKeysThatAreSeen) {
  constexpr Index chunk = mha::detail::simd::key_chunk, keys = 5 * chunk + 1, packs = (keys + 255) / 256;
  std::vector<Index> tasks;
  const Systolic<mha::AmxArray, mha::DefaultPrecision, Counting> backend(Counting{&tasks});
  using Backend = decltype(backend);
  support::Random random("counted");
  Tensor<float, 4> k(1, keys, 1, 64), v(1, keys, 1, 64);
  for (auto* t : {&k, &v}) random.fill(*t);
  mha::Workspace workspace;
  const auto tasks_of = [&](Index heads, const auto&... policies) {
    Tensor<float, 4> q(1, 1, heads, 64), out(1, 1, heads, 64), want(1, 1, heads, 64);
    random.fill(q);
    tasks.clear();
    support::poison_all(out);
    mha::attention_into<std::remove_const_t<Backend>>(out, q, k, v, policies..., backend, workspace);
    mha::attention_into<Systolic<mha::AmxArray, mha::DefaultPrecision, Serial>>(want, q, k, v, policies...);
    EXPECT_EQ(support::differing(out, want), 0u);
    return tasks;
  };
  EXPECT_EQ(tasks_of(8, mha::Causal{}), (std::vector<Index>{packs, 6, 1})) << "chunks, then what they make";
  // A window on the last chunk.
  EXPECT_EQ(tasks_of(96, mha::SlidingWindow{.left = 0}), (std::vector<Index>{packs, 3})) << "a share of the heads each";
  EXPECT_EQ(tasks_of(8, mha::SlidingWindow{.left = 0}), (std::vector<Index>{packs, 6, 1})) << "too few for shares";
  tasks_of(8, mha::Causal{});
  const int allocations = workspace.allocations();
  for (int i = 0; i < 3; ++i) tasks_of(8, mha::Causal{});
  EXPECT_EQ(workspace.allocations(), allocations);

  const mha::AttendPlan plan{{1, 8, 1, keys, keys - 1}, 1, 64, 64};
  EXPECT_TRUE(contains(backend.explain<float>(plan), "3 workers, which can share the keys in 6 chunks"));
  EXPECT_FALSE(contains(Systolic<mha::AmxArray, mha::DefaultPrecision, Serial>{}.explain<float>(plan), "share"));
  EXPECT_FALSE(contains(backend.explain<float>({{1, 8, 1, chunk, chunk - 1}, 1, 64, 64}), "share"));
}

TEST(Systolic, SharesTheKeysOfSequencesThatAreMuchLonger) {
  constexpr Index chunk = mha::detail::simd::key_chunk, others = 20, heads = 4;
  std::vector<Index> tasks;
  const Systolic<mha::AmxArray, mha::DefaultPrecision, Counting> backend(Counting{&tasks});
  using Backend = std::remove_const_t<decltype(backend)>;
  support::Random random("a long sequence among short ones");
  /// A sequence of so many queries and keys amid others of one query.
  const auto tasks_of = [&](Index queries, Index keys, Index others_keys) {
    std::vector<Index> q_offsets{0}, k_offsets{0};
    for (Index b = 0; b <= others; ++b) {
      const bool longest = b == others / 2;
      q_offsets.push_back(q_offsets.back() + (longest ? queries : 1));
      k_offsets.push_back(k_offsets.back() + (longest ? keys : others_keys));
    }
    Tensor<float, 3> q(q_offsets.back(), heads, 64), k(k_offsets.back(), 1, 64), v(k_offsets.back(), 1, 64);
    Tensor<float, 3> out(q_offsets.back(), heads, 64), want = out;
    for (auto* t : {&q, &k, &v}) random.fill(*t);
    support::poison_all(out);
    tasks.clear();
    mha::attention_into<Backend>(out, q, k, v, mha::Ragged{q_offsets, k_offsets}, backend);
    mha::attention_into<Systolic<mha::AmxArray, mha::DefaultPrecision, Serial>>(want, q, k, v,
                                                                                mha::Ragged{q_offsets, k_offsets});
    EXPECT_EQ(support::differing(out, want), 0u);
    return tasks;
  };
  const auto blocks = [](Index keys) { return (keys + 255) / 256; };
  Index keys = 5 * chunk + 1;
  EXPECT_EQ(tasks_of(1, keys, 300), (std::vector<Index>{blocks(keys) + 2 * others, 6 + others, 1}));
  EXPECT_EQ(tasks_of(0, keys, 300)[1], others) << "of no queries";
  EXPECT_EQ(tasks_of(1, 2 * chunk, 2000), (std::vector<Index>{8 + 8 * others, others + 1})) << "nothing to gain";
  // Groups of several tiles, one for each head.
  keys = 9 * chunk;
  const auto prompt = tasks_of(100, keys, 1500);
  ASSERT_EQ(prompt.size(), 3u);
  EXPECT_EQ(prompt[1], heads * 9 + others) << "four tiles of a group take as long as four others";
  EXPECT_EQ(prompt[2], heads);
}

TEST(Systolic, CountsTheArrayOfEveryChunk) {
  constexpr Index keys = 5 * mha::detail::simd::key_chunk;
  std::vector<Index> tasks;
  const Systolic<mha::AmxArray, mha::DefaultPrecision, Counting> backend(Counting{&tasks});
  Tensor<float, 4> q(1, 1, 16, 64), k(1, keys, 1, 64), v(1, keys, 1, 64), out(1, 1, 16, 64);
  for (auto* t : {&q, &k, &v}) std::fill(t->begin(), t->end(), 0.5f);
  const mha::ArrayMeter meter;
  mha::attention_into<std::remove_const_t<decltype(backend)>>(out, q, k, v, backend);
  EXPECT_EQ(meter.use().useful, std::int64_t{16} * keys * 128);
}

TEST(Systolic, ExplainsWhichUnitRuns) {
  for (const MatrixUnit unit : mha::detail::systolic::all_units) {
    if (!mha::missing(unit).empty()) continue;
    const unit::ForceUnit forced(unit);
    const std::string text = Systolic<>{}.explain<float>({{1, 2, 4, 4, {}}, 2, 64, 64});
    EXPECT_TRUE(
        contains(text, unit == MatrixUnit::portable ? "emulated (" : std::string("on the unit ") + to_string(unit)))
        << text;
  }
}

TEST(Systolic, PackedWeightsGiveTheBitsOfUnpackedOnes) {
  support::Random random("packed");
  Tensor<float, 2> a(37, 50), b(50, 70), packed_c(37, 70), c(37, 70);
  Tensor<float, 1> bias(70);
  random.fill(a);
  random.fill(b);
  random.fill(bias);
  support::poison_all(packed_c);
  const Systolic<AmxArray, HighPrecision> backend;
  mha::Workspace workspace;
  backend.gemm(mha::GemmCall<float>{a.view(), b.view(), bias.view(), c.view()}, workspace);
  const mha::DenseWeights<float> weights{b.view(), bias.view()};
  const auto packed = backend.pack(std::span<const mha::DenseWeights<float>>(&weights, 1));
  EXPECT_GE(packed.bytes(), std::size_t{2 * 2 * 50 * 70});
  const TensorView<float, 2> to = packed_c.view();
  backend.gemm(
      mha::PackedGemmCall<float, std::remove_const_t<decltype(packed)>>{a.view(), packed, 0,
                                                                        std::span<const TensorView<float, 2>>(&to, 1)},
      workspace);
  EXPECT_EQ(support::differing(packed_c, c), 0u);
}

TEST(Systolic, FusesEpiloguesAndTakesWeightsOfNarrowerScalars) {
  using mha::FusesEpilogue;
  using mha::WidensWeights;
  static_assert(FusesEpilogue<Systolic<>, float, mha::Gelu> && FusesEpilogue<Systolic<>, mha::bfloat16, mha::SwiGlu>);
  static_assert(WidensWeights<Systolic<>, float, mha::bfloat16> && WidensWeights<Systolic<>, float, mha::half>);
  static_assert(!WidensWeights<Systolic<>, double, mha::half>);
  mha::Linear<float, Systolic<AmxArray, mha::HighestPrecision>> narrow({.inputs = 64, .outputs = 96, .bias = false});
  const Tensor<mha::bfloat16, 2> weight(64, 96);
  narrow.borrow(mha::BorrowedLinear<mha::bfloat16>{.weight = weight});
  EXPECT_EQ(narrow.packed_bytes(), std::size_t{2 * 64 * 96}) << "a bfloat16 has one part in any precision";
  EXPECT_NE(narrow.explain(3).find(", fused epilogue\n"), std::string::npos) << narrow.explain(3);
}

TEST(Systolic, RunsAttentionOnTheArray) {
  support::Random random("attention");
  Tensor<float, 4> q(1, 40, 2, 64), k(1, 70, 2, 64), v(1, 70, 2, 32);
  random.fill(q);
  random.fill(k);
  random.fill(v);
  const mha::ArrayMeter meter;
  const auto out = mha::attention<Systolic<AmxArray, DefaultPrecision, Serial>>(q, k, v);
  // q·kᵀ and p·v of two heads: everything that is multiplied is multiplied on the array.
  EXPECT_GE(meter.use().useful, 2 * 40 * 70 * (64 + 32));
  const auto expected = mha::attention<mha::Cpu>(q, k, v);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out.data()[i], expected.data()[i], 0.05);
}

/// What trains, with the same weights and rows of bfloat16 numbers on any backend: what backward() computes.
template <class T, class Block> struct Trained {
  Tensor<T, 3> dx;
  std::vector<double> gradients;

  explicit Trained(Block& block, Index width) {
    support::Random random("trained");
    const auto number = [&](double size) {
      return static_cast<T>(float(mha::bfloat16(float(size * random.normal()))));
    };
    const auto draw = [&](auto& weights) {
      weights.update([&](auto& p) {
        for (auto& w : p.flat()) w = number(0.25);
      });
    };
    if constexpr (requires { block.up(); }) {
      draw(block.up());
      draw(block.down());
    } else {
      draw(block);
    }
    Tensor<T, 3> x(2, 77, width), dy(2, 77, width);
    for (auto* t : {&x, &dy})
      for (T& e : *t) e = number(1);
    auto tape = block.tape();
    const auto y = block(x, tape);
    EXPECT_EQ(y.size(), dy.size());
    auto g = block.gradients();
    dx = block.backward(dy, tape, g);
    for (const auto& e : g.flat()) gradients.push_back(static_cast<double>(e));
  }
};

/// A block on a backend, float on Systolic and double on the Reference.
template <template <class, class> class Block, class... Config>
void expect_trains(const char* name, Index width, double bound, const Config&... config) {
  SCOPED_TRACE(name);
  using One = Systolic<AmxArray, DefaultPrecision, Serial>;
  using Pool = Systolic<AmxArray, DefaultPrecision, mha::ThreadPool>;
  Block<double, mha::Reference> exact(config...);
  Block<float, One> alone(config...);
  Block<float, Pool> shared(config...);
  const Trained<double, decltype(exact)> expected(exact, width);
  const Trained<float, decltype(alone)> g(alone, width);
  const Trained<float, decltype(shared)> again(shared, width);
  EXPECT_LT(support::relative_error(g.dx, expected.dx), bound);
  ASSERT_EQ(g.gradients.size(), expected.gradients.size());
  EXPECT_LT(support::relative_error(g.gradients, expected.gradients), bound);
  EXPECT_EQ(support::differing(g.dx, again.dx), 0u);
  EXPECT_EQ(g.gradients, again.gradients);
}

template <class T, class B>
using TrainedLayer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::Causal, mha::Rotary<>, mha::QkNorm>;
template <class T, class B> using TrainedLinear = mha::Linear<T, B>;
template <class T, class B> using TrainedNorm = mha::RmsNorm<T, B>;
template <class T, class B> using TrainedFeedForward = mha::FeedForward<T, B, mha::SwiGlu>;

TEST(Systolic, TrainsLayersAndBlocks) {
  expect_trains<TrainedLayer>("layer", 64, 0.02, mha::Config{.d_model = 64, .num_heads = 4, .bias = true});
  expect_trains<TrainedLinear>("linear", 48, 0.01, mha::LinearConfig{.inputs = 48, .outputs = 48});
  expect_trains<TrainedFeedForward>("feed forward", 40, 0.02, mha::FeedForwardConfig{.d_model = 40, .d_hidden = 100});
  expect_trains<TrainedNorm>("norm", 40, 1e-5, mha::NormConfig{.width = 40});
}

}  // namespace
