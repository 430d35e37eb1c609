// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/feed_forward.hpp>
#include <mha/block/feed_forward_weights.hpp>
#include <mha/eigen.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "failing_new.hpp"
#include "far_backend.hpp"
#include "four_bits.hpp"
#include "message_of.hpp"
#include "plain_backend.hpp"
#include "random.hpp"
#include "replaced_new.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using support::message_of;

constexpr Index E = 12, H = 20;
constexpr mha::FeedForwardConfig sizes{.d_model = E, .d_hidden = H};
template <class B, class T = float> using Gated = mha::FeedForward<T, B, mha::SwiGlu>;

template <class T> Tensor<T, 2> rows(const char* stream) {
  support::Random random(stream);
  Tensor<T, 2> x(7, E);
  random.fill(x);
  return x;
}

/// Weights of both Linears in memory of a test, the matrices of up as PyTorch stores them, (out, in).
template <class T> struct Weights {
  Tensor<T, 2> up{H, E}, gate{H, E}, down{H, E};
  Tensor<T, 1> up_bias{H}, gate_bias{H}, down_bias{E};

  explicit Weights(const char* stream) {
    support::Random random(stream);
    for (auto* matrix : {&up, &gate, &down}) random.fill(*matrix);
    for (auto* bias : {&up_bias, &gate_bias, &down_bias}) random.fill(*bias);
  }
  mha::BorrowedFeedForward<T> borrowed() const {
    return {.up = {.weight = mha::transposed(up.view()),
                   .bias = up_bias,
                   .gate = mha::transposed(gate.view()),
                   .gate_bias = gate_bias},
            .down = {.weight = down, .bias = down_bias}};
  }
};

/// Writes the numbers of a stream.
auto writes(const char* stream) {
  return [stream](const auto& p) {
    support::Random random(stream);
    for (const auto& row : {p.up.flat(), p.down.flat()})
      for (auto& w : row) w = support::Random::rounded<std::remove_reference_t<decltype(w)>>(random.normal() / 4);
  };
}

TEST(FeedForwardConfig, HasBiasesUnlessToldOtherwise) {
  EXPECT_TRUE((mha::FeedForwardConfig{.d_model = 3, .d_hidden = 4}.bias));
  EXPECT_EQ(mha::FeedForwardConfig{}.d_model, 0);
}

TEST(FeedForwardViews, FlatIsOfOneRowAlone) {
  EXPECT_EQ(message_of([] { mha::FeedForwardViews<float>{}.flat(); }),
            "parameters: flat() has nothing to show, because there are no weights yet (call initialize, update or "
            "borrow), or only those that the backend packed (call borrow)");
  Gated<mha::Cpu> ff(sizes);
  ff.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] { (void)ff.parameters().flat(); }),
            "parameters: flat() has nothing to show, because the weights of up and down are not in one row: read "
            "up.flat() and down.flat()");
  EXPECT_EQ(static_cast<std::int64_t>(ff.gradients().flat().size()), ff.parameter_count());
}

template <class B> class FeedForwardUpdateOn : public testing::Test {};
using Backends = testing::Types<mha::Cpu, mha::CpuWith<mha::Serial>, mha::Systolic<>, mha::Reference, mha::EigenCpu,
                                support::PlainBackend>;
TYPED_TEST_SUITE(FeedForwardUpdateOn, Backends);

TYPED_TEST(FeedForwardUpdateOn, WritesBothAndCallsFollow) {
  Gated<TypeParam> ff(sizes), apart(sizes);
  const auto x = rows<float>("update x");
  for (const char* const stream : {"first", "second"}) {
    ff.update(writes(stream));
    support::Random random(stream);
    const auto draw = [&](auto& p) {
      for (float& w : p.flat()) w = support::Random::rounded<float>(random.normal() / 4);
    };
    apart.up().update(draw);
    apart.down().update(draw);
    EXPECT_EQ(support::differing(ff(x), apart(x)), 0u) << stream;
    const auto p = ff.parameters();
    EXPECT_EQ(p.up.gate.data, ff.up().parameters().gate.data);
    EXPECT_EQ(p.down.weight.data, ff.down().parameters().weight.data);
  }
}

TEST(FeedForwardUpdateMemory, ASecondOneAllocatesNothing) {
  const auto expect = [](auto&& ff) {
    ff.update(writes("first"));
    const auto before = ff.parameters();
    const std::size_t packed = ff.packed_bytes();
    support::all_allocations = 0;
    ff.update([](const auto& p) {
      std::swap(p.up.weight(1, 2), p.up.gate(0, 3));
      std::swap(p.down.bias(3), p.down.weight(1, 1));
    });
    EXPECT_EQ(support::all_allocations, 0u);
    EXPECT_EQ(ff.parameters().up.weight.data, before.up.weight.data);
    EXPECT_EQ(ff.parameters().down.weight.data, before.down.weight.data);
    EXPECT_EQ(ff.packed_bytes(), packed);
  };
  expect(Gated<mha::CpuWith<mha::Serial>>(sizes));
  expect(Gated<mha::Systolic<mha::AmxArray, mha::DefaultPrecision, mha::Serial>>(sizes));
  expect(Gated<mha::CpuWith<mha::Serial>, mha::bfloat16>(sizes));
  expect(Gated<mha::Reference>(sizes));
}

TEST(FeedForwardUpdate, IsOfBothOrNeither) {
  using FF = Gated<mha::Cpu>;
  FF ff(sizes);
  ff.initialize(mha::XavierUniform{.seed = 1});
  const auto x = rows<float>("neither x");
  const auto y = ff(x);
  const Weights<float> others("neither");
  const auto nothing = [](const auto&) { FAIL() << "called"; };
  const std::string borrowed =
      "parameters are borrowed, so they cannot be written: copy them in the update() of a new one";

  FF of_down = ff;
  of_down.down().borrow(others.borrowed().down);
  const auto before = of_down(x);
  EXPECT_EQ(message_of([&] { of_down.update(nothing); }), "update: down(): the Linear's 252 " + borrowed);
  EXPECT_EQ(support::differing(of_down(x), before), 0u);
  EXPECT_GT(of_down.up().packed_bytes(), 0u) << "up is packed as before";

  FF of_up = ff;
  of_up.up().drop_unpacked();
  EXPECT_EQ(message_of([&] { of_up.update(nothing); }),
            "update: up(): of the Linear's 520 parameters only the packed ones are left, so they cannot be written");
  EXPECT_EQ(support::differing(of_up(x), y), 0u);

  mha::FeedForward<float> large({.d_model = 1 << 16, .d_hidden = (1 << 15) - 1});
  EXPECT_EQ(message_of([&] { large.update(nothing); }),
            "update: down(): the Linear has 2147483648 parameters, the most in one allocation is 2147483647: borrow "
            "them");
  EXPECT_EQ(large.up().parameters().weight.data, nullptr);
}

TEST(FeedForwardUpdate, ThatThrewLeavesWeightsThatAreReadWhereTheyAre) {
  Gated<mha::Cpu> ff(sizes), exact(sizes);
  ff.initialize(mha::XavierUniform{.seed = 1});
  exact.initialize(mha::XavierUniform{.seed = 1});
  const auto change = [](const auto& p) { p.up.weight(2, 3) = p.down.weight(3, 2) = 2; };
  exact.update(change);
  EXPECT_THROW(ff.update([&](const auto& p) {
    change(p);
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  const auto x = rows<float>("threw x");
  // Products of packed weights finish in vectors, those of others in plain C++, so that the last bits may differ.
  EXPECT_LE(support::largest_difference(ff(x), exact(x)), 1e-5);
  EXPECT_EQ(ff.packed_bytes(), 0u);
  EXPECT_EQ(message_of([&] { ff.update([&](const auto&) { ff.borrow(exact.parameters()); }); }),
            "update: the Linear's 252 parameters are borrowed, so they cannot be written: copy them in the update() of "
            "a new one");
  EXPECT_LE(support::largest_difference(ff(x), exact(x)), 1e-5);
}

TEST(FeedForwardUpdate, ThatThrewLeavesNoneWhereThereWereNone) {
  Gated<mha::Cpu> ff(sizes);
  EXPECT_THROW(ff.initialize(mha::XavierUniform{.gain = std::nan("")}), mha::ShapeError);
  EXPECT_EQ(ff.parameters().up.weight.data, nullptr);
  EXPECT_EQ(ff.parameters().down.weight.data, nullptr);
  ff.up().initialize(mha::XavierUniform{.seed = 1});
  const float first = ff.up().parameters().weight(0, 0);
  EXPECT_THROW(ff.initialize(mha::XavierUniform{.gain = std::nan("")}), mha::ShapeError);
  EXPECT_EQ(ff.up().parameters().weight(0, 0), first);
  EXPECT_EQ(ff.parameters().down.weight.data, nullptr);
}

TEST(FeedForwardUpdate, WithoutMemoryLeavesNoneWhereThereWereNone) {
  std::optional<mha::FeedForward<float>> ff;
  const auto initialize = [&] {
    const int left = std::exchange(support::allocations_until_failure, -1);
    ff.emplace(sizes);
    support::allocations_until_failure = left;
    ff->initialize(mha::XavierUniform{.seed = 1});
  };
  const int failed = support::with_each_allocation_failing(initialize, [&](int n) {
    EXPECT_EQ(ff->parameters().up.weight.data, nullptr) << n;
    EXPECT_EQ(ff->parameters().down.weight.data, nullptr) << n;
    EXPECT_EQ(ff->packed_bytes(), 0u) << n;
  });
  EXPECT_GT(failed, 3);
}

TEST(FeedForwardUpdate, MakesTapesOfThoseBeforeStale) {
  Gated<mha::Cpu> ff(sizes);
  ff.initialize(mha::XavierUniform{.seed = 1});
  const auto x = rows<float>("tape x");
  auto tape = ff.tape();
  auto gradients = ff.gradients();
  const Weights<float> others("tape");
  const auto refusal = [&](const auto& change) {
    const auto y = ff(x, tape);
    change();
    return message_of([&] { static_cast<void>(ff.backward(y, tape, gradients)); });
  };
  EXPECT_EQ(refusal([] {}), "");
  const std::string stale = refusal([&] { ff.up().update([](auto&) {}); });
  EXPECT_NE(stale, "");
  EXPECT_EQ(refusal([&] { ff.update([](const auto&) {}); }), stale);
  EXPECT_EQ(refusal([&] { ff.borrow(others.borrowed()); }), stale);
}

template <class B> void expect_copies_of_neither() {
  mha::FeedForward<float, B> large({.d_model = 1 << 16, .d_hidden = (1 << 15) - 1});
  const mha::bfloat16 number{};
  const auto of = [&](mha::Index in, mha::Index out) {
    return mha::BorrowedLinear<mha::bfloat16>{
        .weight = mha::TensorView<const mha::bfloat16, 2>{&number, {in, out}, {0, 0}},
        .bias = mha::TensorView<const mha::bfloat16, 1>{&number, {out}, {0}}};
  };
  const auto& c = large.config();
  const mha::BorrowedFeedForward<mha::bfloat16> w{.up = of(c.d_model, c.d_hidden), .down = of(c.d_hidden, c.d_model)};
  EXPECT_EQ(message_of([&] { large.borrow(w); }),
            "borrow: down(): the Linear has 2147483648 parameters, the most in one allocation is 2147483647");
  EXPECT_EQ(large.up().parameters().weight.data, nullptr);
}

TEST(FeedForwardBorrow, TooManyNarrowWeightsForACopyAreBorrowedByNeither) {
  expect_copies_of_neither<mha::Reference>();
  expect_copies_of_neither<mha::EigenCpu>();
}

// Both are named by the call and the part that is too large.
template <class B> void expect_rounded_copies_of_neither() {
  const float number = 1;
  for (const Index hidden : {1 << 15, (1 << 15) - 1}) {
    mha::FeedForward<float, B> large({.d_model = 1 << 16, .d_hidden = hidden});
    const auto of = [&](Index in, Index out) {
      return mha::BorrowedLinear<float>{.weight = mha::TensorView<const float, 2>{&number, {in, out}, {0, 0}},
                                        .bias = mha::TensorView<const float, 1>{&number, {out}, {0}}};
    };
    const mha::BorrowedLinear<float> up = of(1 << 16, hidden), down = of(hidden, 1 << 16);
    const std::string first =
                          hidden == 1 << 15 ? "up(): the Linear has 2147516416" : "down(): the Linear has 2147483648",
                      rest = " parameters, the most in one allocation is 2147483647";
    EXPECT_EQ(message_of([&] { large.quantize(mha::BorrowedFeedForward<float>{.up = up, .down = down}); }),
              "quantize: " + first + rest);
    if (hidden == 1 << 15) {
      EXPECT_EQ(message_of([&] { large.up().quantize(up); }), "quantize: the Linear has 2147516416" + rest);
    }
    EXPECT_EQ(large.up().parameters().weight.data, nullptr);
  }
}

TEST(FeedForwardQuantize, TooManyWeightsForACopyAreRoundedByNeither) {
  expect_rounded_copies_of_neither<mha::Reference>();
  expect_rounded_copies_of_neither<mha::EigenCpu>();
}

template <class B> class FeedForwardBorrowOn : public testing::Test {};
TYPED_TEST_SUITE(FeedForwardBorrowOn, Backends);

TYPED_TEST(FeedForwardBorrowOn, TakesBothWhereTheyAre) {
  const Weights<float> w("borrow");
  Gated<TypeParam> ff(sizes), apart(sizes), third(sizes);
  ff.borrow(w.borrowed());
  apart.up().borrow(w.borrowed().up);
  apart.down().borrow(w.borrowed().down);
  const auto x = rows<float>("borrow x");
  const auto y = apart(x);
  EXPECT_EQ(support::differing(ff(x), y), 0u);
  EXPECT_EQ(ff.parameters().up.weight.data, w.up.data());
  EXPECT_EQ(ff.parameters().down.bias.data, w.down_bias.data());
  third.borrow(ff.parameters());
  EXPECT_EQ(support::differing(third(x), y), 0u);
  EXPECT_EQ(third.parameters().up.gate.data, w.gate.data());
}

TEST(FeedForwardBorrow, TakesThemInTheMemoryOfAnotherMachine) {
  const Weights<float> w("far borrow");
  Gated<support::Far> there(sizes);
  Gated<mha::Reference> here(sizes);
  const auto x = rows<float>("far borrow x");
  const support::FarTensor<float, 2> far(x);
  there.update(writes("far"));
  here.update(writes("far"));
  EXPECT_EQ(support::differing(there(far).near(), here(x)), 0u);
  there.borrow(w.borrowed());
  here.borrow({.up = w.borrowed().up, .down = w.borrowed().down});
  EXPECT_EQ(support::differing(there(far).near(), here(x)), 0u);
}

TEST(FeedForwardBorrow, TakesWeightsIn16Bits) {
  using W = mha::bfloat16;
  const Weights<W> w("narrow");
  Gated<mha::Cpu, W> owner(sizes);
  owner.borrow(w.borrowed());
  const auto x = rows<float>("narrow x");
  const auto expect = [&](auto&& ff, auto&& apart, auto&& third) {
    ff.borrow(w.borrowed());
    apart.up().borrow(w.borrowed().up);
    apart.down().borrow(w.borrowed().down);
    third.borrow(owner.parameters());
    EXPECT_EQ(support::differing(ff(x), apart(x)), 0u);
    EXPECT_EQ(support::differing(third(x), apart(x)), 0u);
    EXPECT_EQ(ff.packed_bytes(), apart.packed_bytes());
  };
  expect(Gated<mha::Cpu>(sizes), Gated<mha::Cpu>(sizes), Gated<mha::Cpu>(sizes));
  expect(Gated<mha::Reference>(sizes), Gated<mha::Reference>(sizes), Gated<mha::Reference>(sizes));
  Gated<mha::Cpu> ff(sizes);
  ff.initialize(mha::XavierUniform{.seed = 1});
  const auto y = ff(x);
  auto bad = w.borrowed();
  bad.down.bias = w.up_bias;
  EXPECT_EQ(message_of([&] { ff.borrow(bad); }), "borrow: down(): the bias has 20 elements, expected 12");
  EXPECT_EQ(support::differing(ff(x), y), 0u);
}

TEST(FeedForwardBorrow, IsOfBothOrNeither) {
  Gated<mha::Cpu> ff(sizes);
  ff.initialize(mha::XavierUniform{.seed = 1});
  const auto x = rows<float>("refused x");
  const auto y = ff(x);
  const Weights<float> w("refused");
  const auto refusal = [&](const auto& spoil) {
    auto given = w.borrowed();
    spoil(given);
    const std::string message = message_of([&] { ff.borrow(given); });
    EXPECT_EQ(support::differing(ff(x), y), 0u) << message;
    EXPECT_NE(ff.parameters().up.weight.data, w.up.data());
    return message;
  };
  EXPECT_EQ(refusal([&](auto& g) { g.up.weight = w.up; }),
            "borrow: up(): the weight matrix is (20, 12), expected (12, 20): pass mha::transposed(view)");
  EXPECT_EQ(refusal([&](auto& g) { g.up.gate = {}; }), "borrow: up(): the gate matrix is (0, 0), expected (12, 20)");
  EXPECT_EQ(refusal([&](auto& g) { g.down.gate = w.down; }),
            "borrow: down(): the gate matrix is (20, 12), expected (0, 0)");
  EXPECT_EQ(refusal([&](auto& g) { g.down.weight = mha::view(static_cast<const float*>(nullptr), H, E); }),
            "borrow: down(): weight has 240 elements but its data is null");
  const auto own = ff.parameters();
  EXPECT_EQ(refusal([&](auto& g) { g.down.weight = own.down.weight; }),
            "borrow: down(): weights that are among the 252 of the Linear's own, expected another's");
  EXPECT_EQ(refusal([&](auto& g) { g.down.weight = mha::transposed(own.up.gate); }),
            "borrow: down(): weights that are among the 520 of the Linear's own, expected another's");
  EXPECT_EQ(refusal([&](auto& g) { g.up.gate = mha::transposed(own.down.weight); }),
            "borrow: up(): weights that are among the 252 of the Linear's own, expected another's");
}

TEST(FeedForwardBorrow, WhatIsBorrowedAgainIsHeldOn) {
  struct Both {
    Tensor<float, 2> up{E, H}, down{H, E};
  };
  const Both others;
  for (const bool up_first : {true, false}) {
    mha::FeedForward<float, mha::EigenCpu> ff({.d_model = E, .d_hidden = H, .bias = false});
    auto both = std::make_shared<Both>();
    const std::weak_ptr<Both> watch = both;
    const Both& weights = *both;
    ff.borrow({.up = {.weight = weights.up}, .down = {.weight = weights.down}}, std::move(both));
    ff.borrow(ff.parameters());
    EXPECT_FALSE(watch.expired());
    // Each is now what the other was, and holds it alone.
    const auto p = ff.parameters();
    ff.borrow({.up = {.weight = mha::transposed(p.down.weight)}, .down = {.weight = mha::transposed(p.up.weight)}});
    if (up_first)
      ff.up().borrow({.weight = others.up});
    else
      ff.down().borrow({.weight = others.down});
    EXPECT_FALSE(watch.expired()) << up_first;
    ff.borrow({.up = {.weight = others.up}, .down = {.weight = others.down}});
    EXPECT_TRUE(watch.expired());
  }
}

TEST(FeedForwardBorrow, ALinearOfTwoOwnersHoldsBoth) {
  struct Linear {
    Tensor<float, 2> weight;
    Tensor<float, 1> bias;
  };
  mha::FeedForward<float, mha::EigenCpu> ff({.d_model = E, .d_hidden = H});
  auto up = std::make_shared<Linear>(Linear{Tensor<float, 2>(E, H), Tensor<float, 1>(H)});
  auto down = std::make_shared<Linear>(Linear{Tensor<float, 2>(H, E), Tensor<float, 1>(E)});
  const Linear other{Tensor<float, 2>(H, E), Tensor<float, 1>(E)};
  const std::weak_ptr<Linear> watch_up = up, watch_down = down;
  const Linear &u = *up, &d = *down;
  ff.up().borrow({.weight = u.weight, .bias = u.bias}, std::move(up));
  ff.down().borrow({.weight = d.weight, .bias = d.bias}, std::move(down));
  const auto p = ff.parameters();
  ff.borrow({.up = {.weight = mha::transposed(p.down.weight), .bias = p.up.bias},
             .down = {.weight = other.weight, .bias = other.bias}});
  EXPECT_FALSE(watch_up.expired());
  EXPECT_FALSE(watch_down.expired());
  ff.up().borrow({.weight = mha::transposed(mha::view(other.weight.data(), H, E)), .bias = p.up.bias});
  EXPECT_FALSE(watch_up.expired());
}

/// The numbers that weights become in Q, which a feed-forward of T borrows.
template <class Q, class T> struct Rounded {
  Tensor<T, 2> up, gate, down;
  Tensor<T, 1> up_bias{H}, gate_bias{H}, down_bias{E};

  template <class W>
  explicit Rounded(const Weights<W>& w)
      : up(support::rounded_weights<Q, T>(mha::transposed(w.up.view()))),
        gate(support::rounded_weights<Q, T>(mha::transposed(w.gate.view()))),
        down(support::rounded_weights<Q, T>(w.down.view())) {
    for (Index j = 0; j < H; ++j) up_bias(j) = T(w.up_bias(j)), gate_bias(j) = T(w.gate_bias(j));
    for (Index j = 0; j < E; ++j) down_bias(j) = T(w.down_bias(j));
  }
  mha::BorrowedFeedForward<T> borrowed() const {
    return {.up = {.weight = up, .bias = up_bias, .gate = gate, .gate_bias = gate_bias},
            .down = {.weight = down, .bias = down_bias}};
  }
};

template <class Q, class B> void expect_the_bits_of_rounded_ones() {
  const auto x = rows<float>("rounded x");
  const Weights<float> w("rounded");
  const auto expect = [&](const char* what, const auto& weights, const auto& ff) {
    const Rounded<Q, float> rounded(weights);
    Gated<B> same(sizes);
    same.borrow(rounded.borrowed());
    EXPECT_EQ(support::differing(ff(x), same(x)), 0u) << what;
  };
  Gated<B> passed(sizes), borrower(sizes), viewed(sizes), narrow(sizes);
  passed.template quantize<Q>(w.borrowed());
  expect("passed", w, passed);
  borrower.borrow(w.borrowed());
  viewed.template quantize<Q>(borrower.parameters());
  expect("another's views", w, viewed);
  borrower.template quantize<Q>();
  expect("borrowed", w, borrower);
  const Weights<mha::half> half("rounded of half");
  narrow.template quantize<Q>(half.borrowed());
  expect("half", half, narrow);
  Gated<mha::Cpu, mha::half> of_half(sizes);
  of_half.borrow(half.borrowed());
  viewed.template quantize<Q>(of_half.parameters());
  expect("views of half", half, viewed);
  Gated<B> own(sizes), kept(sizes);
  own.update(writes("own"));
  kept.update(writes("own"));
  own.template quantize<Q>();
  viewed.template quantize<Q>(kept.parameters());
  EXPECT_EQ(support::differing(own(x), viewed(x)), 0u) << "its own";
  EXPECT_NE(support::differing(own(x), kept(x)), 0u);
  EXPECT_NE(message_of([&] { own.update(writes("own")); }), "");
}
TYPED_TEST(FeedForwardBorrowOn, InEightBitsHasTheBitsOfRoundedOnes) {
  expect_the_bits_of_rounded_ones<mha::scaled_int8, TypeParam>();
}
TYPED_TEST(FeedForwardBorrowOn, InFourBitsHasTheBitsOfRoundedOnes) {
  expect_the_bits_of_rounded_ones<mha::scaled_int4, TypeParam>();
}

TEST(FeedForwardQuantize, IsOfBothOrNeither) {
  Gated<mha::Cpu> ff(sizes), none(sizes);
  ff.initialize(mha::XavierUniform{.seed = 1});
  const auto x = rows<float>("refused x");
  const auto y = ff(x);
  const Weights<float> w("refused");
  const auto refusal = [&](const auto& spoil) {
    auto given = w.borrowed();
    spoil(given);
    const std::string message = message_of([&] { ff.quantize(given); });
    EXPECT_EQ(support::differing(ff(x), y), 0u) << message;
    EXPECT_NE(ff.parameters().up.weight.data, nullptr) << message;
    return message;
  };
  EXPECT_EQ(refusal([&](auto& g) { g.up.weight = w.up; }),
            "quantize: up(): the weight matrix is (20, 12), expected (12, 20): pass mha::transposed(view)");
  EXPECT_EQ(refusal([&](auto& g) { g.down.gate = w.down; }),
            "quantize: down(): the gate matrix is (20, 12), expected (0, 0)");
  EXPECT_EQ(refusal([&](auto& g) { g.down.weight = mha::view(static_cast<const float*>(nullptr), H, E); }),
            "quantize: down(): weight has 240 elements but its data is null");
  auto bad = Weights<mha::half>("refused").borrowed();
  bad.down.bias = {};
  EXPECT_EQ(message_of([&] { ff.quantize(bad); }), "quantize: down(): the bias has 0 elements, expected 12");
  EXPECT_EQ(message_of([&] { none.quantize(); }),
            "quantize: up(): expected 520 weights, got 0: call initialize, update or borrow first");
  none.up().borrow(ff.up().parameters());
  EXPECT_EQ(message_of([&] { none.quantize(); }),
            "quantize: down(): expected 252 weights, got 0: call initialize, update or borrow first");
  EXPECT_NE(none.up().parameters().weight.data, nullptr);
  ff.down().drop_unpacked();
  EXPECT_EQ(message_of([&] { ff.quantize(); }),
            "quantize: down(): of the Linear's 252 parameters only the packed ones are left: pass the weights "
            "themselves, quantize(weights)");
  EXPECT_NE(ff.up().parameters().weight.data, nullptr);
  EXPECT_EQ(support::differing(ff(x), y), 0u);
  ff.up().drop_unpacked();
  EXPECT_NE(message_of([&] { ff.quantize(); }).find("quantize: up(): of the Linear's 520 parameters"),
            std::string::npos);
}

// up() lets go of its weights before down() reads those that it is given.
template <class B> void expect_halves_exchanged() {
  const mha::FeedForwardConfig square{.d_model = 16, .d_hidden = 16};
  const auto draw = [](const auto& p) {
    support::Random random("halves");
    for (const auto& row : {p.up.flat(), p.down.flat()})
      for (float& w : row) w = support::Random::rounded<float>(random.normal());
  };
  mha::FeedForward<float, B> ff(square), lender(square), expected(square);
  ff.update(draw);
  lender.update(draw);
  const auto p = lender.parameters();
  expected.quantize(mha::FeedForwardViews<const float>{p.down, p.up, {}});
  Tensor<float, 2> x(3, 16);
  support::Random("halves x").fill(x);
  const auto y = ff(x), z = expected(x);
  const auto own = ff.parameters();
  EXPECT_EQ(message_of([&] {
              ff.quantize(mha::FeedForwardViews<const float>{own.down, own.up, {}});
            }),
            "quantize: down(): weights that are among the 272 of the Linear's own, expected another's");
  EXPECT_EQ(support::differing(ff(x), y), 0u);
  // Borrowed ones are held until both have read them.
  struct Linear {
    Tensor<float, 2> weight{16, 16};
    Tensor<float, 1> bias{16};
  };
  Linear up, down;
  for (const auto& [to, from] : {std::pair{&up, p.up}, std::pair{&down, p.down}}) {
    for (Index i = 0; i < 16; ++i)
      for (Index j = 0; j < 16; ++j) to->weight(i, j) = from.weight(i, j);
    for (Index j = 0; j < 16; ++j) to->bias(j) = from.bias(j);
  }
  const auto views = [](const Linear& l) { return mha::BorrowedLinear<float>{.weight = l.weight, .bias = l.bias}; };
  const auto of_up = views(up), of_down = views(down);
  const auto keeper = [](Linear& l) {
    return std::shared_ptr<Linear>(&l, [](Linear* gone) { support::poison_all(gone->weight); });
  };
  ff.up().borrow(of_up, keeper(up));
  ff.down().borrow(of_down, keeper(down));
  ff.quantize({.up = of_down, .down = of_up});
  EXPECT_TRUE(std::isnan(up.weight(0, 0)) && std::isnan(down.weight(0, 0))) << "let go of";
  EXPECT_EQ(support::differing(ff(x), z), 0u);
}

TEST(FeedForwardQuantize, HalvesAreExchanged) {
  expect_halves_exchanged<mha::Cpu>();
  expect_halves_exchanged<mha::Reference>();
}

template <class Q> void expect_of_the_other() {
  mha::FeedForward<float> both({.d_model = 12, .d_hidden = 20});
  both.initialize(mha::XavierUniform{.seed = 1});
  auto one = both, other = both;
  both.quantize<Q>();
  one.up().quantize<Q>();
  one.quantize<Q>();
  one.quantize<Q>();
  other.down().quantize<Q>();
  other.quantize<Q>();
  Tensor<float, 2> x(3, 12);
  support::Random("rows of halves").fill(x);
  EXPECT_EQ(support::differing(one(x), both(x)), 0u);
  EXPECT_EQ(support::differing(other(x), both(x)), 0u);
  EXPECT_EQ(other.packed_bytes(), both.packed_bytes());
}
TEST(FeedForwardQuantize, OfOneThatIsAlreadyIsOfTheOther) {
  expect_of_the_other<mha::scaled_int8>();
  expect_of_the_other<mha::scaled_int4>();
}

// If one is in another kind of integers, both stay as they are.
TEST(FeedForwardQuantize, OfAnotherKindIsRefusedByBoth) {
  mha::FeedForward<float> ff({.d_model = 12, .d_hidden = 20});
  ff.initialize(mha::XavierUniform{.seed = 1});
  Tensor<float, 2> x(3, 12);
  support::Random("rows of kinds").fill(x);
  ff.down().quantize();
  const auto before = ff(x);
  EXPECT_EQ(message_of([&] { ff.quantize<mha::scaled_int4>(); }),
            "quantize: down(): of the Linear's 252 parameters only the packed ones are left: pass the weights "
            "themselves, quantize(weights)");
  EXPECT_EQ(support::differing(ff(x), before), 0u);
  EXPECT_NE(ff.up().parameters().weight.data, nullptr);
  ff.up().quantize<mha::scaled_int4>();
  EXPECT_NE(message_of([&] { ff.quantize(); }).find("quantize: up(): of the Linear's 260 parameters"),
            std::string::npos);
}

template <class Q> void expect_bytes(const std::string& scalar) {
  const Weights<float> w("bytes");
  Gated<mha::Cpu> ff(sizes);
  ff.quantize<Q>(w.borrowed());
  const std::size_t up = 2 * (support::rounded_bytes<Q>(E, H) + 48 * 4),
                    down = support::rounded_bytes<Q>(H, E) + 48 * 4;
  EXPECT_EQ(ff.packed_bytes(), up + down);
  EXPECT_NE(ff.explain(3).find("520 " + scalar + ", packed only, in " + std::to_string(up) + " bytes"),
            std::string::npos)
      << ff.explain(3);
  EXPECT_NE(ff.explain(3).find("252 " + scalar + ", packed only, in " + std::to_string(down) + " bytes"),
            std::string::npos);
}
TEST(FeedForwardQuantize, TakesTheBytesOfIntegersAndTheScales) {
  expect_bytes<mha::scaled_int8>("scaled_int8");
  expect_bytes<mha::scaled_int4>("scaled_int4");
}

}  // namespace
