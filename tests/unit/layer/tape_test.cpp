// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/layer/tape.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "block_backward_checks.hpp"
#include "message_of.hpp"
#include "trained_scores.hpp"

namespace {

using mha::Index;
using support::BentScore;
using support::TableScore;

struct Base {
  virtual ~Base() = default;
  virtual int value() const = 0;
};
template <int Size> struct Counted final : Base {
  explicit Counted(int& alive) : alive_(&alive) { ++alive; }
  Counted(const Counted& other) : alive_(other.alive_) { ++*alive_; }
  ~Counted() override { --*alive_; }
  int value() const override { return Size; }
  int* alive_;
  char more[std::size_t{Size}];
};

TEST(InPlace, HoldsOneValueOfAnyTypeAfterAnother) {
  int alive = 0;
  {
    mha::detail::InPlace<Base> held;
    EXPECT_EQ(held.get(), nullptr);
    held.emplace(Counted<100>(alive));
    const Base* const place = held.get();
    EXPECT_EQ(held.get()->value(), 100);
    held.emplace(Counted<4>(alive));
    EXPECT_EQ(held.get(), place);
    EXPECT_EQ(alive, 1);
    held.emplace(Counted<1000>(alive));
    EXPECT_EQ(held.get()->value(), 1000);
    mha::detail::InPlace<Base> moved(std::move(held));
    EXPECT_EQ(held.get(), nullptr);  // NOLINT(bugprone-use-after-move)
    held = std::move(moved);
    EXPECT_EQ(held.get()->value(), 1000);
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
}

TEST(LayerTape, KnowsWhetherACallIsRecordedAndServesAnyLayer) {
  mha::MultiHeadAttention<float> small({.d_model = 4, .num_heads = 2});
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> large({.d_model = 8, .num_heads = 2});
  small.initialize(mha::XavierUniform{.seed = 1});
  large.initialize(mha::XavierUniform{.seed = 2});
  mha::LayerTape<float, mha::Cpu> tape = small.tape();
  EXPECT_FALSE(tape.recorded());
  const mha::Tensor<float, 2> x(3, 4), wide(7, 8);
  static_cast<void>(small(x, tape));
  EXPECT_TRUE(tape.recorded());
  static_cast<void>(large(wide, tape));
  auto g = large.gradients();
  EXPECT_EQ(large.backward(wide, tape, g).extent(0), 7);
}

TEST(LayerTape, OfAnotherLayersPoliciesIsRefused) {
  const mha::Config config{.d_model = 4, .num_heads = 2};
  using WithSink = mha::MultiHeadAttention<float, mha::Cpu, mha::Sink>;
  WithSink layer(config, mha::Sink({0.f, 0.f})), sunk(config, mha::Sink({5.f, 5.f}));
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> causal(config);
  mha::MultiHeadAttention<float, mha::Cpu, mha::SoftCap> capped(config, mha::SoftCap{1.f});
  layer.initialize(mha::XavierUniform{.seed = 1});
  sunk.borrow(layer);
  causal.borrow(layer);
  capped.borrow(layer);
  const auto x = support::random_rows<float>("policies x", 1, 3, 4);
  const auto refused = [&](const auto& recorded, const auto& other) {
    auto tape = recorded.tape();
    auto g = other.gradients();
    static_cast<void>(recorded(x, tape));
    const auto said = support::message_of([&] { static_cast<void>(other.backward(x, tape, g)); });
    EXPECT_EQ(!said.empty(), std::all_of(g.flat().begin(), g.flat().end(), [](float sum) { return sum == 0; }));
    return said;
  };
  const std::string other_policies =
      "backward: the tape was recorded under other policies: by another layer of these weights, or before an update() "
      "of this one's score or Sink";
  EXPECT_EQ(refused(layer, sunk), other_policies);
  EXPECT_EQ(refused(causal, capped), other_policies);
  EXPECT_EQ(refused(capped, causal), other_policies);
  EXPECT_EQ(refused(causal, causal), "");
  WithSink copy = layer;
  EXPECT_EQ(refused(layer, copy), "") << "a copy has the same policies";
  const WithSink moved = std::move(copy);
  EXPECT_EQ(refused(moved, layer), "");
  WithSink changed = layer;
  changed.update([](auto& p) { p.sink.numbers()[0] = 1; });
  EXPECT_NE(refused(layer, changed), "");
  changed.borrow(layer);
  EXPECT_EQ(refused(layer, changed), other_policies);
}

TEST(LayerTape, RecordsAgainAfterItWasMoved) {
  mha::MultiHeadAttention<float> layer({.d_model = 4, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::LayerTape<float, mha::Cpu> tape = layer.tape();
  const mha::Tensor<float, 2> x(3, 4);
  static_cast<void>(layer(x, tape));
  const mha::LayerTape<float, mha::Cpu> kept = std::move(tape);
  EXPECT_TRUE(kept.recorded());
  EXPECT_FALSE(tape.recorded());  // NOLINT(bugprone-use-after-move)
  static_cast<void>(layer(x, tape));
  auto g = layer.gradients();
  EXPECT_EQ(layer.backward(x, tape, g).extent(0), 3);
  EXPECT_EQ(layer.backward(x, kept, g).extent(0), 3);
}

/// One whose number is not trained.
struct Fixed {
  float slope = 0;
  template <class S> S operator()(S s, Index, Index, Index q, Index k) const {
    return s - slope * float(mha::abs(q - k));
  }
};

TEST(LayerTape, RecordsFunctorsThatCannotBeAssigned) {
  const float slope = 0.5f;
  const auto captures =
      mha::score([slope](auto s, auto, auto, auto q, auto k) { return s - slope * float(mha::abs(q - k)); });
  const Index reach = 3;
  const auto near = mha::mask([reach](auto, auto, auto q, auto k) { return q - k < reach; });
  static_assert(!std::is_copy_assignable_v<decltype(captures)> && !std::is_copy_assignable_v<decltype(near)>);
  const mha::Config config{.d_model = 6, .num_heads = 3, .head_dim = 4};
  auto owns = mha::make_attention<double>(config, captures, near);
  mha::MultiHeadAttention<double> given(config);
  mha::MultiHeadAttention<double, mha::Cpu, Fixed> expected(config, Fixed{slope});
  owns.initialize(mha::XavierUniform{.seed = 7});
  given.borrow(owns);
  expected.borrow(owns);
  const auto x = support::random_rows("x", 2, 6, 6), dy = support::random_rows("dy", 2, 6, 6);
  const auto run = [&](const auto& layer, const auto&... policies) {
    auto tape = layer.tape();
    auto g = layer.gradients();
    EXPECT_EQ(support::differing(layer(x, tape, policies...), layer(x, policies...)), 0u);
    const auto dx = layer.backward(dy, tape, g);
    mha::Tensor<double, 1> weights(static_cast<Index>(g.flat().size()));
    std::copy(g.flat().begin(), g.flat().end(), weights.begin());
    return std::pair(dx, weights);
  };
  const auto want = run(expected, mha::SlidingWindow{.left = 2, .right = 100});
  for (const auto& found : {run(owns), run(given, captures, near)}) {
    EXPECT_EQ(support::differing(found.first, want.first), 0u);
    EXPECT_EQ(support::differing(found.second, want.second), 0u);
  }
}

/// ScoreGradient of a call's score against difference quotients, in double.
template <class B, class... Own, class Score, class... Extra>
void expect_score_of_call(const char* name, const Score& score, const std::tuple<Own...>& own, const Extra&... extra) {
  SCOPED_TRACE(name);
  auto layer = std::apply(
      [](const auto&... policies) {
        return mha::MultiHeadAttention<double, B, mha::Causal, Own...>({.d_model = 6, .num_heads = 3, .head_dim = 4},
                                                                       policies...);
      },
      own);
  layer.initialize(mha::XavierUniform{.seed = 7});
  const auto x = support::random_rows(std::string(name) + " x", 2, 6, 6);
  const auto dy = support::random_rows(std::string(name) + " dy", 2, 6, 6);
  auto tape = layer.tape();
  auto g = layer.gradients(), alone = layer.gradients();
  static_cast<void>(layer(x, tape, score, extra...));
  const auto without = layer.backward(dy, tape, alone);
  Score d = score;  // whose numbers are written, not added to
  const auto dx = layer.backward(dy, tape, g, mha::ScoreGradient(d));
  EXPECT_LT(support::largest_difference(dx, without), 1e-14);
  for (std::size_t i = 0; i < g.flat().size(); ++i) EXPECT_NEAR(g.flat()[i], alone.flat()[i], 1e-13);
  mha::detail::for_each_numbers(g.score, alone.score, [](const auto& a, const auto& b) {
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6 * (1 + std::abs(b[i])));
  });
  Score changed = score;
  std::vector<double> found;
  mha::detail::for_each_numbers(d, std::as_const(d), [&](const auto& numbers, const auto&) {
    found.insert(found.end(), numbers.begin(), numbers.end());
  });
  ASSERT_FALSE(found.empty());
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto change = [&](double by) {
      std::size_t first = 0;
      mha::detail::for_each_numbers(changed, std::as_const(changed), [&](const auto& numbers, const auto&) {
        if (i >= first && i < first + numbers.size())
          numbers[i - first] += static_cast<std::remove_cvref_t<decltype(numbers[0])>>(by);
        first += numbers.size();
      });
    };
    const auto quotient = [&](double step) {
      const auto loss = [&] { return support::inner(dy, layer(x, changed, extra...)); };
      change(step);
      const double up = loss();
      change(-2 * step);
      const double down = loss();
      change(step);
      return (up - down) / (2 * step);
    };
    const double expected = (4 * quotient(0x1p-7) - quotient(0x1p-6)) / 3;
    EXPECT_NEAR(found[i], expected, 2e-7 * (1 + std::abs(expected))) << i;
    largest = std::max(largest, std::abs(found[i]));
  }
  EXPECT_GT(largest, 0);  // of one number, as a cap's, it may be small
}

template <class B> void expect_scores_of_calls() {
  const BentScore<double> bent{0.5, 0.25};
  const TableScore<4> steps{{0.5, 0, 1, -1}};
  const mha::AlibiSlopes slopes({0.5f, 0.25f, 0.125f});
  const mha::RelativeBias table(std::vector<float>{0.5f, 0, 1, -1, 0.25f, 2, 0.5f, 0, 1, -1, 0.25f, 2},
                                {.count = 4, .max_distance = 6});
  expect_score_of_call<B>("a functor", bent, std::tuple());
  expect_score_of_call<B>("a cap", mha::SoftCap{2.f}, std::tuple());
  expect_score_of_call<B>("a table that accumulates", steps, std::tuple());
  expect_score_of_call<B>("beside a trained score of the layer", bent, std::tuple(slopes));
  expect_score_of_call<B>("a table beside a table", table, std::tuple(table));
  expect_score_of_call<B>("a table beside one that accumulates", steps, std::tuple(steps));
  expect_score_of_call<B>("beside a score of the layer that has no numbers", bent, std::tuple(mha::Alibi{}));
  expect_score_of_call<B>("several", mha::Chain{bent, slopes}, std::tuple(bent));
}

TEST(LayerCallScoreGradient, IsComputedWhereItIsAskedForAlone) {
  using mha::detail::WantedOfCall;
  using Head = decltype(mha::at_head(mha::prepared(mha::AlibiSlopes({1.f}), mha::CallShape{}), 0, 0));
  using Both = mha::Chain<Head, mha::Chain<BentScore<float>, TableScore<4>>>;
  using OfLayer = typename WantedOfCall<mha::AlibiSlopes, decltype(Both::second), false, true, false>::type;
  using OfCall = typename WantedOfCall<mha::AlibiSlopes, decltype(Both::second), false, false, true>::type;
  using OfAll = typename WantedOfCall<mha::AlibiSlopes, decltype(Both::second), false, true, true>::type;
  EXPECT_EQ((mha::detail::Slots<OfLayer, Both>::count()), 1);
  EXPECT_EQ((mha::detail::Accumulating<OfLayer, Both>::count()), 0);
  EXPECT_EQ((mha::detail::Slots<OfCall, Both>::count()), 2);
  EXPECT_EQ((mha::detail::Accumulating<OfCall, Both>::count()), 1);
  EXPECT_EQ((mha::detail::Slots<OfAll, Both>::count()), 3);
}

TEST(LayerCallScoreGradient, OnTheReferenceEqualsDifferenceQuotients) { expect_scores_of_calls<mha::Reference>(); }
TEST(LayerCallScoreGradient, OnTheProcessorEqualsDifferenceQuotients) { expect_scores_of_calls<mha::Cpu>(); }

// One gradient is a sum that may cancel, so the error is measured against the size of several of them.
TEST(LayerCallScoreGradient, OnSystolicIsNearTheReferences) {
  const mha::Config config{.d_model = 32, .num_heads = 2};
  mha::MultiHeadAttention<float, mha::Systolic<>, mha::Causal> layer(config);
  mha::MultiHeadAttention<float, mha::Reference, mha::Causal> oracle(config);
  layer.initialize(mha::XavierUniform{.seed = 7});
  oracle.borrow(layer);
  const auto x = support::random_rows<float>("systolic x", 2, 40, 32);
  const BentScore<float> score{0.5f, 0.25f};
  const auto gradient = [&](const auto& of, const mha::Tensor<float, 3>& dy) {
    BentScore<float> d = score;
    auto tape = of.tape();
    auto g = of.gradients();
    static_cast<void>(of(x, tape, score));
    static_cast<void>(of.backward(dy, tape, g, mha::ScoreGradient(d)));
    return d;
  };
  double slope = 0, slope_error = 0, bend = 0, bend_error = 0;
  for (int i = 0; i < 16; ++i) {
    const auto dy = support::random_rows<float>("dy " + std::to_string(i), 2, 40, 32);
    const BentScore<float> found = gradient(layer, dy), expected = gradient(oracle, dy);
    slope = std::hypot(slope, expected.slope);
    bend = std::hypot(bend, expected.bend);
    slope_error = std::hypot(slope_error, found.slope - expected.slope);
    bend_error = std::hypot(bend_error, found.bend - expected.bend);
  }
  EXPECT_LE(slope_error, 0.05 * slope);
  EXPECT_LE(bend_error, 0.05 * bend);
}

TEST(LayerCallScoreGradient, BesideABiasGradient) {
  mha::MultiHeadAttention<double, mha::Cpu, mha::AlibiSlopes> layer({.d_model = 6, .num_heads = 2},
                                                                    mha::AlibiSlopes({0.5f, 0.25f}));
  layer.initialize(mha::XavierUniform{.seed = 7});
  const auto x = support::random_rows("x", 1, 5, 6), dy = support::random_rows("dy", 1, 5, 6);
  mha::Tensor<double, 4> bias(1, 2, 5, 5), d_bias(1, 2, 5, 5), d_alone(1, 2, 5, 5);
  support::Random("bias").fill(bias);
  auto tape = layer.tape();
  auto g = layer.gradients(), alone = layer.gradients();
  BentScore<double> d{}, d_score_alone{};
  static_cast<void>(layer(x, tape, BentScore<double>{0.5, 0.25}, mha::AdditiveBias{bias}));
  static_cast<void>(layer.backward(dy, tape, g, mha::ScoreGradient(d), mha::BiasGradient(d_bias)));
  static_cast<void>(layer.backward(dy, tape, alone, mha::ScoreGradient(d_score_alone)));
  static_cast<void>(layer.backward(dy, tape, alone, mha::BiasGradient(d_alone)));
  EXPECT_NEAR(d.slope, d_score_alone.slope, 1e-12);
  EXPECT_NEAR(d.bend, d_score_alone.bend, 1e-12);
  EXPECT_LT(support::largest_difference(d_bias, d_alone), 1e-13);
  EXPECT_GT(std::hypot(d.slope, d.bend), 1e-3);
}

TEST(LayerTape, ResultsOverlapNoAdditiveBiasOfTheCall) {
  mha::MultiHeadAttention<float> layer({.d_model = 4, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 7});
  const auto x = support::random_rows<float>("bias x", 1, 3, 4),
             memory = support::random_rows<float>("bias m", 1, 3, 4);
  mha::Tensor<float, 1> numbers(20);
  std::fill(numbers.begin(), numbers.end(), 0.f);
  const auto bias = mha::view(numbers.data(), 3, 3);
  const auto over = mha::view(numbers.data() + 8, 1, 3, 4);
  mha::Tensor<float, 3> apart(1, 3, 4), other(1, 3, 4);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, memory, tape, mha::AdditiveBias(bias), mha::SoftCap{2.f}));
  const auto refusal = [&](const auto& dx, const auto& d_memory) {
    return support::message_of([&] { layer.backward(x, tape, g, mha::into(dx), mha::memory_into(d_memory)); });
  };
  const std::string overlaps = " overlaps the AdditiveBias of the call on the tape";
  EXPECT_EQ(refusal(over, apart.view()), "backward: dx" + overlaps);
  EXPECT_EQ(refusal(apart.view(), over), "backward: d_memory" + overlaps);
  for (const float sum : g.flat()) EXPECT_EQ(sum, 0);
  EXPECT_EQ(refusal(apart.view(), other.view()), "");
}

TEST(LayerCallScoreGradient, OverlapsNothingElse) {
  using Layer = mha::MultiHeadAttention<float, mha::Cpu, BentScore<float>>;
  Layer layer({.d_model = 4, .num_heads = 2}, BentScore<float>{0.5f, 0.25f});
  layer.initialize(mha::XavierUniform{.seed = 7});
  const auto x = support::random_rows<float>("x", 1, 3, 4), dy = support::random_rows<float>("dy", 1, 3, 4);
  mha::Tensor<float, 3> dx(1, 3, 4);
  auto tape = layer.tape();
  auto g = layer.gradients();
  static_cast<void>(layer(x, tape, BentScore<float>{0.25f, 0.5f}));
  const auto refusal = [&](BentScore<float>& to) {
    return support::message_of([&] { layer.backward(dy, tape, g, mha::into(dx), mha::ScoreGradient(to)); });
  };
  EXPECT_EQ(refusal(g.score), "backward: the ScoreGradient overlaps the gradients of the layer's score");
  EXPECT_EQ(refusal(*reinterpret_cast<BentScore<float>*>(dx.data())), "backward: the ScoreGradient overlaps dx");
  const auto p = layer.parameters();
  EXPECT_EQ(refusal(*reinterpret_cast<BentScore<float>*>(const_cast<float*>(p.output.weight.data))),
            "backward: the ScoreGradient overlaps the parameter 'output'");
  EXPECT_EQ(g.score.slope, 0);
  BentScore<float> apart{};
  EXPECT_EQ(refusal(apart), "");
  EXPECT_NE(g.score.slope, 0);
  EXPECT_NE(apart.slope, g.score.slope);
}

TEST(LayerCallScoreGradient, IsRefusedWhereTheCallHadNone) {
  mha::MultiHeadAttention<float> layer({.d_model = 4, .num_heads = 2});
  layer.initialize(mha::XavierUniform{.seed = 7});
  const auto x = support::random_rows<float>("x", 1, 3, 4), dy = support::random_rows<float>("dy", 1, 3, 4);
  auto tape = layer.tape();
  auto g = layer.gradients();
  BentScore<float> d{3, 4};
  const auto refusal = [&] {
    return support::message_of([&] { static_cast<void>(layer.backward(dy, tape, g, mha::ScoreGradient(d))); });
  };
  const std::string none =
      "backward: ScoreGradient is given, but the call on the tape has no score that can be trained";
  static_cast<void>(layer(x, tape));
  EXPECT_EQ(refusal(), none);
  static_cast<void>(layer(x, tape, Fixed{1.f}));
  EXPECT_EQ(refusal(), none);
  static_cast<void>(layer(x, tape, mha::SoftCap{2.f}));
  EXPECT_EQ(refusal(), "backward: the ScoreGradient has another type than the trained score of the call on the tape");
  for (const float number : g.flat()) EXPECT_EQ(number, 0);
  EXPECT_EQ(d.slope, 3);
  static_cast<void>(layer(x, tape, BentScore<float>{0.5f, 0.25f}));
  EXPECT_EQ(refusal(), "");
  EXPECT_NE(d.slope, 3);
}

}  // namespace
