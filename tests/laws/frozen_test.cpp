// SPDX-License-Identifier: Apache-2.0
// What a backward pass computes of rows does not depend on whether gradients of weights are wanted, nor on where the
// weights are: in rows, packed, or in 16 bits.
#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>
#include <mha/mha.hpp>
#include <mha/policy/score/additive_bias.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"
#include "trained_scores.hpp"

namespace {

using mha::Index;
using support::message_of;
template <class T> using Rows = mha::Tensor<T, 3>;

/// A backend that packs and has no way back.
struct KeepsPacked : mha::Cpu {
  void unpack() const = delete;
};
using Narrow = mha::Systolic<>;
using Exact = mha::Systolic<mha::AmxArray, mha::HighestPrecision>;

template <class B, class S> struct On {
  using Backend = B;
  using T = S;
};
template <class Setup> class Frozen : public testing::Test {};
using Setups = testing::Types<On<mha::Cpu, float>, On<mha::Cpu, mha::bfloat16>, On<Narrow, float>, On<Exact, float>,
                              On<mha::Reference, double>>;
TYPED_TEST_SUITE(Frozen, Setups, );

template <class T> Rows<T> drawn(const std::string& stream, Index b, Index l, Index e) {
  Rows<T> x(b, l, e);
  support::Random(stream).fill(x);
  return x;
}
template <class Block> void draw(Block& block, const std::string& stream) {
  support::Random random(stream);
  block.update([&](auto& p) {
    for (auto& w : p.flat()) w = random.rounded<std::remove_reference_t<decltype(w)>>(0.3 * random.normal());
  });
}

/// The results of a call and of its backward pass, over poison.
template <class T> struct Results {
  Rows<T> y, dx, d_memory;
  std::vector<mha::Accumulator<T>> gradients;
};
/// call(y, tape, workspace) and back(dx, d_memory, tape, workspace, gradients…) twice, the second time without
/// allocating.
template <bool learns, class T, class Block, class Call, class Back>
Results<T> results(const Block& block, const Results<T>& like, const Call& call, const Back& back) {
  Results<T> r{like.y, like.dx, like.d_memory, {}};
  auto tape = block.tape();
  auto gradients = block.gradients();
  mha::Workspace workspace;
  int allocations = 0;
  for (int step = 0; step < 2; ++step) {
    for (Rows<T>* rows : {&r.y, &r.dx, &r.d_memory}) support::poison_all(*rows);
    call(r.y, tape, workspace);
    if constexpr (learns)
      back(r.dx, r.d_memory, tape, workspace, gradients);
    else
      back(r.dx, r.d_memory, tape, workspace);
    if (step == 0) allocations = workspace.allocations();
    EXPECT_EQ(workspace.allocations(), allocations);
  }
  r.gradients.assign(gradients.memory().data, gradients.memory().data + gradients.memory().extent[0]);
  return r;
}
template <class T> void expect_same(const Results<T>& a, const Results<T>& b) {
  EXPECT_EQ(support::differing(a.y, b.y), 0u);
  EXPECT_EQ(support::differing(a.dx, b.dx), 0u);
  EXPECT_EQ(support::differing(a.d_memory, b.d_memory), 0u);
}

/// A block gives the same with and without gradients, and when only its packed weights are left.
template <class T, class Block, class... CallAndBack>
void expect_frozen(const std::string& what, Block& block, const Results<T>& like, const CallAndBack&... f) {
  SCOPED_TRACE(what);
  const auto learned = results<true>(block, like, f...);
  const auto frozen = results<false>(block, like, f...);
  expect_same(learned, frozen);
  EXPECT_TRUE(std::any_of(learned.gradients.begin(), learned.gradients.end(), [](auto d) { return d != 0; }));
  EXPECT_TRUE(std::all_of(frozen.gradients.begin(), frozen.gradients.end(), [](auto d) { return d == 0; }));
  if constexpr (requires { block.drop_unpacked(); }) {
    if (std::is_same_v<typename Block::Workspace, mha::Workspace> && message_of([&] { block.drop_unpacked(); }) == "") {
      const auto packed = results<true>(block, like, f...);
      expect_same(learned, packed);
      EXPECT_EQ(learned.gradients, packed.gradients);
      expect_same(learned, results<false>(block, like, f...));
    }
  }
}

TYPED_TEST(Frozen, LayersHandBackTheSameGradientsOfRows) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  using Layer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<2>, mha::QkNorm, mha::GatedHeads, mha::Sink,
                                        mha::Rotary<>, support::BentScore<float>>;
  const mha::Config config{
      .d_model = 37, .num_heads = 4, .head_dim = 18, .value_dim = 11, .kv_model = 21, .bias = true};
  Layer across(config, mha::Sink({0.5f, -1.f, 0.25f, 2.f}), support::BentScore<float>{0.3f, 0.2f});
  draw(across, "across");
  const auto x = drawn<T>("x", 2, 19, 37), memory = drawn<T>("memory", 2, 33, 21), dy = drawn<T>("dy", 2, 19, 37);
  const auto bias = drawn<float>("bias", 4, 19, 33);
  expect_frozen<T>(
      "a memory", across, {Rows<T>(2, 19, 37), Rows<T>(2, 19, 37), Rows<T>(2, 33, 21), {}},
      [&](auto& y, auto& tape, auto& workspace) {
        across(x, memory, tape, mha::into(y), workspace, mha::AdditiveBias{bias});
      },
      [&](auto& dx, auto& d_memory, auto& tape, auto& workspace, auto&... gradients) {
        mha::Tensor<mha::Accumulator<T>, 3> d_bias(4, 19, 33);
        across.backward(dy, tape, mha::into(dx), gradients..., mha::memory_into(d_memory), workspace,
                        mha::BiasGradient(d_bias));
        EXPECT_TRUE(std::any_of(d_bias.begin(), d_bias.end(), [](auto d) { return d != 0; }));
      });

  mha::MultiHeadAttention<T, B, mha::MultiHead, mha::PerHeadProjection, mha::NoOutput, mha::Causal> bare(
      {.d_model = 20, .num_heads = 5});
  draw(bare, "bare");
  const auto rows = drawn<T>("rows", 3, 40, 20);
  expect_frozen<T>(
      "heads of their own", bare, {Rows<T>(3, 40, 20), Rows<T>(3, 40, 20), Rows<T>(1, 1, 1), {}},
      [&](auto& y, auto& tape, auto& workspace) { bare(rows, tape, mha::into(y), workspace); },
      [&](auto& dx, auto& nothing, auto& tape, auto& workspace, auto&... gradients) {
        nothing(0, 0, 0) = T(0);
        bare.backward(rows, tape, gradients..., mha::into(dx), workspace);
      });
}

TYPED_TEST(Frozen, BlocksHandBackTheSameGradientsOfRows) {
  using B = typename TypeParam::Backend;
  using T = typename TypeParam::T;
  const auto x = drawn<T>("x", 2, 41, 35), dy = drawn<T>("dy", 2, 41, 35), d_wide = drawn<T>("d_wide", 2, 41, 70);
  const Results<T> like{Rows<T>(2, 41, 35), Rows<T>(2, 41, 35), Rows<T>(1, 1, 1), {}};
  const auto expect = [&](const std::string& what, auto& block, const Rows<T>& d, const Results<T>& of) {
    expect_frozen<T>(
        what, block, of, [&](auto& y, auto& tape, auto& workspace) { block(x, tape, mha::into(y), workspace); },
        [&](auto& dx, auto& nothing, auto& tape, auto& workspace, auto&... gradients) {
          nothing(0, 0, 0) = T(0);
          block.backward(d, tape, mha::into(dx), workspace, gradients...);
        });
  };
  mha::FeedForward<T, B, mha::SwiGlu> gated({.d_model = 35, .d_hidden = 67, .bias = true});
  draw(gated.up(), "up"), draw(gated.down(), "down");
  expect("gated", gated, dy, like);
  mha::Linear<T, B> wide({.inputs = 35, .outputs = 70});
  draw(wide, "wide");
  expect("wide", wide, d_wide, {Rows<T>(2, 41, 70), Rows<T>(2, 41, 35), Rows<T>(1, 1, 1), {}});
  mha::Linear<T, B, mha::Gelu> gelu({.inputs = 35, .outputs = 35, .bias = false});
  draw(gelu, "gelu");
  expect("gelu", gelu, dy, like);
  mha::LayerNorm<T, B> norm({.width = 35});
  draw(norm, "norm");
  expect("LayerNorm", norm, dy, like);
  mha::RmsNorm<T, B> root({.width = 35});
  draw(root, "root");
  expect("RmsNorm", root, dy, like);
}

/// Weights of W under T and those widened have the same bits of results and gradients.
template <class B, class W> void expect_as_wide() {
  mha::Linear<W, mha::Cpu, mha::SwiGlu> lender({.inputs = 70, .outputs = 45});
  draw(lender, "narrow");
  const auto& views = lender.parameters();
  mha::Linear<float, B, mha::SwiGlu> narrow({.inputs = 70, .outputs = 45}), wide({.inputs = 70, .outputs = 45});
  narrow.borrow(views);
  wide.update([&](auto& p) {
    for (std::size_t i = 0; i < p.flat().size(); ++i) p.flat()[i] = float(views.flat()[i]);
  });
  const auto run = [](const auto& block, const Rows<float>& x, const Rows<float>& dy) {
    return results<true>(
        block, Results<float>{dy, x, Rows<float>(1, 1, 1), {}},
        [&](auto& y, auto& tape, auto& workspace) { block(x, tape, mha::into(y), workspace); },
        [&](auto& dx, auto& nothing, auto& tape, auto& workspace, auto& gradients) {
          nothing(0, 0, 0) = 0;
          block.backward(dy, tape, gradients, mha::into(dx), workspace);
        });
  };
  const auto x = drawn<float>("x", 1, 50, 70), dy = drawn<float>("dy", 1, 50, 45);
  const auto of_narrow = run(narrow, x, dy), of_wide = run(wide, x, dy);
  expect_same(of_narrow, of_wide);
  EXPECT_EQ(of_narrow.gradients, of_wide.gradients);

  const mha::Config config{.d_model = 33, .num_heads = 3, .head_dim = 12, .bias = true};
  mha::MultiHeadAttention<W, mha::Cpu, mha::QkNorm, mha::GatedHeads> owner(config);
  draw(owner, "narrow layer");
  mha::MultiHeadAttention<float, B, mha::QkNorm, mha::GatedHeads> thin(config), thick(config);
  thin.borrow(std::as_const(owner).parameters());
  thick.update([&](auto& p) {
    const auto numbers = std::as_const(owner).parameters().flat();
    for (std::size_t i = 0; i < p.flat().size(); ++i) p.flat()[i] = float(numbers[i]);
  });
  const auto rows = drawn<float>("rows", 2, 21, 33), d_rows = drawn<float>("d_rows", 2, 21, 33);
  const auto of_thin = run(thin, rows, d_rows), of_thick = run(thick, rows, d_rows);
  expect_same(of_thin, of_thick);
  EXPECT_EQ(of_thin.gradients, of_thick.gradients);
}
TEST(FrozenWeights, InSixteenBitsAreAsTheSameNumbersInFloat) {
  expect_as_wide<mha::Cpu, mha::bfloat16>();
  expect_as_wide<mha::Cpu, mha::half>();
  expect_as_wide<Exact, mha::bfloat16>();
  expect_as_wide<mha::Reference, mha::half>();
}

/// Weights of W rounded to Q, and the same numbers in float, as another backend rounds them.
template <class Q, class B, class W> void expect_as_rounded() {
  mha::FeedForward<W, mha::Cpu, mha::SwiGlu> lender({.d_model = 300, .d_hidden = 270});
  draw(lender.up(), "up of integers");
  draw(lender.down(), "down of integers");
  mha::FeedForward<float, B, mha::SwiGlu> narrow({.d_model = 300, .d_hidden = 270}), wide(narrow.config());
  mha::FeedForward<float, mha::Reference, mha::SwiGlu> elsewhere(narrow.config());
  narrow.template quantize<Q>(std::as_const(lender).parameters());
  elsewhere.template quantize<Q>(std::as_const(lender).parameters());
  wide.borrow(elsewhere.parameters());
  const auto run = [](const auto& block, const Rows<float>& x, const Rows<float>& dy) {
    return results<true>(
        block, Results<float>{dy, x, Rows<float>(1, 1, 1), {}},
        [&](auto& y, auto& tape, auto& workspace) { block(x, tape, mha::into(y), workspace); },
        [&](auto& dx, auto& nothing, auto& tape, auto& workspace, auto& gradients) {
          nothing(0, 0, 0) = 0;
          block.backward(dy, tape, gradients, mha::into(dx), workspace);
        });
  };
  const auto x = drawn<float>("x", 2, 21, 300), dy = drawn<float>("dy", 2, 21, 300);
  const auto of_narrow = run(narrow, x, dy), of_wide = run(wide, x, dy);
  expect_same(of_narrow, of_wide);
  EXPECT_EQ(of_narrow.gradients, of_wide.gradients);
}
TEST(FrozenWeights, InEightBitsAreAsTheSameNumbersInFloat) {
  expect_as_rounded<mha::scaled_int8, mha::Cpu, float>();
  expect_as_rounded<mha::scaled_int8, mha::Cpu, mha::bfloat16>();
  expect_as_rounded<mha::scaled_int8, mha::Cpu, mha::half>();
}

TEST(FrozenWeights, InFourBitsAreAsTheSameNumbersInFloat) {
  expect_as_rounded<mha::scaled_int4, mha::Cpu, float>();
  expect_as_rounded<mha::scaled_int4, mha::Cpu, mha::bfloat16>();
  expect_as_rounded<mha::scaled_int4, mha::Cpu, mha::half>();
}

TEST(FrozenWeights, ThatABackendDoesNotUnpackAreRefused) {
  const auto x = drawn<float>("x", 1, 5, 8);
  const auto refused = [&](auto& block, const std::string& call, const std::string& back, const std::string& of) {
    block.initialize(mha::XavierUniform{.seed = 1});
    auto tape = block.tape();
    static_cast<void>(block(x, tape));
    block.drop_unpacked();
    const std::string why = of + " parameters only the packed ones are left, which Cpu does not unpack";
    EXPECT_EQ(message_of([&] { static_cast<void>(block(x, tape)); }), call + why);
    EXPECT_EQ(message_of([&] { static_cast<void>(block.backward(x, tape)); }), "backward" + back + why);
  };
  mha::Linear<float, KeepsPacked> linear({.inputs = 8, .outputs = 8});
  refused(linear, "linear", "", ": of the Linear's 72");
  mha::FeedForward<float, KeepsPacked> feed_forward({.d_model = 8, .d_hidden = 4});
  refused(feed_forward, "feed_forward: up()", ": up()", ": of the Linear's 36");
  mha::MultiHeadAttention<float, KeepsPacked> layer({.d_model = 8, .num_heads = 2});
  refused(layer, "layer", "", ": of the layer's 256");
}

}  // namespace
