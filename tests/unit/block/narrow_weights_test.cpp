// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/block/feed_forward.hpp>
#include <mha/block/linear.hpp>
#include <mha/block/narrow_weights.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "every_isa.hpp"
#include "far_backend.hpp"
#include "linear_oracle.hpp"
#include "message_of.hpp"
#include "plain_backend.hpp"

namespace {

using mha::BorrowedLinear;
using mha::Gated;
using mha::Identity;
using mha::Index;
using mha::Tensor;
using mha::TensorView;
using support::Bent;
using support::message_of;
using support::Rows;

static_assert(mha::WidensWeights<mha::Cpu, float, mha::bfloat16> && mha::WidensWeights<mha::Cpu, float, mha::half>);
static_assert(!mha::WidensWeights<mha::Cpu, double, mha::half> &&
              !mha::WidensWeights<mha::Reference, float, mha::half>);

/// Weights in W as a checkpoint has them, (out, in), subnormal numbers among them.
template <class W> struct Checkpoint {
  Tensor<W, 2> weight, gate;
  Tensor<W, 1> bias, gate_bias;
  bool has_bias, has_gate;

  Checkpoint(support::Random& random, Index in, Index out, bool biases, bool gated)
      : weight(out, in), gate(out, in), bias(out), gate_bias(out), has_bias(biases), has_gate(gated) {
    for (auto* w : {&weight, &gate})
      for (W& x : *w)
        x = random.chance(0.1) ? W::from_bits(static_cast<std::uint16_t>(random.below(4)))
                               : support::Random::rounded<W>(random.normal() / 4);
    random.fill(bias);
    random.fill(gate_bias);
  }

  BorrowedLinear<W> borrowed() const {
    BorrowedLinear<W> w{.weight = mha::transposed(weight.view())};
    if (has_bias) w.bias = bias;
    if (has_gate) w.gate = mha::transposed(gate.view());
    if (has_gate && has_bias) w.gate_bias = gate_bias;
    return w;
  }
  /// The same numbers, written as those of a Linear's own scalar.
  template <class L> void write(L& linear) const {
    linear.update([&](auto& p) {
      for (Index i = 0; i < weight.extent(1); ++i)
        for (Index j = 0; j < weight.extent(0); ++j) {
          p.weight(i, j) = float(weight(j, i));
          if (has_gate) p.gate(i, j) = float(gate(j, i));
        }
      for (Index j = 0; has_bias && j < weight.extent(0); ++j) {
        p.bias(j) = float(bias(j));
        if (has_gate) p.gate_bias(j) = float(gate_bias(j));
      }
    });
  }
};

/// One call of T on B by weights in W, of shapes and strides drawn, against loops in double and against the bits of the
/// same weights in T.
template <class B, class T, class W, class F> void expect_right(support::Random& random, Index longest) {
  const Index batch = 1 + random.below(3), length = 1 + random.below(longest), in = 1 + random.below(300),
              out = 1 + random.below(120);
  const mha::LinearConfig config{.inputs = in, .outputs = out, .bias = random.chance(0.7)};
  mha::Linear<T, B, F> linear(config), wide(config);
  {
    const Checkpoint<W> checkpoint(random, in, out, config.bias, mha::detail::is_gated<F>);
    linear.borrow(checkpoint.borrowed());
    checkpoint.write(wide);
  }
  Rows<T> x(support::lies[random.below(5)], batch, length, in), y(support::lies[random.below(5)], batch, length, out),
      r(support::lies[random.below(5)], batch, length, out);
  x.draw(random);
  r.draw(random);
  Tensor<T, 3> same(batch, length, out);
  const bool adds = random.chance(0.5);
  if (adds) {
    linear(x.read(), mha::residual(r.read()), mha::into(y.view));
    wide(x.read(), mha::residual(r.read()), mha::into(same));
  } else {
    linear(x.read(), mha::into(y.view));
    wide(x.read(), mha::into(same));
  }
  const double operand = support::operand_error<B, T>();
  support::Worst worst;
  std::size_t other_bits = 0;
  y.each([&](Index b, Index l, Index j) {
    auto expected = support::linear_oracle(x.read(), wide.parameters(), wide.activation(), b, l, j, operand,
                                           support::zero_below<B>());
    if (adds) expected.value += support::to_double(r.view(b, l, j));
    const double bound = expected.error + 4 * support::unit_roundoff<T>() * std::abs(expected.value);
    worst.see(support::to_double(y.view(b, l, j)), expected.value, bound, {b, l, j});
    other_bits += support::bits(y.view(b, l, j)) != support::bits(same(b, l, j)) ? 1u : 0u;
  });
  EXPECT_LE(worst.error(), 1) << worst.text() << ", in " << in << ", out " << out;
  EXPECT_EQ(other_bits, 0u) << "in " << in << ", out " << out << ", rows " << batch * length;
  EXPECT_EQ(y.spoilt(), 0u);
}

template <class B, class T, class W> void expect_right_with_every_activation(int rounds) {
  support::Random random(testing::UnitTest::GetInstance()->current_test_info()->test_suite_name());
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    const Index longest = round % 3 == 0 ? 1 : round % 3 == 1 ? 20 : 90;
    expect_right<B, T, W, Identity>(random, longest);
    expect_right<B, T, W, Bent>(random, longest);
    expect_right<B, T, W, Gated<Bent>>(random, longest);
  }
}

template <class W> class NarrowWeights : public testing::Test {};
using Scalars = testing::Types<mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(NarrowWeights, Scalars, );

TYPED_TEST(NarrowWeights, AgreeWithLoopsAndWithWideOnesAtEveryLevel) {
  support::at_every_isa([] { expect_right_with_every_activation<mha::Cpu, float, TypeParam>(6); });
}
TYPED_TEST(NarrowWeights, AgreeOnOtherBackendsAndScalars) {
  expect_right_with_every_activation<mha::CpuWith<mha::Serial>, float, TypeParam>(2);
  expect_right_with_every_activation<mha::Cpu, double, TypeParam>(2);
  expect_right_with_every_activation<mha::Reference, float, TypeParam>(2);
  expect_right_with_every_activation<mha::EigenCpu, float, TypeParam>(2);
  expect_right_with_every_activation<mha::Systolic<>, float, TypeParam>(2);
  expect_right_with_every_activation<mha::Systolic<mha::AmxArray, mha::HighPrecision>, float, TypeParam>(2);
  expect_right_with_every_activation<mha::Systolic<mha::AmxArray, mha::HighestPrecision>, float, TypeParam>(2);
  expect_right_with_every_activation<support::PlainBackend, float, TypeParam>(2);
}

TYPED_TEST(NarrowWeights, ARowDependsOnItselfAlone) {
  support::Random random("rows of their own");
  const Checkpoint<TypeParam> checkpoint(random, 530, 250, true, true);
  mha::Linear<float, mha::Cpu, Gated<Bent>> linear({.inputs = 530, .outputs = 250});
  linear.borrow(checkpoint.borrowed());
  Tensor<float, 2> x(300, 530);
  random.fill(x);
  support::at_every_isa([&] {
    const auto all = linear(x, mha::Cpu(mha::ThreadPool(3)));
    EXPECT_EQ(support::differing(all, linear(x, mha::Cpu(mha::ThreadPool(1)))), 0u);
    for (const Index n : {1, 5, 33}) {
      const Index first = random.below(300 - n);
      const auto some = linear(mha::view(&std::as_const(x)(first, 0), n, 530));
      std::size_t differing = 0;
      for (Index i = 0; i < n; ++i)
        for (Index j = 0; j < 250; ++j)
          differing += support::bits(some(i, j)) != support::bits(all(first + i, j)) ? 1u : 0u;
      EXPECT_EQ(differing, 0u) << n << " rows";
    }
  });
}

TYPED_TEST(NarrowWeights, OfInfinityAndNanSpoilTheirOwnColumnAlone) {
  using W = TypeParam;
  Tensor<W, 2> weight(40, 60);
  for (W& w : weight) w = W(0.5f);
  weight(3, 7) = W(std::numeric_limits<float>::infinity());
  weight(9, 50) = W(std::numeric_limits<float>::quiet_NaN());
  mha::Linear<float> linear({.inputs = 40, .outputs = 60, .bias = false});
  linear.borrow(BorrowedLinear<W>{.weight = weight});
  for (const Index rows : {1, 3, 70}) {
    Tensor<float, 2> x(rows, 40);
    for (float& v : x) v = 1;
    const auto y = linear(x);
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < 60; ++j) {
        if (j == 50)
          EXPECT_NE(y(i, j), y(i, j));
        else
          EXPECT_EQ(y(i, j), j == 7 ? std::numeric_limits<float>::infinity() : 20);
      }
  }
}

TYPED_TEST(NarrowWeights, InTheMemoryOfAnotherMachineAreOfItsScalar) {
  support::Random random("far");
  const Checkpoint<TypeParam> checkpoint(random, 11, 7, true, true);
  mha::Linear<float, support::Far, Gated<Bent>> there({.inputs = 11, .outputs = 7});
  mha::Linear<float, mha::Reference, Gated<Bent>> here({.inputs = 11, .outputs = 7});
  there.borrow(checkpoint.borrowed());
  checkpoint.write(here);
  Tensor<float, 3> x(2, 5, 11);
  random.fill(x);
  EXPECT_EQ(support::differing(there(support::FarTensor<float, 3>(x)).near(), here(x)), 0u);
}

TYPED_TEST(NarrowWeights, OfALinearOfThatScalarAreTakenByItsViews) {
  mha::Linear<TypeParam> owner({.inputs = 30, .outputs = 20});
  owner.initialize(mha::XavierUniform{.seed = 3});
  mha::Linear<float> linear({.inputs = 30, .outputs = 20});
  linear.borrow(owner.parameters());
  Tensor<float, 2> x(1, 30);
  x(0, 4) = 1;
  const auto y = linear(x);
  for (Index j = 0; j < 20; ++j) EXPECT_EQ(y(0, j), float(owner.parameters().weight(4, j)));
}

TYPED_TEST(NarrowWeights, AreReadWhenBorrowedOnlyAndTakeTheirOwnBytes) {
  using W = TypeParam;
  support::Random random("bytes");
  auto checkpoint = std::make_shared<Checkpoint<W>>(random, 96, 480, true, false);
  mha::Linear<float> linear({.inputs = 96, .outputs = 480});
  linear.borrow(checkpoint->borrowed(), checkpoint);
  EXPECT_EQ(checkpoint.use_count(), 1);
  Tensor<float, 2> x(3, 96);
  random.fill(x);
  const auto before = linear(x);
  support::poison_all(checkpoint->weight);
  EXPECT_EQ(support::differing(linear(x), before), 0u);
  EXPECT_EQ(linear.packed_bytes(), 96u * 480 * 2 + 480 * 4);
  const std::string scalar = std::is_same_v<W, mha::half> ? "half" : "bfloat16";
  EXPECT_NE(linear.explain(3).find("weights:     46560 " + scalar + ", packed only, in " +
                                   std::to_string(96 * 480 * 2 + 480 * 4) + " bytes\n"),
            std::string::npos)
      << linear.explain(3);
  EXPECT_EQ(linear.cost(3).parameters, 46560);
  EXPECT_EQ(linear.cost(3).bytes, 2. * 96 * 480 + 4. * (480 + 3 * 96 + 3 * 480));
  EXPECT_EQ(linear.parameters().weight.data, nullptr);
  mha::Linear<float, mha::Reference> plain({.inputs = 96, .outputs = 480});
  plain.borrow(Checkpoint<W>(random, 96, 480, true, false).borrowed());
  EXPECT_NE(plain.explain(3).find("weights:     46560 float, borrowed\n"), std::string::npos) << plain.explain(3);
  EXPECT_EQ(plain.cost(3).bytes, 4. * (46560 + 3 * 96 + 3 * 480));
  EXPECT_EQ(plain.packed_bytes(), 0u);
}

TYPED_TEST(NarrowWeights, ServeAFeedForwardWithoutAnAllocation) {
  using W = TypeParam;
  support::Random random("feed-forward");
  const Checkpoint<W> up(random, 40, 100, false, true), down(random, 100, 40, false, false);
  const mha::FeedForwardConfig config{.d_model = 40, .d_hidden = 100, .bias = false};
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> narrow(config), wide(config);
  EXPECT_EQ(narrow.packed_bytes(), 0u);
  narrow.up().borrow(up.borrowed());
  narrow.down().borrow(down.borrowed());
  EXPECT_EQ(narrow.packed_bytes(), 2u * (40 * 2 * 144 + 100 * 48)) << "columns in whole vectors of the widest kernel";
  up.write(wide.up());
  down.write(wide.down());
  Tensor<float, 2> x(7, 40), y(7, 40);
  random.fill(x);
  mha::Workspace workspace;
  narrow(x, mha::residual(x), mha::into(y), workspace);
  EXPECT_EQ(support::differing(y, wide(x, mha::residual(x))), 0u);
  const int before = workspace.allocations();
  narrow(x, mha::residual(x), mha::into(y), workspace);
  EXPECT_EQ(workspace.allocations(), before);
  EXPECT_EQ(message_of([&] { narrow.initialize(mha::XavierUniform{.seed = 1}); }),
            "update: up(): of the Linear's 8000 parameters only the packed ones are left, so they cannot be written");
}

TYPED_TEST(NarrowWeights, OfAnotherShapeAreRefusedAndNothingChanges) {
  using W = TypeParam;
  mha::Linear<float, mha::Cpu, Gated<Bent>> linear({.inputs = 4, .outputs = 3});
  linear.initialize(mha::XavierUniform{.seed = 1});
  const Tensor<W, 2> good(4, 3), turned(3, 4);
  const Tensor<W, 1> bias(3), long_bias(4);
  const auto error = [&](const BorrowedLinear<W>& w) { return message_of([&] { linear.borrow(w); }); };
  EXPECT_EQ(error({.weight = turned, .bias = bias, .gate = good, .gate_bias = bias}),
            "borrow: the weight matrix is (3, 4), expected (4, 3): pass mha::transposed(view)");
  EXPECT_EQ(error({.weight = good, .bias = long_bias, .gate = good, .gate_bias = bias}),
            "borrow: the bias has 4 elements, expected 3");
  EXPECT_EQ(error({.weight = good, .bias = bias, .gate_bias = bias}),
            "borrow: the gate matrix is (0, 0), expected (4, 3)");
  const mha::WeightView<W, 2> null(mha::view(static_cast<const W*>(nullptr), 4, 3));
  EXPECT_EQ(error({.weight = null, .bias = bias, .gate = good, .gate_bias = bias}),
            "borrow: weight has 12 elements but its data is null");
  EXPECT_NE(linear.explain(1).find("30 float, owned"), std::string::npos);
}

TYPED_TEST(NarrowWeights, CannotBeWrittenAndGiveWayToOthers) {
  using W = TypeParam;
  mha::Linear<float> linear({.inputs = 4, .outputs = 3, .bias = false});
  Tensor<W, 2> weight(4, 3);
  linear.borrow(BorrowedLinear<W>{.weight = weight});
  EXPECT_EQ(message_of([&] { linear.initialize(mha::XavierUniform{.seed = 1}); }),
            "update: of the Linear's 12 parameters only the packed ones are left, so they cannot be written");
  Tensor<float, 2> other(4, 3), x(1, 4);
  for (float& w : other) w = 2;
  x(0, 0) = 1;
  linear.borrow({.weight = other});
  EXPECT_EQ(linear(x)(0, 1), 2);
  EXPECT_EQ(linear.parameters().weight.data, other.data());
  weight(0, 1) = W(3.f);
  linear.borrow(BorrowedLinear<W>{.weight = weight});
  EXPECT_EQ(linear(x)(0, 1), 3);
}

TEST(WidenParts, WritesEveryViewInItsOwnLayout) {
  Tensor<mha::half, 1> from(60);
  for (Index i = 0; i < 60; ++i) from(i) = mha::half(static_cast<float>(i + 1));
  const mha::half* const data = std::as_const(from).data();
  mha::ParameterViews<const mha::half> narrow;
  narrow.query = {mha::view(data, 2, 3, 4), mha::view(data + 24, 2, 4)};
  narrow.value.heads = {data + 32, {1, 3, 4}, {12, 1, 3}};  // stored (out, in)
  narrow.output.weight = mha::view(data + 44, 2, 3);
  narrow.gate = mha::view(data + 50, 2);

  Tensor<float, 1> to(60);
  mha::ParameterViews<float> wide;
  wide.query = {mha::view(to.data(), 2, 3, 4), mha::view(to.data() + 24, 2, 4)};
  wide.value.heads = mha::view(to.data() + 32, 1, 3, 4);
  wide.output.weight = mha::view(to.data() + 44, 2, 3);
  wide.gate = mha::view(to.data() + 50, 2);
  mha::detail::widen_parts(narrow, wide);
  const auto same = [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) EXPECT_EQ(to(i), static_cast<float>(i + 1)) << i;
  };
  same(0, 32);
  same(44, 52);
  for (Index e = 0; e < 3; ++e)
    for (Index d = 0; d < 4; ++d) EXPECT_EQ(to(32 + e * 4 + d), static_cast<float>(33 + d * 3 + e)) << e << ", " << d;
  for (Index i = 52; i < 60; ++i) EXPECT_EQ(to(i), 0) << i;
}

TEST(DropUnpacked, LeavesTheResultsAndFreesTheRest) {
  support::Random random("drop");
  Tensor<float, 2> x(5, 24), r(5, 20);
  random.fill(x);
  random.fill(r);
  const auto check = [&]<class B>(const B&) {
    mha::Linear<float, B, Gated<Bent>> linear({.inputs = 24, .outputs = 20});
    linear.initialize(mha::XavierUniform{.seed = 1});
    const auto before = linear(x, mha::residual(r));
    linear.drop_unpacked();
    EXPECT_EQ(support::differing(linear(x, mha::residual(r)), before), 0u);
    EXPECT_EQ(linear.parameters().weight.data, nullptr);
    EXPECT_EQ(message_of([&] { linear.update([](auto&) {}); }),
              "update: of the Linear's 1000 parameters only the packed ones are left, so they cannot be written");
    EXPECT_NE(linear.explain(5).find(", packed only, in "), std::string::npos) << linear.explain(5);
    linear.drop_unpacked();
  };
  check(mha::Cpu{});
  check(mha::Systolic<>{});
}

TEST(DropUnpacked, LetsGoOfWhatIsBorrowed) {
  auto weight = std::make_shared<Tensor<float, 2>>(4, 3);
  (*weight)(1, 2) = 5;
  mha::Linear<float> linear({.inputs = 4, .outputs = 3, .bias = false});
  linear.borrow({.weight = *weight}, weight);
  EXPECT_EQ(weight.use_count(), 2);
  linear.drop_unpacked();
  EXPECT_EQ(weight.use_count(), 1);
  Tensor<float, 2> x(1, 4);
  x(0, 1) = 1;
  EXPECT_EQ(linear(x)(0, 2), 5);
}

TEST(DropUnpacked, IsRefusedWithoutPackedWeights) {
  mha::Linear<float, mha::Reference> plain({.inputs = 4, .outputs = 3});
  EXPECT_EQ(message_of([&] { plain.drop_unpacked(); }),
            "drop_unpacked: expected 15 weights, got 0: call initialize, update or borrow first");
  plain.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_EQ(message_of([&] { plain.drop_unpacked(); }),
            "drop_unpacked: Reference reads the Linear's 15 parameters where they are, expected a backend that packs "
            "them");
  EXPECT_NE(plain.parameters().weight.data, nullptr);
}

TEST(DropUnpacked, AfterAnUpdateThatThrewSaysSo) {
  mha::Linear<float> linear({.inputs = 4, .outputs = 3});
  linear.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_THROW(linear.update([](auto&) { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(message_of([&] { linear.drop_unpacked(); }),
            "drop_unpacked: the Linear's 15 parameters are not packed, because the last update() threw: call it again");
  linear.update([](auto&) {});
  linear.drop_unpacked();
  EXPECT_EQ(message_of([&] { (void)linear.parameters().flat(); }),
            "parameters: flat() has nothing to show, because there are no weights yet (call initialize, update or "
            "borrow), or only those that the backend packed (call borrow)");
}

TEST(DropUnpacked, OfAFeedForwardIsOfNeitherIfOneRefuses) {
  mha::FeedForward<float> feed_forward({.d_model = 6, .d_hidden = 9});
  feed_forward.initialize(mha::XavierUniform{.seed = 1});
  EXPECT_THROW(feed_forward.down().update([](auto&) { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(message_of([&] { feed_forward.drop_unpacked(); }),
            "drop_unpacked: down(): the Linear's 60 parameters are not packed, because the last update() threw: call "
            "it again");
  EXPECT_NE(feed_forward.up().parameters().weight.data, nullptr);
  feed_forward.up().update([](auto&) {});
}

TEST(DropUnpacked, OfAFeedForwardIsOfBoth) {
  mha::FeedForward<float> feed_forward({.d_model = 6, .d_hidden = 9});
  EXPECT_EQ(message_of([&] { feed_forward.drop_unpacked(); }),
            "drop_unpacked: up(): expected 63 weights, got 0: call initialize, update or borrow first");
  feed_forward.initialize(mha::XavierUniform{.seed = 1});
  Tensor<float, 2> x(2, 6);
  x(1, 3) = 1;
  const auto before = feed_forward(x);
  feed_forward.drop_unpacked();
  EXPECT_EQ(support::differing(feed_forward(x), before), 0u);
  EXPECT_EQ(feed_forward.up().parameters().weight.data, nullptr);
  EXPECT_EQ(feed_forward.down().parameters().weight.data, nullptr);
}

}  // namespace
