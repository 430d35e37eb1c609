// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <Eigen/Core>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/interop/eigen.hpp>
#include <mha/layer/multi_head_attention.hpp>
#include <mha/policy/mask/padding.hpp>
#include <mha/policy/mask/positional.hpp>
#include <mha/policy/score/alibi.hpp>
#include <mha/policy/score/softcap.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace {

using Tensor3 = mha::Tensor<float, 3>;

Tensor3 input(int batch = 2, int length = 9, int width = 24) {
  support::Random random("input");
  Tensor3 x(batch, length, width);
  random.fill(x);
  return x;
}

const mha::Config config{.d_model = 24, .num_heads = 4, .bias = true};

/// The canonical layer that a MultiHeadAttention is.
template <class... A> mha::Layer<A...> canonical(const mha::Layer<A...>&);
template <class M> using Layer = decltype(canonical(std::declval<const M&>()));

// Policies in the type, in any order, name one and the same layer.
TEST(MultiHeadAttention, TheOrderOfPoliciesDoesNotMatter) {
  using mha::Cpu;
  using A = mha::MultiHeadAttention<float, Cpu, mha::GroupedQuery<2>, mha::Causal, mha::Alibi, mha::PerHeadProjection,
                                    mha::ConcatHeads, mha::NoOutput>;
  using B = mha::MultiHeadAttention<float, Cpu, mha::NoOutput, mha::Alibi, mha::PerHeadProjection, mha::Causal,
                                    mha::GroupedQuery<2>, mha::ConcatHeads>;
  static_assert(std::is_same_v<Layer<A>, Layer<B>>);
  A a(config);
  B b(config);
  a.initialize(mha::XavierUniform{.seed = 3});
  b.initialize(mha::XavierUniform{.seed = 3});
  const Tensor3 x = input();
  EXPECT_EQ(support::differing(a(x), b(x)), 0U);
}

TEST(MultiHeadAttention, DefaultsAreThePlainLayer) {
  using Plain = mha::MultiHeadAttention<float>;
  using Spelled =
      mha::MultiHeadAttention<float, mha::Cpu, mha::MultiHead, mha::Full, mha::NoScore, mha::NoSink, mha::NoNorm,
                              mha::NoPosition, mha::FusedProjection, mha::ConcatHeads, mha::LinearOutput>;
  static_assert(std::is_same_v<Layer<Plain>, Layer<Spelled>>);
  const Plain plain({.d_model = 512, .num_heads = 8});
  EXPECT_EQ(plain.parameter_count(), 1048576);  // Transformer base, published
  const mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<8>> llama(
      {.d_model = 4096, .num_heads = 32, .head_dim = 128});
  EXPECT_EQ(llama.parameter_count(), 41943040);  // Llama-3.1 8B, published
}

// Constructor values, in any order: each goes to its role.
TEST(MultiHeadAttention, ValuesOfPoliciesInAnyOrder) {
  using Local = mha::MultiHeadAttention<float, mha::Cpu, mha::SlidingWindow, mha::SoftCap>;
  const mha::SlidingWindow window{.left = 2, .right = 1};
  const mha::SoftCap cap{0.3f};
  Local a(config, window, cap), b(config, cap, window);
  mha::MultiHeadAttention<float, mha::Cpu> plain(config);
  const mha::XavierUniform draw{.seed = 3, .gain = 3};
  a.initialize(draw);
  b.initialize(draw);
  plain.initialize(draw);
  const Tensor3 x = input();
  const Tensor3 y = a(x);
  EXPECT_EQ(support::differing(y, b(x)), 0U);
  EXPECT_EQ(support::differing(y, plain(x, cap, window)), 0U);
  EXPECT_NE(support::differing(y, plain(x)), 0U);
  // Without a value a policy is its default.
  mha::MultiHeadAttention<float, mha::Cpu, mha::SlidingWindow, mha::Alibi> alibi(config, window);
  alibi.initialize(draw);
  EXPECT_EQ(support::differing(alibi(x), plain(x, mha::Alibi{}, window)), 0U);
}

TEST(MultiHeadAttention, CallExtrasInAnyOrderGiveTheSameBits) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> layer(config);
  layer.initialize(mha::XavierUniform{.seed = 3});
  const Tensor3 x = input();
  const int lengths[] = {5, 9};
  const mha::Padding padding{{lengths, 2}};
  const mha::SoftCap cap{2.f};
  mha::Workspace workspace;
  Tensor3 y(2, 9, 24), z(2, 9, 24), lse(2, 4, 9), other_lse(2, 4, 9);
  layer(x, padding, cap, mha::into(y), workspace, mha::LogSumExp{lse});
  layer(x, mha::LogSumExp{other_lse}, mha::into(z), workspace, cap, padding);
  EXPECT_EQ(support::differing(y, z), 0U);
  EXPECT_EQ(support::differing(lse, other_lse), 0U);
  EXPECT_EQ(support::differing(layer(x, padding && mha::Full{}, cap), y), 0U);
}

// A policy of the user's own: a struct in the type, a lambda by make_attention.
struct EveryOther {
  bool operator()(int, int, int q, int k) const { return k <= q && (q - k) % 2 == 0; }
};
struct Distance {
  float slope = 0.25f;
  template <class S> S operator()(S s, int, int, int q, int k) const { return s - slope * float(mha::abs(q - k)); }
};

TEST(MultiHeadAttention, TakesTheUsersFunctors) {
  mha::MultiHeadAttention<float, mha::Cpu, EveryOther, Distance> typed(config, Distance{.slope = 0.5f});
  auto made = mha::make_attention<float>(
      config, mha::score([](auto s, int, int, int q, int k) { return s - 0.5f * float(mha::abs(q - k)); }),
      mha::mask([](auto, auto, auto q, auto k) { return k <= q && (q - k) % 2 == 0; }));
  auto grouped = mha::make_attention<float, mha::CpuWith<mha::Serial>>(
      {.d_model = 24, .num_heads = 4, .num_kv_heads = 2, .bias = true}, mha::GroupedQuery<mha::Dynamic>{}, EveryOther{},
      Distance{.slope = 0.5f});
  typed.initialize(mha::XavierUniform{.seed = 3});
  made.initialize(mha::XavierUniform{.seed = 3});
  grouped.initialize(mha::XavierUniform{.seed = 3});
  const Tensor3 x = input();
  const auto w = typed.attention_weights(x);
  for (int i = 0; i < 9; ++i)
    for (int k = 0; k < 9; ++k) EXPECT_EQ(w(0, 0, i, k) > 0, k <= i && (i - k) % 2 == 0);
  const Tensor3 y = typed(x);
  EXPECT_EQ(support::differing(made(x), y), 0U);
  EXPECT_EQ(grouped.config().num_kv_heads, 2);
  EXPECT_EQ(grouped(x).size(), y.size());
}

TEST(MultiHeadAttention, EveryScalarOfStorage) {
  mha::MultiHeadAttention<double, mha::Cpu, mha::Causal> exact(config);
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> single(config);
  mha::MultiHeadAttention<mha::bfloat16, mha::Cpu, mha::Causal> brain(config);
  mha::MultiHeadAttention<mha::half, mha::Cpu, mha::Causal> half(config);
  const mha::XavierUniform draw{.seed = 3};
  exact.initialize(draw);
  single.initialize(draw);
  brain.initialize(draw);
  half.initialize(draw);
  const Tensor3 x = input();
  const auto error = [&](const auto& layer, auto zero) {
    using T = decltype(zero);
    mha::Tensor<T, 3> rounded(2, 9, 24);
    mha::Tensor<double, 3> widened(2, 9, 24);
    for (std::size_t i = 0; i < x.size(); ++i) {
      rounded.data()[i] = static_cast<T>(x.data()[i]);
      widened.data()[i] = static_cast<double>(rounded.data()[i]);
    }
    return support::largest_difference(layer(rounded), exact(widened));
  };
  // The weights are rounded too; outputs are of order 1.
  EXPECT_LT(error(single, 0.f), 1e-5);
  EXPECT_LT(error(half, mha::half{}), 2e-2);
  EXPECT_LT(error(brain, mha::bfloat16{}), 2e-1);
  EXPECT_GT(error(brain, mha::bfloat16{}), 1e-4);
}

TEST(MultiHeadAttention, CopiesAndMovesAreLayers) {
  mha::MultiHeadAttention<float, mha::Cpu, mha::SlidingWindow> a(config, mha::SlidingWindow{.left = 2});
  a.initialize(mha::XavierUniform{.seed = 3});
  const Tensor3 x = input();
  const Tensor3 y = a(x);
  auto b = a;
  a.update([](auto& p) {
    for (float& w : p.flat()) w = 0;
  });
  EXPECT_EQ(support::differing(b(x), y), 0U);
  const auto c = std::move(b);
  EXPECT_EQ(support::differing(c(x), y), 0U);
}

/// A backend with data, whose default a layer is given.
struct Numbered : mha::Reference {
  std::int64_t number = 7;
};

/// A policy of a user's own whose value may be wrong in its type already.
template <int Step> struct EveryNth {
  bool operator()(int, int, int q, int k) const { return (q - k) % Step == 0; }
  void check(mha::Index heads) const {
    mha::detail::require(Step > 0, "EveryNth: the step of ", heads, " heads is ", Step, ", it must be at least 1");
  }
};

TEST(MultiHeadAttention, RefusesAPolicyOutOfRangeWhenItIsMade) {
  using mha::Cpu, mha::SlidingWindow, mha::SoftCap;
  using support::message_of;
  const char* const window = "SlidingWindow: left is -2, it must be at least 0";
  const char* const cap = "SoftCap: cap is -2, it must be a positive finite number";
  EXPECT_EQ(message_of([] { mha::MultiHeadAttention<float, Cpu, SlidingWindow>(config, SlidingWindow{.left = -2}); }),
            window);
  EXPECT_EQ(message_of([] { mha::MultiHeadAttention<float, Cpu, SoftCap>(config, SoftCap{-2.f}); }), cap);
  EXPECT_EQ(message_of([] {
              static_cast<void>(mha::make_attention<float>(config, mha::Causal{} && SlidingWindow{.left = -2}));
            }),
            window);
  EXPECT_EQ(message_of([] {
              static_cast<void>(mha::make_attention<float>(config, mha::Chain{mha::Alibi{}, SoftCap{-2.f}}));
            }),
            cap);
  EXPECT_EQ(message_of([] { mha::MultiHeadAttention<float, Cpu, EveryNth<-1>>{config}; }),
            "EveryNth: the step of 4 heads is -1, it must be at least 1");
  EXPECT_EQ(message_of([] { mha::MultiHeadAttention<float, Cpu, EveryNth<2>>{config}; }), "");
}

TEST(MultiHeadAttention, HoldsItsBackendAndAnEmptyOneCostsNothing) {
  static_assert(std::is_empty_v<mha::Reference> && std::is_empty_v<mha::CpuWith<mha::Serial>>);
  static_assert(sizeof(mha::MultiHeadAttention<double, Numbered>) ==
                sizeof(mha::MultiHeadAttention<double, mha::Reference>) + sizeof(std::int64_t));
  static_assert(sizeof(mha::MultiHeadAttention<float, mha::Cpu>) ==
                sizeof(mha::MultiHeadAttention<float, mha::CpuWith<mha::Serial>>) + sizeof(mha::ThreadPool));
  const mha::MultiHeadAttention<double, Numbered> by_default({.d_model = 4, .num_heads = 2});
  EXPECT_EQ(by_default.backend().number, 7);
  Numbered given;
  given.number = 9;
  mha::MultiHeadAttention<double, Numbered, mha::SlidingWindow> layer({.d_model = 4, .num_heads = 2}, given,
                                                                      mha::SlidingWindow{.left = 1});
  EXPECT_EQ(layer.backend().number, 9);
  const auto copy = layer;
  EXPECT_EQ(copy.backend().number, 9);
  const auto made = mha::make_attention<double>({.d_model = 4, .num_heads = 2}, mha::Causal{}, given);
  static_assert(std::is_same_v<Layer<std::remove_const_t<decltype(made)>>,
                               Layer<mha::MultiHeadAttention<double, Numbered, mha::Causal>>>);
  EXPECT_EQ(made.backend().number, 9);
}

}  // namespace
