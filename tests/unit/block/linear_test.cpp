// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <Eigen/Core>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/block/initialize.hpp>
#include <mha/block/linear.hpp>
#include <mha/systolic.hpp>

#include "far_backend.hpp"
#include "linear_oracle.hpp"
#include "message_of.hpp"
#include "plain_backend.hpp"

namespace {

using mha::Gated;
using mha::Identity;
using mha::Index;
using mha::Tensor;
using mha::TensorView;
using support::Bent;
using support::Lie;
using support::message_of;
using support::Rows;

template <class T> constexpr T rounded(double x) { return support::Random::rounded<T>(x); }

template <class L> void draw_weights(L& linear, support::Random& random) {
  using T = typename L::Scalar;
  linear.update([&](auto& p) {
    for (T& w : p.flat()) w = rounded<T>(random.normal() / 4);
  });
}

/// One call, of shapes and strides drawn, against loops in double.
template <class B, class T, class F> void expect_right(support::Random& random) {
  const Index batch = 1 + random.below(3), length = 1 + random.below(20), in = 1 + random.below(70),
              out = 1 + random.below(70);
  mha::Linear<T, B, F> linear({.inputs = in, .outputs = out, .bias = random.chance(0.7)});
  draw_weights(linear, random);
  Rows<T> x(support::lies[random.below(5)], batch, length, in), y(support::lies[random.below(5)], batch, length, out),
      r(support::lies[random.below(5)], batch, length, out);
  x.draw(random);
  r.draw(random);
  const int residual = random.below(3);  // none, another's, y itself
  if (residual == 2) y.copy(r.read());
  const auto out_view = y.view;
  const auto from = x.read(), added = residual == 2 ? TensorView<const T, 3>(y.view) : r.read();
  if (residual == 0)
    linear(from, mha::into(out_view));
  else
    linear(from, mha::residual(added), mha::into(out_view));

  const double operand = support::operand_error<B, T>();
  support::Worst worst;
  y.each([&](Index b, Index l, Index j) {
    auto expected = support::linear_oracle(from, linear.parameters(), linear.activation(), b, l, j, operand);
    if (residual != 0) expected.value += support::to_double(r.view(b, l, j));
    const double bound = expected.error + support::storage_error<T>(expected.value) +
                         4 * support::unit_roundoff<mha::Accumulator<T>>() * std::abs(expected.value);
    worst.see(support::to_double(y.view(b, l, j)), expected.value, bound, {b, l, j});
  });
  EXPECT_LE(worst.error(), 1) << worst.text() << ", residual " << residual << ", in " << in;
  EXPECT_EQ(y.spoilt(), 0u);
}

template <class B, class T> void expect_right_with_every_activation() {
  support::Random random(testing::UnitTest::GetInstance()->current_test_info()->test_suite_name());
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    expect_right<B, T, Identity>(random);
    expect_right<B, T, Bent>(random);
    expect_right<B, T, Gated<Bent>>(random);
  }
}

template <class T> class Linear : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Linear, Scalars);

TYPED_TEST(Linear, AgreesWithLoopsOnCpu) { expect_right_with_every_activation<mha::Cpu, TypeParam>(); }
TYPED_TEST(Linear, AgreesWithLoopsOnReference) { expect_right_with_every_activation<mha::Reference, TypeParam>(); }
TYPED_TEST(Linear, AgreesWithLoopsOnSystolic) {
  if constexpr (!std::is_same_v<TypeParam, double>) expect_right_with_every_activation<mha::Systolic<>, TypeParam>();
}

TEST(LinearOnOthers, AgreesWithLoops) {
  expect_right_with_every_activation<mha::CpuWith<mha::Serial>, float>();
  expect_right_with_every_activation<mha::EigenCpu, float>();
  expect_right_with_every_activation<support::PlainBackend, float>();
}

template <class B, class F> void expect_rows_of_their_own(const B& alone, const B& shared) {
  support::Random random("rows of their own");
  mha::Linear<float, B, F> linear({.inputs = 67, .outputs = 53});
  draw_weights(linear, random);
  Tensor<float, 2> x(41, 67), r(41, 53);
  random.fill(x);
  random.fill(r);
  const auto all = linear(x, mha::residual(r), shared);
  EXPECT_EQ(support::differing(all, linear(x, mha::residual(r), alone)), 0u);
  for (Index i = 0; i < 41; ++i) {
    const auto row = mha::view(&std::as_const(x)(i, 0), 1, 67), added = mha::view(&std::as_const(r)(i, 0), 1, 53);
    const auto one = linear(row, mha::residual(added));
    for (Index j = 0; j < 53; ++j) EXPECT_EQ(support::bits(one(0, j)), support::bits(all(i, j)));
  }
}

TEST(LinearBits, ARowDependsOnItselfAlone) {
  const mha::Cpu one(mha::ThreadPool(1)), three(mha::ThreadPool(3));
  expect_rows_of_their_own<mha::Cpu, Bent>(one, three);
  expect_rows_of_their_own<mha::Cpu, Gated<Bent>>(one, three);
  using Unit = mha::Systolic<>;
  expect_rows_of_their_own<Unit, Bent>(Unit(mha::ThreadPool(1)), Unit(mha::ThreadPool(3)));
}

TEST(LinearCall, ResultsHaveTheAxesOfX) {
  mha::Linear<float> linear({.inputs = 3, .outputs = 5});
  linear.initialize(mha::XavierUniform{.seed = 2});
  const auto rows = linear(Tensor<float, 2>(4, 3));
  static_assert(std::is_same_v<decltype(rows), const Tensor<float, 2>>);
  EXPECT_EQ(rows.extent(0), 4);
  EXPECT_EQ(rows.extent(1), 5);
  const auto batch = linear(Tensor<float, 3>(2, 4, 3));
  EXPECT_EQ(batch.extent(2), 5);
  EXPECT_EQ(linear(Tensor<float, 2>(0, 3)).size(), 0u);
  Eigen::MatrixXf x = Eigen::MatrixXf::Random(4, 3);
  const Eigen::MatrixXf y = linear(x);
  const auto w = linear.parameters().weight;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 5; ++j) EXPECT_NEAR(y(i, j), x(i, 0) * w(0, j) + x(i, 1) * w(1, j) + x(i, 2) * w(2, j), 1e-5f);
}

template <class B> void expect_in_place() {
  support::Random random("in place");
  mha::Linear<float, B, Bent> linear({.inputs = 24, .outputs = 24});
  draw_weights(linear, random);
  Tensor<float, 3> x(2, 9, 24);
  random.fill(x);
  const auto plain = linear(x), added = linear(x, mha::residual(x));
  Tensor<float, 3> y = x;
  linear(y, mha::into(y));
  EXPECT_EQ(support::differing(y, plain), 0u);
  y = x;
  linear(y, mha::into(y), mha::residual(y));
  EXPECT_EQ(support::differing(y, added), 0u);
  // A result that begins a row later than x, and a residual that begins a row later still.
  Tensor<float, 2> long_x(20, 24);
  random.fill(long_x);
  const Tensor<float, 2> before = long_x;
  const auto part = [](auto& t, Index first) { return mha::view(&t(first, 0), 18, 24); };
  const auto expected = linear(part(before, 0), mha::residual(part(before, 2)));
  auto target = part(long_x, 1);
  linear(part(long_x, 0), mha::into(target), mha::residual(part(long_x, 2)));
  const auto expect_same = [&](const auto& y_found, const auto& y_expected) {
    for (Index i = 0; i < 18; ++i)
      for (Index j = 0; j < 24; ++j) EXPECT_EQ(y_found(i, j), y_expected(i, j));
  };
  expect_same(target, expected);
  // The residual overlaps the result alone.
  Tensor<float, 2> shared = before;
  const auto beside = linear(part(before, 0), mha::residual(part(before, 0)));
  auto late = part(shared, 1);
  linear(part(before, 0), mha::into(late), mha::residual(part(shared, 0)));
  expect_same(late, beside);
}

TEST(LinearCall, TheResultMayOverlapXAndTheResidual) {
  expect_in_place<mha::Cpu>();
  expect_in_place<mha::Reference>();
  expect_in_place<mha::Systolic<>>();
}

TEST(LinearCall, WorksInTheMemoryOfAnotherMachine) {
  support::Random random("far");
  const auto compare = [&]<class F>(const F&) {
    mha::Linear<float, support::Far, F> there({.inputs = 11, .outputs = 7});
    mha::Linear<float, mha::Reference, F> here({.inputs = 11, .outputs = 7});
    draw_weights(here, random);
    there.borrow(here.parameters());
    Tensor<float, 3> x(2, 5, 11), r(2, 5, 7);
    random.fill(x);
    random.fill(r);
    const support::FarTensor<float, 3> far_x(x), far_r(r);
    EXPECT_EQ(support::differing(there(far_x).near(), here(x)), 0u);
    const int merged = support::Far::merged;
    there(far_x, mha::residual(far_r), mha::into(far_r));
    EXPECT_EQ(support::differing(far_r.near(), here(x, mha::residual(r))), 0u);
    EXPECT_EQ(support::Far::merged - merged, mha::detail::is_gated<F> ? 1 : 0);
    EXPECT_THROW(static_cast<void>(there(far_x, mha::residual(r.view()))), mha::ShapeError);
  };
  compare(Identity{});
  compare(Bent{});
  compare(Gated<Bent>{});
}

/// Multiplies by a number that it was given.
struct Times {
  float factor;
  template <class S> MHA_HOST_DEVICE S operator()(const S& x) const { return S(factor) * x; }
};

TEST(LinearConstructor, TakesAnActivationAndABackendInAnyOrder) {
  const mha::Cpu two(mha::ThreadPool(2));
  const mha::LinearConfig config{.inputs = 4, .outputs = 3, .bias = false};
  mha::Linear<float, mha::Cpu, Times> a(config, Times{3}, two), b(config, two, Times{3});
  a.initialize(mha::XavierUniform{.seed = 1});
  b.borrow(a.parameters());
  EXPECT_EQ(a.backend().threads().workers(), 2);
  EXPECT_EQ(b.backend().threads().workers(), 2);
  Tensor<float, 2> x(2, 4);
  std::fill(x.begin(), x.end(), 1.f);
  const auto y = a(x);
  EXPECT_EQ(support::differing(y, b(x)), 0u);
  const auto w = a.parameters().weight;
  EXPECT_NEAR(y(1, 2), 3 * (w(0, 2) + w(1, 2) + w(2, 2) + w(3, 2)), 1e-5f);
}

TEST(LinearWeights, AreNamedAndInOneRow) {
  mha::Linear<float, mha::Cpu, Gated<Bent>> linear({.inputs = 3, .outputs = 2});
  EXPECT_EQ(linear.parameter_count(), 16);
  EXPECT_EQ(linear.parameters().weight.data, nullptr);
  linear.update([](auto& p) {
    EXPECT_EQ(p.flat().size(), 16u);
    p.weight(2, 1) = 5;
    p.bias(0) = 6;
    p.gate(0, 0) = 7;
    p.gate_bias(1) = 8;
  });
  const auto p = linear.parameters();
  EXPECT_EQ(p.weight(2, 1) + p.bias(0) + p.gate(0, 0) + p.gate_bias(1), 26);
  std::vector<float> all(p.flat().begin(), p.flat().end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all[11], 0);
  EXPECT_EQ(all[12], 5);
}

TEST(LinearWeights, DrawnFromASeedAreTheSameOnEveryBackend) {
  const mha::LinearConfig config{.inputs = 5, .outputs = 4};
  mha::Linear<float, mha::Cpu, Gated<Bent>> a(config);
  mha::Linear<float, mha::Reference, Gated<Bent>> b(config);
  const mha::XavierUniform draw{.seed = 9};
  a.initialize(draw);
  b.initialize(draw);
  const auto first = a.parameters().flat(), second = b.parameters().flat();
  EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin()));
  EXPECT_NE(a.parameters().weight(0, 0), a.parameters().gate(0, 0));
  EXPECT_NE(a.parameters().weight(4, 3), 0);
  EXPECT_EQ(a.parameters().bias(3), 0);
}

TEST(LinearWeights, OfATransposedMatrixAreReadWhereTheyAre) {
  support::Random random("transposed");
  auto stored = std::make_shared<Tensor<float, 2>>(13, 17);  // (out, in), as PyTorch stores it
  Tensor<float, 1> bias(13);
  random.fill(*stored);
  random.fill(bias);
  Tensor<float, 2> x(6, 17);
  random.fill(x);
  mha::Linear<float, mha::Cpu, Bent> packed({.inputs = 17, .outputs = 13});
  mha::Linear<float, mha::Reference, Bent> plain({.inputs = 17, .outputs = 13});
  packed.borrow({.weight = mha::transposed(stored->view()), .bias = bias}, stored);
  plain.borrow(packed.parameters());
  EXPECT_EQ(packed.parameters().weight(3, 5), (*stored)(5, 3));
  const auto a = packed(x), b = plain(x);
  EXPECT_LE(support::largest_difference(a, b), 1e-4);
  EXPECT_EQ(stored.use_count(), 2);
  EXPECT_THROW(packed.update([](auto&) {}), mha::ShapeError);
}

TEST(LinearWeights, AfterAnUpdateThatThrewAreReadWhereTheyAre) {
  mha::Linear<float, mha::Cpu, Bent> linear({.inputs = 2, .outputs = 2, .bias = false});
  linear.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_THROW(linear.update([](auto& p) {
    p.weight(0, 0) = 4;
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  Tensor<float, 2> x(1, 2);
  x(0, 0) = 1;
  EXPECT_EQ(linear(x)(0, 0), 4);
}

TEST(LinearWeights, AreNoneAfterAFirstUpdateThatThrew) {
  mha::Linear<float> linear({.inputs = 2, .outputs = 3}), other = linear;
  const auto none = [&] {
    EXPECT_EQ(linear.parameters().weight.data, nullptr);
    const Tensor<float, 2> x(1, 2);
    EXPECT_EQ(message_of([&] { (void)linear(x); }),
              "linear: expected 9 weights, got 0: call initialize, update or borrow first");
  };
  EXPECT_THROW(linear.initialize(mha::XavierUniform{.gain = std::nan("")}), mha::ShapeError);
  none();
  EXPECT_THROW(linear.initialize([](const auto& p) {
    p.weight(0, 0) = 4;
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  none();
  other.initialize(mha::XavierUniform{.seed = 1});
  const auto given = other.parameters();
  EXPECT_THROW(linear.update([&](auto&) {
    linear.borrow(given);
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  EXPECT_EQ(linear.parameters().weight.data, given.weight.data) << "what f borrowed stays";
  mha::Linear<float> third({.inputs = 2, .outputs = 3});
  EXPECT_THROW(third.update([&](auto&) {
    third = other;
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  EXPECT_NE(third.parameters().weight.data, nullptr) << "what f assigned stays";
}

// The memory of a first update that threw stays, because another Linear may have borrowed it meanwhile.
TEST(LinearWeights, BorrowedInAFirstUpdateThatThrewCanBeRead) {
  mha::Linear<float, mha::Reference> linear({.inputs = 2, .outputs = 3}), views = linear, named = linear;
  EXPECT_THROW(linear.update([&](const auto& p) {
    std::fill(p.all.begin(), p.all.end(), 4.0f);
    views.borrow(linear.parameters());
    named.borrow({.weight = p.weight, .bias = p.bias});
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  EXPECT_EQ(linear.parameters().weight.data, nullptr);
  const auto expect = [&](float number) {
    for (const auto* borrower : {&views, &named}) {
      const auto w = borrower->parameters();
      for (mha::Index j = 0; j < 3; ++j) {
        EXPECT_EQ(w.weight(0, j), number);
        EXPECT_EQ(w.weight(1, j), number);
        EXPECT_EQ(w.bias(j), number);
      }
    }
  };
  expect(4);
  linear.update([](const auto& p) { EXPECT_EQ(p.weight(1, 2), 0) << "zero at first, as ever"; });
  EXPECT_EQ(linear.parameters().weight.data, views.parameters().weight.data);
  expect(0);
}

TEST(LinearWeights, OfAFirstUpdateThatThrewAreNoneToAssign) {
  mha::Linear<float, mha::Reference> linear({.inputs = 2, .outputs = 3}), none = linear;
  EXPECT_THROW(none.update([](const auto&) { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_THROW(linear.update([&](const auto&) { linear = none; }), mha::ShapeError);
}

// What f borrows counts, and the update says that it wrote nothing of it.
TEST(LinearWeights, BorrowedOrMovedAwayInAnUpdateAreRefused) {
  using Narrow = mha::bfloat16;
  using L = mha::Linear<float>;
  Tensor<Narrow, 2> narrow(20, 20);
  Tensor<float, 2> w(20, 20), x(3, 20);
  std::fill(narrow.begin(), narrow.end(), Narrow(2));
  std::fill(w.begin(), w.end(), 3.f);
  std::fill(x.begin(), x.end(), 1.f);
  L linear({.inputs = 20, .outputs = 20, .bias = false}), other = linear;
  EXPECT_EQ(
      message_of([&] { linear.update([&](auto&) { linear.borrow(mha::BorrowedLinear<Narrow>{.weight = narrow}); }); }),
      "update: of the Linear's 400 parameters only the packed ones are left, so they cannot be written");
  EXPECT_EQ(linear(x)(2, 19), 40);
  EXPECT_EQ(message_of([&] { other.update([&](auto&) { other.borrow({.weight = w}); }); }),
            "update: the Linear's 400 parameters are borrowed, so they cannot be written: copy them in the update() of "
            "a new one");
  EXPECT_EQ(other(x)(2, 19), 60);
  L moved({.inputs = 20, .outputs = 20, .bias = false});
  EXPECT_EQ(message_of([&] { moved.update([&](auto&) { other = std::move(moved); }); }),
            "update: the Linear has 0 of its 400 parameters, because it was moved from");
  EXPECT_EQ(other(x)(2, 19), 0);
}

TEST(LinearMemory, AWorkspaceIsReused) {
  support::Random random("workspace");
  mha::Linear<float, mha::Systolic<>, Gated<Bent>> linear({.inputs = 32, .outputs = 48});
  draw_weights(linear, random);
  Tensor<float, 2> x(70, 32), y(70, 48);
  random.fill(x);
  mha::Workspace workspace;
  linear(x, mha::into(y), workspace);
  const int before = workspace.allocations();
  linear(x, workspace, mha::into(y));
  EXPECT_EQ(workspace.allocations(), before);
}

TEST(LinearErrors, NameTheAxisAndBothValues) {
  mha::Linear<float> linear({.inputs = 4, .outputs = 3});
  const Tensor<float, 2> x(5, 4), wide(5, 6);
  EXPECT_EQ(message_of([&] { static_cast<void>(linear(x)); }),
            "linear: expected 15 weights, got 0: call initialize, update or borrow first");
  linear.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] { static_cast<void>(linear(wide)); }), "linear: x has width 6 but inputs is 4");
  Tensor<float, 2> narrow(5, 2), few(4, 3), y(5, 3);
  Tensor<float, 3> batch(2, 5, 3);
  support::poison_all(y);
  EXPECT_EQ(message_of([&] { linear(x, mha::into(narrow)); }), "linear: the result has width 2, expected 3");
  EXPECT_EQ(message_of([&] { linear(x, mha::into(few)); }), "linear: x has length 5 but the result has length 4");
  EXPECT_EQ(message_of([&] { linear(x, mha::into(batch)); }), "linear: x has batch 1 but the result has batch 2");
  EXPECT_EQ(message_of([&] { linear(x, mha::into(y), mha::residual(few)); }),
            "linear: x has length 5 but the residual has length 4");
  EXPECT_EQ(message_of([&] { linear(x, mha::into(y), mha::residual(narrow)); }),
            "linear: the residual has width 2, expected 3");
  const TensorView<const float, 2> nothing{nullptr, {5, 3}, {3, 1}};
  EXPECT_EQ(message_of([&] { linear(x, mha::into(y), mha::residual(nothing)); }),
            "linear: the residual has 15 elements but its data is null");
  EXPECT_EQ(message_of([&] { linear(x, mha::into(support::repeated(y.view(), 0))); }),
            support::overlaps_itself("linear: the result", "length", 5));
  for (const float v : y) EXPECT_EQ(support::bits(v), support::bits(support::poison<float>()));
  EXPECT_EQ(message_of([] { mha::Linear<float>({.inputs = 0, .outputs = 3}); }),
            "Linear: inputs is 0, it must be at least 1");
  EXPECT_EQ(message_of([&] { static_cast<void>(linear.cost(-1)); }), "cost: rows is -1, it must be at least 0");
}

TEST(LinearErrors, ANullActivationIsRefusedAtConstruction) {
  using Pointer = float (*)(float);
  const std::string refused = "activation: the function is null, expected one to call";
  EXPECT_EQ(message_of([] { mha::Linear<float, mha::Cpu, Pointer>({.inputs = 2, .outputs = 2}); }), refused);
  EXPECT_EQ(message_of([] { mha::Linear<float, mha::Cpu, Pointer>({.inputs = 2, .outputs = 2}, Pointer{}); }), refused);
}

TEST(LinearErrors, OfBorrowSayBothShapes) {
  mha::Linear<float, mha::Cpu, Gated<Bent>> linear({.inputs = 4, .outputs = 3});
  const Tensor<float, 2> good(4, 3), turned(3, 4);
  const Tensor<float, 1> bias(3), long_bias(4);
  EXPECT_EQ(message_of([&] { linear.borrow({.weight = turned, .bias = bias, .gate = good, .gate_bias = bias}); }),
            "borrow: the weight matrix is (3, 4), expected (4, 3): pass mha::transposed(view)");
  EXPECT_EQ(message_of([&] { linear.borrow({.weight = good, .bias = bias, .gate_bias = bias}); }),
            "borrow: the gate matrix is (0, 0), expected (4, 3)");
  EXPECT_EQ(message_of([&] { linear.borrow({.weight = good, .bias = long_bias, .gate = good, .gate_bias = bias}); }),
            "borrow: the bias has 4 elements, expected 3");
  EXPECT_EQ(message_of([&] { linear.borrow({.weight = good, .bias = bias, .gate = good}); }),
            "borrow: the gate bias has 0 elements, expected 3");
  EXPECT_EQ(linear.parameters().weight.data, nullptr);
  mha::Linear<float> plain({.inputs = 4, .outputs = 3, .bias = false});
  EXPECT_EQ(message_of([&] { plain.borrow({.weight = good, .gate = good}); }),
            "borrow: the gate matrix is (4, 3), expected (0, 0)");
  EXPECT_EQ(message_of([&] { plain.borrow({.weight = good, .bias = bias}); }),
            "borrow: the bias has 3 elements, expected 0: set .bias in the configuration");
}

TEST(LinearCost, CountsProductsAndBytes) {
  mha::Linear<float, mha::Cpu, Bent> linear({.inputs = 10, .outputs = 20});
  const mha::StageCost c = linear.cost(7);
  EXPECT_EQ(c.parameters, 220);
  EXPECT_EQ(c.flop, 2. * 7 * 10 * 20);
  EXPECT_EQ(c.bytes, 4. * (220 + 7 * 10 + 7 * 20));
  mha::Linear<mha::half, mha::Cpu, Gated<Bent>> gated({.inputs = 10, .outputs = 20, .bias = false});
  EXPECT_EQ(gated.cost(7).flop, 4. * 7 * 10 * 20);
  EXPECT_EQ(gated.cost(7).bytes, 2. * (400 + 7 * 10 + 7 * 20));
}

TEST(LinearExplain, SaysWhatRuns) {
  mha::Linear<float, mha::Cpu, Bent> linear({.inputs = 10, .outputs = 20});
  EXPECT_NE(linear.explain(7).find("(7, 10) x (10, 20)"), std::string::npos);
  EXPECT_NE(linear.explain(7).find("220 float, none yet"), std::string::npos);
  EXPECT_NE(linear.explain(7).find("activation:  Bent"), std::string::npos);
  linear.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_NE(linear.explain(7).find("220 float, owned, packed in "), std::string::npos);
  const std::string kernel = std::string("kernel:      Cpu: float, kernel ") + to_string(mha::current_isa()) +
                             ", ThreadPool with " + std::to_string(mha::ThreadPool{}.workers()) +
                             (mha::ThreadPool{}.workers() == 1 ? " worker" : " workers");
  EXPECT_NE(linear.explain(7).find(kernel + ", fused epilogue\n"), std::string::npos) << linear.explain(7);
  EXPECT_NE((mha::Linear<float, mha::Reference, Gated<Bent>>({.inputs = 1, .outputs = 1}).explain(1))
                .find("activation:  gated Bent"),
            std::string::npos);
}

/// An activation with data, whose value the constructor has to be given.
struct Multiplied {
  explicit Multiplied(float f) : factor(f) {}
  template <class S> S operator()(const S& x) const { return x * S(factor); }
  float factor;
};

TEST(LinearActivation, WithoutADefaultIsFusedToo) {
  using Layer = mha::Linear<mha::half, mha::Cpu, Multiplied>;
  static_assert(mha::FusesEpilogue<mha::Cpu, mha::half, Multiplied>);
  Layer linear({.inputs = 100, .outputs = 3, .bias = false}, Multiplied(0.001f));
  linear.update([](auto& p) {
    for (mha::half& w : p.flat()) w = mha::half(1000.f);
  });
  Tensor<mha::half, 2> x(2, 100);
  for (Index j = 0; j < 100; ++j) x(0, j) = x(1, j) = mha::half(1.f);
  EXPECT_EQ(float(linear(x)(1, 2)), 100) << "the sum, 100,000, is no half";
}

TEST(LinearBorrow, RefusesWeightsThatItOwns) {
  mha::Linear<float, mha::EigenCpu, Gated<Bent>> gated({.inputs = 4, .outputs = 3, .bias = false});
  gated.initialize(mha::XavierUniform{.seed = 1});
  const auto own = gated.parameters();
  const Tensor<float, 2> other(4, 3);
  const std::string wanted = "borrow: weights that are among the 24 of the Linear's own, expected another's";
  EXPECT_EQ(message_of([&] { gated.borrow(own); }), wanted);
  EXPECT_EQ(message_of([&] { gated.borrow({.weight = other, .gate = own.weight}); }), wanted);
  const TensorView<const float, 2> reversed{own.gate.pointer(3, 2), {4, 3}, {-3, -1}};
  EXPECT_EQ(message_of([&] { gated.borrow({.weight = other, .gate = reversed}); }), wanted);
  EXPECT_EQ(gated.parameters().gate.data, own.gate.data);
}

TEST(LinearBorrow, ABiasOfNoElementsIsNone) {
  mha::Linear<float, mha::EigenCpu> linear({.inputs = 4, .outputs = 3, .bias = false});
  const Tensor<float, 2> weight(4, 3), x(2, 4);
  const float beyond[] = {1};
  linear.borrow({.weight = weight, .bias = mha::view(+beyond, 0)});
  EXPECT_EQ(linear.parameters().bias.data, nullptr);
  EXPECT_EQ(linear(x)(1, 2), 0);
}

TEST(LinearBorrow, AMovedFromLinearHasNoWeights) {
  mha::Linear<float> linear({.inputs = 4, .outputs = 3, .bias = false});
  const auto weight = std::make_shared<Tensor<float, 2>>(4, 3);
  linear.borrow({.weight = *weight}, weight);
  const auto taken = std::move(linear);
  EXPECT_EQ(weight.use_count(), 2);
  const Tensor<float, 2> x(2, 4);
  EXPECT_EQ(message_of([&] { (void)linear(x); }),
            "linear: expected 12 weights, got 0: call initialize, update or borrow first");
  EXPECT_EQ(taken(x)(1, 2), 0);
}

TEST(LinearBorrow, AMovedFromLinearOfPackedWeightsAloneHasNone) {
  mha::Linear<float> linear({.inputs = 4, .outputs = 3, .bias = false});
  linear.initialize(mha::XavierUniform{.seed = 1});
  linear.drop_unpacked();
  Tensor<float, 2> x(2, 4);
  x(1, 2) = 1;
  const auto before = linear(x);
  const auto taken = std::move(linear);
  EXPECT_EQ(support::differing(taken(x), before), 0u);
  const std::string rest = ": expected 12 weights, got 0: call initialize, update or borrow first";
  EXPECT_EQ(message_of([&] { (void)linear(x); }), "linear" + rest);
  EXPECT_EQ(message_of([&] { linear.drop_unpacked(); }), "drop_unpacked" + rest);
  EXPECT_NE(linear.explain(1).find("12 float, none yet"), std::string::npos);
  linear = taken;
  EXPECT_EQ(support::differing(linear(x), before), 0u);
  auto another = std::move(linear);
  linear.initialize(mha::XavierUniform{.seed = 2});
  EXPECT_NE(support::differing(linear(x), before), 0u);
  another = linear;
  EXPECT_EQ(support::differing(linear(x), another(x)), 0u);
}

TEST(LinearBorrow, WhatIsBorrowedAgainIsHeldOn) {
  mha::Linear<float, mha::EigenCpu> linear({.inputs = 4, .outputs = 3, .bias = false});
  auto weight = std::make_shared<Tensor<float, 2>>(4, 3);
  const std::weak_ptr<Tensor<float, 2>> watch = weight;
  const Tensor<float, 2>& rows = *weight;  // before `weight` is moved, in whatever order arguments are made
  linear.borrow({.weight = rows}, std::move(weight));
  linear.borrow({.weight = linear.parameters().weight});
  EXPECT_FALSE(watch.expired());
  const Tensor<float, 2> another(4, 3);
  linear.borrow({.weight = another});
  EXPECT_TRUE(watch.expired());
}

}  // namespace
