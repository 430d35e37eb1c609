// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <mha/block/feed_forward.hpp>
#include <mha/block/linear.hpp>
#include <mha/block/linear_memory.hpp>
#include <mha/eigen.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "eight_bits.hpp"
#include "failing_new.hpp"
#include "four_bits.hpp"
#include "message_of.hpp"
#include "plain_backend.hpp"
#include "random.hpp"

namespace {

using mha::BorrowedLinear;
using mha::Index;
using mha::scaled_int4;
using mha::scaled_int8;
using mha::Tensor;
using support::message_of;
using support::rounded_weights;

constexpr Index In = 300, Out = 50;
const mha::LinearConfig sizes{.inputs = In, .outputs = Out};
constexpr int count = 2 * (In + 1) * Out;
template <class B, class T = float> using Gated = mha::Linear<T, B, mha::SwiGlu>;
using SerialCpu = mha::CpuWith<mha::Serial>;

/// Weights of a gated Linear in memory of a test; the matrix is stored (out, in), as PyTorch has it.
template <class W> struct Weights {
  Tensor<W, 2> weight{Out, In}, gate{In, Out};
  Tensor<W, 1> bias{Out}, gate_bias{Out};

  explicit Weights(const char* stream) {
    support::Random random(stream);
    for (auto* matrix : {&weight, &gate})
      for (W& x : *matrix) x = support::Random::rounded<W>(random.normal() / 16);
    random.fill(bias);
    random.fill(gate_bias);
  }
  BorrowedLinear<W> borrowed() const {
    return {.weight = mha::transposed(weight.view()), .bias = bias, .gate = gate, .gate_bias = gate_bias};
  }
  /// The results of the rounded numbers, borrowed in T.
  template <class Q, class B, class T> Tensor<T, 2> rounded(const Tensor<T, 2>& x) const {
    const auto p = mha::detail::views_of(borrowed());
    const Tensor<T, 2> w = rounded_weights<Q, T>(p.weight), g = rounded_weights<Q, T>(p.gate);
    Tensor<T, 1> b(Out), c(Out);
    for (Index j = 0; j < Out; ++j) b(j) = T(bias(j)), c(j) = T(gate_bias(j));
    Gated<B, T> linear(sizes);
    linear.borrow({.weight = w, .bias = b, .gate = g, .gate_bias = c});
    return linear(x);
  }
};
template <class T = float> Tensor<T, 2> rows(Index n = 5) {
  support::Random random("rows");
  Tensor<T, 2> x(n, In);
  random.fill(x);
  return x;
}
template <class B, class T = float> Gated<B, T> owner(const Weights<T>& from) {
  Gated<B, T> linear(sizes);
  linear.update([&](const auto& p) {
    for (Index j = 0; j < Out; ++j) {
      for (Index i = 0; i < In; ++i) p.weight(i, j) = from.weight(j, i), p.gate(i, j) = from.gate(i, j);
      p.bias(j) = from.bias(j), p.gate_bias(j) = from.gate_bias(j);
    }
  });
  return linear;
}

/// Weights that are rounded to Q on a backend.
template <class B_, class Q_> struct On {
  using B = B_;
  using Q = Q_;
};
template <class Case> class LinearMemory : public testing::Test {};
using Cases =
    testing::Types<On<mha::Cpu, scaled_int8>, On<SerialCpu, scaled_int8>, On<mha::Reference, scaled_int8>,
                   On<mha::EigenCpu, scaled_int8>, On<mha::Systolic<>, scaled_int8>,
                   On<support::PlainBackend, scaled_int8>, On<mha::Cpu, scaled_int4>, On<SerialCpu, scaled_int4>,
                   On<mha::Reference, scaled_int4>, On<mha::EigenCpu, scaled_int4>, On<mha::Systolic<>, scaled_int4>,
                   On<support::PlainBackend, scaled_int4>>;
TYPED_TEST_SUITE(LinearMemory, Cases, );

static_assert(std::is_base_of_v<mha::LinearMemory<float, mha::Cpu, mha::SwiGlu>, Gated<mha::Cpu>>);

TYPED_TEST(LinearMemory, IsRoundedFromWhereverTheWeightsAre) {
  using B = typename TypeParam::B;
  using Q = typename TypeParam::Q;
  const Weights<float> weights("weights");
  const auto x = rows();
  const auto expected = weights.template rounded<Q, B>(x);
  const auto expect = [&](const char* what, const auto& linear) {
    EXPECT_EQ(support::differing(linear(x), expected), 0u) << what;
  };
  auto own = owner<B>(weights);
  const auto unrounded = own(x);
  EXPECT_NE(support::differing(unrounded, expected), 0u);
  Gated<B> borrower(sizes), passed(sizes), viewed(sizes), itself = own;
  viewed.template quantize<Q>(own.parameters());
  expect("another's views", viewed);
  EXPECT_EQ(support::differing(own(x), unrounded), 0u) << "the other Linear changed";
  own.template quantize<Q>();
  expect("its own", own);
  borrower.borrow(weights.borrowed());
  borrower.template quantize<Q>();
  expect("borrowed ones", borrower);
  passed.template quantize<Q>(weights.borrowed());
  expect("passed ones", passed);
  itself.template quantize<Q>(itself.parameters());
  expect("views of its own", itself);
  viewed.template quantize<Q>(weights.borrowed());
  expect("rounded twice", viewed);
}

TYPED_TEST(LinearMemory, IsRoundedFromNarrowWeights) {
  using B = typename TypeParam::B;
  using Q = typename TypeParam::Q;
  const auto x = rows();
  const auto expect = [&]<class W>(W) {
    const Weights<W> weights("narrow");
    const auto expected = weights.template rounded<Q, B>(x);
    Gated<B> linear(sizes), viewed(sizes);
    linear.template quantize<Q>(weights.borrowed());
    EXPECT_EQ(support::differing(linear(x), expected), 0u);
    Gated<SerialCpu, W> of_that_scalar(sizes);
    of_that_scalar.borrow(weights.borrowed());
    viewed.template quantize<Q>(of_that_scalar.parameters());
    EXPECT_EQ(support::differing(viewed(x), expected), 0u);
  };
  expect(mha::half{});
  expect(mha::bfloat16{});
}

TEST(LinearMemoryOfDoubles, IsRoundedToNumbersOfDouble) {
  const auto expect = [&]<class Q, class B>(Q, const B&) {
    const Weights<double> weights("doubles");
    const auto x = rows<double>();
    const auto expected = weights.template rounded<Q, B>(x);
    Gated<B, double> own = owner<B, double>(weights), linear(sizes);
    own.template quantize<Q>();
    linear.template quantize<Q>(weights.borrowed());
    EXPECT_EQ(support::differing(own(x), expected), 0u) << B::name;
    EXPECT_EQ(support::differing(linear(x), expected), 0u) << B::name;
    const Weights<mha::bfloat16> narrow("narrow doubles");
    linear.template quantize<Q>(narrow.borrowed());
    EXPECT_EQ(support::differing(linear(x), narrow.template rounded<Q, B>(x)), 0u) << B::name;
  };
  expect(scaled_int8{}, mha::Cpu{});
  expect(scaled_int8{}, mha::Reference{});
  expect(scaled_int8{}, mha::EigenCpu{});
  expect(scaled_int4{}, mha::Cpu{});
  expect(scaled_int4{}, mha::Reference{});
  expect(scaled_int4{}, mha::EigenCpu{});
}

// Whatever becomes of the weights that were rounded.
TYPED_TEST(LinearMemory, InIntegersReadsTheWeightsOnce) {
  using B = typename TypeParam::B;
  using Q = typename TypeParam::Q;
  auto weights = std::make_shared<Weights<float>>("gone");
  const auto x = rows();
  const auto expected = weights->template rounded<Q, B>(x);
  Gated<B> linear(sizes), borrower(sizes);
  linear.template quantize<Q>(weights->borrowed());
  borrower.borrow(weights->borrowed(), weights);
  EXPECT_EQ(weights.use_count(), 2);
  borrower.template quantize<Q>();
  EXPECT_EQ(weights.use_count(), 1) << "let go of";
  for (auto* matrix : {&weights->weight, &weights->gate}) support::poison_all(*matrix);
  for (auto* bias : {&weights->bias, &weights->gate_bias}) support::poison_all(*bias);
  EXPECT_EQ(support::differing(linear(x), expected), 0u);
  EXPECT_EQ(support::differing(borrower(x), expected), 0u);
}

TYPED_TEST(LinearMemory, InIntegersCannotBeWrittenAndGivesWayToOthers) {
  using B = typename TypeParam::B;
  using Q = typename TypeParam::Q;
  constexpr bool packs = mha::PacksWeights<B, float>;
  const Weights<float> weights("refused"), others("others");
  const Weights<mha::bfloat16> narrow("narrow");
  const auto x = rows();
  auto linear = owner<B>(weights);
  linear.template quantize<Q>();
  const std::string of = "of the Linear's " + std::to_string(count) + " parameters only the packed ones are left";
  const auto expect_refused = [&] {
    const auto before = linear(x);
    EXPECT_EQ(message_of([&] { linear.initialize(mha::XavierUniform{.seed = 1}); }),
              packs
                  ? "update: " + of + ", so they cannot be written"
                  : "update: the Linear's " + std::to_string(count) +
                        " parameters are borrowed, so they cannot be written: copy them in the update() of a new one");
    EXPECT_EQ(support::differing(linear(x), before), 0u);
  };
  expect_refused();
  const auto expected = weights.template rounded<Q, B>(x);
  EXPECT_EQ(linear.parameters().weight.data == nullptr, packs);
  EXPECT_EQ(linear.parameters().gate_bias.data == nullptr, packs);
  if (packs) {
    constexpr bool in_integers = mha::QuantizesWeights<B, float, float, Q>;
    EXPECT_EQ(message_of([&] { linear.template quantize<Q>(); }),
              in_integers ? "" : "quantize: " + of + ": pass the weights themselves, quantize(weights)");
    linear.drop_unpacked();
    EXPECT_EQ(support::differing(linear(x), expected), 0u);
  } else {
    // The integers of rounded numbers are the same again, and a scale is to its last bit.
    linear.template quantize<Q>();
    EXPECT_LT(support::largest_difference(linear(x), expected), 1e-4);
    EXPECT_NE(message_of([&] { linear.drop_unpacked(); }).find("expected a backend that packs them"),
              std::string::npos);
  }
  linear.borrow(others.borrowed());
  EXPECT_EQ(support::differing(linear(x), owner<B>(others)(x)), 0u);
  EXPECT_NE(linear.parameters().weight.data, nullptr);
  linear.template quantize<Q>();
  EXPECT_EQ(support::differing(linear(x), others.template rounded<Q, B>(x)), 0u);
  linear.template quantize<Q>(weights.borrowed());
  expect_refused();
  EXPECT_EQ(support::differing(linear(x), expected), 0u);
  linear.borrow(narrow.borrowed());
  Gated<B> of_narrow(sizes);
  of_narrow.borrow(narrow.borrowed());
  EXPECT_EQ(support::differing(linear(x), of_narrow(x)), 0u);
  if (packs) {
    EXPECT_EQ(message_of([&] { linear.template quantize<Q>(); }),
              "quantize: " + of + ": pass the weights themselves, quantize(weights)");
    EXPECT_EQ(support::differing(linear(x), of_narrow(x)), 0u);
  }
}

TYPED_TEST(LinearMemory, InIntegersIsSharedByCopies) {
  using B = typename TypeParam::B;
  using Q = typename TypeParam::Q;
  const Weights<float> weights("shared"), others("others");
  const auto x = rows();
  const auto expected = weights.template rounded<Q, B>(x);
  auto first = std::make_unique<Gated<B>>(sizes);
  first->template quantize<Q>(weights.borrowed());
  support::all_allocations = 0;
  Gated<B> copy = *first, assigned(sizes);
  assigned = copy;
  EXPECT_LT(support::all_allocations, std::size_t{1000}) << "of " << count << " weights";
  first->borrow(others.borrowed());
  EXPECT_EQ(support::differing(copy(x), expected), 0u);
  first.reset();
  EXPECT_EQ(support::differing(copy(x), expected), 0u);
  const Gated<B> moved = std::move(copy);
  EXPECT_EQ(support::differing(moved(x), expected), 0u);
  EXPECT_EQ(support::differing(assigned(x), expected), 0u);
  EXPECT_EQ(message_of([&] { static_cast<void>(copy(x)); }), "linear: expected " + std::to_string(count) +
                                                                 " weights, got 0: call initialize, update or borrow "
                                                                 "first");
}

TYPED_TEST(LinearMemory, WithoutWeightsHasNoneToRound) {
  Gated<typename TypeParam::B> linear(sizes);
  EXPECT_EQ(message_of([&] { linear.template quantize<typename TypeParam::Q>(); }),
            "quantize: expected " + std::to_string(count) + " weights, got 0: call initialize, update or borrow first");
}

TYPED_TEST(LinearMemory, RefusesOtherShapesAndChangesNothing) {
  using B = typename TypeParam::B;
  using Q = typename TypeParam::Q;
  const Weights<float> weights("before");
  auto linear = owner<B>(weights);
  const auto x = rows();
  const auto before = linear(x);
  const std::string plan = linear.explain(5);
  const float* const memory = linear.parameters().weight.data;
  const auto expect = [&]<class W>(W) {
    const Tensor<W, 2> good(In, Out), turned(Out, In);
    const Tensor<W, 1> bias(Out), long_bias(Out + 1);
    const auto error = [&](const BorrowedLinear<W>& w) { return message_of([&] { linear.template quantize<Q>(w); }); };
    EXPECT_EQ(error({.weight = turned, .bias = bias, .gate = good, .gate_bias = bias}),
              "quantize: the weight matrix is (50, 300), expected (300, 50): pass mha::transposed(view)");
    EXPECT_EQ(error({.weight = good, .bias = long_bias, .gate = good, .gate_bias = bias}),
              "quantize: the bias has 51 elements, expected 50");
    EXPECT_EQ(error({.weight = good, .bias = bias, .gate = turned, .gate_bias = bias}),
              "quantize: the gate matrix is (50, 300), expected (300, 50): pass mha::transposed(view)");
    EXPECT_EQ(error({.weight = good, .bias = bias, .gate_bias = bias}),
              "quantize: the gate matrix is (0, 0), expected (300, 50)");
    EXPECT_EQ(error({.weight = good, .bias = bias, .gate = good}),
              "quantize: the gate bias has 0 elements, expected 50");
    const mha::WeightView<W, 2> null(mha::view(static_cast<const W*>(nullptr), In, Out));
    EXPECT_EQ(error({.weight = null, .bias = bias, .gate = good, .gate_bias = bias}),
              "quantize: weight has 15000 elements but its data is null");
  };
  expect(0.0f);
  expect(mha::bfloat16{});
  EXPECT_EQ(support::differing(linear(x), before), 0u);
  EXPECT_EQ(linear.explain(5), plan);
  EXPECT_EQ(linear.parameters().weight.data, memory);
  linear.update([](auto&) {});
}

TYPED_TEST(LinearMemory, OfALinearWithoutBiasRefusesOne) {
  using Q = typename TypeParam::Q;
  mha::Linear<float, typename TypeParam::B> plain({.inputs = 4, .outputs = 3, .bias = false});
  const Tensor<float, 2> matrix(4, 3);
  const Tensor<float, 1> bias(3);
  EXPECT_EQ(message_of([&] { plain.template quantize<Q>({.weight = matrix, .bias = bias}); }),
            "quantize: the bias has 3 elements, expected 0: set .bias in the configuration");
  EXPECT_EQ(message_of([&] { plain.template quantize<Q>({.weight = matrix, .gate = matrix}); }),
            "quantize: the gate matrix is (4, 3), expected (0, 0)");
  plain.template quantize<Q>({.weight = matrix});
  EXPECT_EQ(plain(Tensor<float, 2>(1, 4))(0, 2), 0);
}

// Memory that gives out leaves the weights that there were, own ones and ones in 8 bits.
TYPED_TEST(LinearMemory, ShortOfMemoryKeepsWhatItHad) {
  using B = typename TypeParam::B;
  using Q = typename TypeParam::Q;
  const Weights<float> weights("short"), others("others");
  const Weights<mha::half> narrow("narrow");
  const auto x = rows();
  const auto check = [&](const char* what, auto&& make, auto&& change) {
    SCOPED_TRACE(what);
    Gated<B> linear = make();
    const auto before = linear(x);
    const std::string plan = linear.explain(5);
    const float* const memory = linear.parameters().weight.data;
    const int failures =
        support::with_each_allocation_failing([&] { change(linear); },
                                              [&](int n) {
                                                EXPECT_EQ(support::differing(linear(x), before), 0u) << n;
                                                EXPECT_EQ(linear.explain(5), plan) << n;
                                                EXPECT_EQ(linear.parameters().weight.data, memory) << n;
                                              });
    EXPECT_GT(failures, 0);
    return linear(x);
  };
  const auto own = [&] { return owner<B>(weights); };
  const auto in_integers = [&] {
    Gated<B> linear(sizes);
    linear.template quantize<Q>(weights.borrowed());
    return linear;
  };
  const auto expected = others.template rounded<Q, B>(x);
  EXPECT_EQ(support::differing(check("its own", own, [](auto& l) { l.template quantize<Q>(); }),
                               weights.template rounded<Q, B>(x)),
            0u);
  EXPECT_EQ(
      support::differing(check("others", own, [&](auto& l) { l.template quantize<Q>(others.borrowed()); }), expected),
      0u);
  EXPECT_EQ(support::differing(check("again", in_integers, [&](auto& l) { l.template quantize<Q>(others.borrowed()); }),
                               expected),
            0u);
  EXPECT_EQ(
      support::differing(check("narrow", in_integers, [&](auto& l) { l.template quantize<Q>(narrow.borrowed()); }),
                         narrow.template rounded<Q, B>(x)),
      0u);
  check("borrow", in_integers, [&](auto& l) { l.borrow(others.borrowed()); });
}

template <class Q> void expect_bytes(const char* scalar, double bytes_each, double at_most) {
  const Weights<float> weights("bytes");
  Gated<mha::Cpu> linear(sizes);
  linear.quantize<Q>(weights.borrowed());
  const std::size_t bytes = 2 * support::rounded_bytes<Q>(In, Out) + 2 * 2 * 48 * 4;  // and biases
  EXPECT_EQ(linear.packed_bytes(), bytes);
  EXPECT_EQ(linear.parameter_count(), count);
  EXPECT_NE(linear.explain(3).find("weights:     " + std::to_string(count) + " " + scalar + ", packed only, in " +
                                   std::to_string(bytes) + " bytes\n"),
            std::string::npos)
      << linear.explain(3);
  EXPECT_EQ(linear.cost(3).bytes, bytes_each * 2 * In * Out + 4. * (2 * Out + 3 * In + 3 * Out));
  mha::Linear<float> wide({.inputs = 1024, .outputs = 960, .bias = false});
  wide.initialize(mha::XavierUniform{.seed = 1});
  wide.quantize<Q>();
  EXPECT_LT(double(wide.packed_bytes()), at_most * 1024 * 960);
}
TEST(LinearMemoryOnCpu, InIntegersTakesTheirBytesAndTheScales) {
  expect_bytes<scaled_int8>("scaled_int8", 1.015625, 1.02);
  expect_bytes<scaled_int4>("scaled_int4", 0.5625, 0.563);
}

template <class Q> void expect_a_copy() {
  const Weights<float> weights("copy");
  const auto p = mha::detail::views_of(weights.borrowed());
  const auto rounded = rounded_weights<Q, float>(p.weight), gate = rounded_weights<Q, float>(p.gate);
  Gated<mha::Reference> plain(sizes);
  plain.quantize<Q>(weights.borrowed());
  EXPECT_NE(plain.explain(3).find(std::to_string(count) + " float, borrowed\n"), std::string::npos) << plain.explain(3);
  EXPECT_EQ(plain.packed_bytes(), 0u);
  for (Index i = 0; i < In; ++i)
    for (Index j = 0; j < Out; ++j) {
      ASSERT_EQ(plain.parameters().weight(i, j), rounded(i, j));
      ASSERT_EQ(plain.parameters().gate(i, j), gate(i, j));
    }
  for (Index j = 0; j < Out; ++j) {
    EXPECT_EQ(plain.parameters().bias(j), weights.bias(j)) << "biases are not rounded";
    EXPECT_EQ(plain.parameters().gate_bias(j), weights.gate_bias(j));
  }
  const Weights<double> doubles("doubles");
  Gated<mha::Cpu, double> wide(sizes);
  wide.quantize<Q>(doubles.borrowed());
  EXPECT_NE(wide.explain(3).find(std::to_string(count) + " double, packed only, in "), std::string::npos)
      << wide.explain(3);
}
TEST(LinearMemoryElsewhere, InIntegersIsACopyOfTheScalarOfRows) {
  expect_a_copy<scaled_int8>();
  expect_a_copy<scaled_int4>();
}

// 8 bits are what is meant where nothing is said.
TEST(LinearMemoryOnCpu, InEightBitsIsTheDefault) {
  const Weights<float> weights("default");
  Gated<mha::Cpu> said(sizes), own = owner<mha::Cpu>(weights), passed(sizes);
  said.quantize<scaled_int8>(weights.borrowed());
  own.quantize();
  passed.quantize(weights.borrowed());
  const auto x = rows();
  EXPECT_EQ(support::differing(own(x), said(x)), 0u);
  EXPECT_EQ(support::differing(passed(x), said(x)), 0u);
}

// Integers of one kind are not made of the other's, but weights that are passed become any.
TEST(LinearMemoryOnCpu, InIntegersOfAnotherKindIsRefused) {
  const Weights<float> weights("another kind");
  const auto x = rows();
  const std::string refusal = "quantize: of the Linear's " + std::to_string(count) +
                              " parameters only the packed ones are left: pass the weights themselves, "
                              "quantize(weights)";
  Gated<mha::Cpu> linear = owner<mha::Cpu>(weights);
  linear.quantize<scaled_int4>();
  const auto four = linear(x);
  const std::string plan = linear.explain(5);
  EXPECT_EQ(message_of([&] { linear.quantize(); }), refusal);
  EXPECT_EQ(message_of([&] { linear.quantize<scaled_int4>(); }), "");
  EXPECT_EQ(support::differing(linear(x), four), 0u);
  EXPECT_EQ(linear.explain(5), plan);
  linear.quantize(weights.borrowed());
  const auto eight = linear(x);
  EXPECT_EQ(support::differing(eight, weights.rounded<scaled_int8, mha::Cpu>(x)), 0u);
  EXPECT_EQ(message_of([&] { linear.quantize<scaled_int4>(); }), refusal);
  EXPECT_EQ(message_of([&] { linear.quantize(); }), "");
  EXPECT_EQ(support::differing(linear(x), eight), 0u);
  linear.quantize<scaled_int4>(weights.borrowed());
  EXPECT_EQ(support::differing(linear(x), four), 0u);
}

TEST(LinearMemoryOnCpu, OfAnUpdateThatThrewCanBeRounded) {
  const Weights<float> weights("threw");
  auto linear = owner<mha::Cpu>(weights);
  EXPECT_THROW(linear.update([](auto&) { throw std::bad_alloc(); }), std::bad_alloc);
  linear.quantize();
  EXPECT_EQ(support::differing(linear(rows()), weights.rounded<scaled_int8, mha::Cpu>(rows())), 0u);
}

TEST(LinearMemoryOnCpu, ATapeOfOtherWeightsIsRefused) {
  const Weights<float> weights("tape");
  auto linear = owner<mha::Cpu>(weights);
  const auto x = rows();
  auto tape = linear.tape();
  const auto y = linear(x, tape);
  linear.quantize();
  EXPECT_NE(message_of([&] { static_cast<void>(linear.backward(y, tape)); }), "");
}

}  // namespace
