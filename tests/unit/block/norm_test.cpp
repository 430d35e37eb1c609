// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <Eigen/Core>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block/norm.hpp>
#include <mha/eigen.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "compare.hpp"
#include "far_backend.hpp"
#include "message_of.hpp"
#include "plain_backend.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::LayerNorm;
using mha::NormConfig;
using mha::RmsNorm;
using mha::Tensor;
using support::message_of;

/// Rows with a residual, and a norm's parameters, all rounded to T.
template <class T> struct Data {
  Tensor<T, 3> x, residual;
  Tensor<T, 1> weight, bias;

  Data(support::Random& random, Index batch, Index length, Index width, double offset = 0)
      : x(batch, length, width), residual(batch, length, width), weight(width), bias(width) {
    for (T& v : x) v = support::Random::rounded<T>(offset + random.normal());
    random.fill(residual);
    random.fill(weight);
    random.fill(bias);
  }

  /// y is the norm of x, or of x + residual, in long double.
  template <class Y>
  void expect(const Y& y, bool centred, double eps, bool bias_too, bool added, const std::string& place) const {
    using A = mha::Accumulator<T>;
    const Index width = x.extent(2);
    const double u = support::unit_roundoff<A>();
    support::Worst worst;
    for (Index b = 0; b < x.extent(0); ++b)
      for (Index l = 0; l < x.extent(1); ++l) {
        const auto z = [&](Index j) -> long double {
          return added ? A(x(b, l, j)) + A(residual(b, l, j)) : A(x(b, l, j));
        };
        long double mean = 0, square = 0;
        if (centred)
          for (Index j = 0; j < width; ++j) mean += z(j) / width;
        for (Index j = 0; j < width; ++j) square += (z(j) - mean) * (z(j) - mean) / width;
        const long double root = std::sqrt(square + static_cast<long double>(A(eps)));
        for (Index j = 0; j < width; ++j) {
          const double n = double((z(j) - mean) / root), w = support::to_double(weight(j));
          const double expected = n * w + (bias_too ? support::to_double(bias(j)) : 0);
          // The reference adds up one after another.
          const double bound = u * (8 + width) * (std::abs(n * w) + std::abs(w)) + 4 * u * std::abs(expected) +
                               2 * support::storage_error<T>(expected) + 1e-300;
          worst.see(support::to_double(y(b, l, j)), expected, bound, place);
        }
      }
    EXPECT_LE(worst.error(), 1) << worst.text();
  }
};

template <class T> class Norms : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Norms, Scalars);

/// The same call on one backend: returned, into x itself, with a residual and its sum.
template <class T, class Norm> void expect_norm(bool centred, const char* backend) {
  support::Random random(backend);
  for (const Index width : {1, 3, 17, 768, 1000}) {
    const std::string place = std::string(backend) + ", " + std::to_string(width) + " wide";
    const double eps = 1e-4;
    Norm n({.width = width, .eps = eps, .bias = centred});
    Data<T> data(random, 2, 3, width, 10);
    n.borrow({.weight = data.weight, .bias = centred ? mha::WeightView<T, 1>(data.bias) : mha::WeightView<T, 1>()});
    data.expect(n(data.x), centred, eps, centred, false, place);

    auto x = data.x, y = data.x, sum = data.x;
    n(x, mha::into(x));
    data.expect(x, centred, eps, centred, false, place + ", in place");
    typename Norm::Workspace workspace;
    support::poison_all(y);
    support::poison_all(sum);
    n(data.x, mha::sum_into(sum), workspace, mha::residual(data.residual), mha::into(y));
    data.expect(y, centred, eps, centred, true, place + ", residual");
    for (std::size_t i = 0; i < sum.size(); ++i) {
      using A = mha::Accumulator<T>;
      ASSERT_EQ(support::bits(sum.data()[i]), support::bits(T(A(data.x.data()[i]) + A(data.residual.data()[i]))))
          << place;
    }
    // One of the two may be what is read: the same bits.
    for (const bool y_is_x : {false, true})
      for (const bool s_is_other : {false, true}) {
        auto a = data.x, r = data.residual, other = data.x;
        auto& to = y_is_x ? a : r;
        auto& s = s_is_other ? (y_is_x ? r : a) : other;
        n(a, mha::residual(r), mha::into(to), mha::sum_into(s));
        EXPECT_EQ(support::differing(to, y), 0u) << place;
        EXPECT_EQ(support::differing(s, sum), 0u) << place;
      }
  }
}

TYPED_TEST(Norms, AreTheFormulaOnEveryBackend) {
  using T = TypeParam;
  expect_norm<T, LayerNorm<T>>(true, "Cpu");
  expect_norm<T, RmsNorm<T>>(false, "Cpu");
  expect_norm<T, LayerNorm<T, mha::Reference>>(true, "Reference");
  expect_norm<T, RmsNorm<T, mha::Reference>>(false, "Reference");
  expect_norm<T, LayerNorm<T, mha::EigenCpu>>(true, "EigenCpu");
  expect_norm<T, RmsNorm<T, support::PlainBackend>>(false, "a backend of somebody's");
  if constexpr (sizeof(T) < 8) {
    expect_norm<T, LayerNorm<T, mha::Systolic<>>>(true, "Systolic");
    expect_norm<T, RmsNorm<T, mha::Systolic<>>>(false, "Systolic");
  }
}

TYPED_TEST(Norms, WorkAtOnce) {
  using T = TypeParam;
  support::Random random("at once");
  Data<T> data(random, 1, 4, 33);
  std::fill(data.weight.begin(), data.weight.end(), T(1.f));
  std::fill(data.bias.begin(), data.bias.end(), T(0.f));
  data.expect(LayerNorm<T>({.width = 33})(data.x), true, 1e-5, true, false, "LayerNorm");
  data.expect(RmsNorm<T>({.width = 33})(data.x), false, 1e-6, false, false, "RmsNorm");
  data.expect(RmsNorm<T>({.width = 33, .zero_centered = true})(data.x), false, 1e-6, false, false, "weight less 1");
}

TYPED_TEST(Norms, ReadAndWriteAnyStrides) {
  using T = TypeParam;
  support::Random random("strides");
  const Index batch = 2, length = 5, width = 21;
  const Data<T> data(random, batch, length, width);
  LayerNorm<T> norm({.width = width});
  norm.borrow({.weight = data.weight, .bias = data.bias});
  const auto expected = norm(data.x, mha::residual(data.residual));
  // (B, L, E) as (E, L, B) in memory, and as (L, B, E) with a gap behind every row.
  Tensor<T, 3> columns(width, length, batch), residual(length, batch, width + 3), y(width, length, batch),
      sum(length, batch, width + 3);
  support::poison_all(residual);
  support::poison_all(y);
  support::poison_all(sum);
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l)
      for (Index j = 0; j < width; ++j) {
        columns(j, l, b) = data.x(b, l, j);
        residual(l, b, j) = data.residual(b, l, j);
      }
  using View = mha::TensorView<T, 3>;
  const auto turned = [&](Tensor<T, 3>& t) {
    return View{t.data(), {batch, length, width}, {1, batch, length * batch}};
  };
  const auto swapped = [&](Tensor<T, 3>& t) {
    return View{t.data(), {batch, length, width}, {width + 3, batch * (width + 3), 1}};
  };
  norm(turned(columns), mha::residual(swapped(residual)), mha::into(turned(y)), mha::sum_into(swapped(sum)));
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l) {
      for (Index j = 0; j < width; ++j) {
        ASSERT_EQ(support::bits(y(j, l, b)), support::bits(expected(b, l, j)));
        ASSERT_FALSE(std::isnan(support::to_double(sum(l, b, j))));
      }
      for (Index j = width; j < width + 3; ++j)
        ASSERT_EQ(support::bits(sum(l, b, j)), support::bits(support::poison<T>()));
    }
}

TEST(Norm, TakesEigenMatricesAndReturnsThem) {
  Eigen::MatrixXf x = Eigen::MatrixXf::Random(6, 20);
  Eigen::VectorXf weight = Eigen::VectorXf::Random(20);
  RmsNorm<float> norm({.width = 20, .eps = 0});
  norm.borrow({.weight = weight});
  const Eigen::MatrixXf y = norm(x);
  const Eigen::MatrixXf expected =
      (x.array().colwise() / x.rowwise().squaredNorm().array().sqrt() * std::sqrt(20.f)).matrix() * weight.asDiagonal();
  EXPECT_LT((y - expected).cwiseAbs().maxCoeff(), 1e-5f);
  norm(x.topRows(2), mha::into(x.topRows(2)));
  EXPECT_EQ(x(1, 19), y(1, 19));
  EXPECT_NE(x(2, 0), y(2, 0));
}

TEST(Norm, RunsInTheMemoryOfAnotherMachine) {
  support::Random random("far");
  const Data<float> data(random, 2, 3, 12);
  LayerNorm<float, support::Far> norm({.width = 12});
  norm.borrow({.weight = data.weight, .bias = data.bias});
  const support::FarTensor<float, 3> x(data.x), residual(data.residual), sum(data.x);
  const support::FarTensor<float, 3> y = norm(x, mha::residual(residual), mha::sum_into(sum));
  data.expect(y.near(), true, 1e-5, true, true, "far");
  EXPECT_FLOAT_EQ(sum.near()(1, 2, 11), data.x(1, 2, 11) + data.residual(1, 2, 11));
  EXPECT_EQ(message_of([&] { static_cast<void>(norm(x, mha::residual(data.residual))); }),
            "LayerNorm: the residual is in host memory");
}

TEST(Norm, RowsFarFromZeroKeepTheirDigits) {
  support::Random random("far from zero");
  LayerNorm<float> norm({.width = 768});
  LayerNorm<float, mha::Reference> reference({.width = 768});
  for (const double offset : {1e4, -1e6}) {
    const Data<float> data(random, 1, 8, 768, offset);
    auto ones = data;
    std::fill(ones.weight.begin(), ones.weight.end(), 1.f);
    ones.expect(norm(data.x), true, 1e-5, false, false, "Cpu at " + std::to_string(offset));
    ones.expect(reference(data.x), true, 1e-5, false, false, "Reference at " + std::to_string(offset));
  }
}

template <class B> void expect_odd_rows() {
  support::Random random("odd rows");
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [width, eps] : {std::pair<Index, double>{100, 0.0}, {100, 1e-5}, {200, 1e-5}, {1025, 1e-5}}) {
    Data<float> data(random, 1, 8, width);
    LayerNorm<float, B> layer({.width = width, .eps = eps});
    RmsNorm<float, B> rms({.width = width, .eps = eps, .bias = true});
    layer.borrow({.weight = data.weight, .bias = data.bias});
    rms.borrow({.weight = data.weight, .bias = data.bias});
    const auto clean = layer(data.x), clean_rms = rms(data.x);
    for (Index j = 0; j < width; ++j) {
      data.x(0, 1, j) = 0.1f;
      data.x(0, 2, j) = 0;
      data.x(0, 6, j) = j % 2 == 0 ? 3e19f : -2e19f;  // their squares are beyond float
    }
    data.x(0, 4, width - 1) = nan;
    data.x(0, 5, 0) = infinity;
    const auto y = layer(data.x), z = rms(data.x);
    for (Index j = 0; j < width; ++j) {
      EXPECT_EQ(y(0, 1, j), data.bias(j));
      EXPECT_EQ(y(0, 2, j), data.bias(j));
      EXPECT_EQ(z(0, 2, j), data.bias(j));
      EXPECT_TRUE(std::isnan(y(0, 4, j)) && std::isnan(z(0, 4, j)));
      EXPECT_TRUE(std::isnan(y(0, 5, j)));
      EXPECT_TRUE(j == 0 ? std::isnan(z(0, 5, j)) : z(0, 5, j) == data.bias(j)) << B::name << ' ' << j;
      EXPECT_EQ(y(0, 6, j), data.bias(j));
      EXPECT_EQ(z(0, 6, j), data.bias(j));
      for (const Index l : {0, 3, 7}) {
        EXPECT_EQ(y(0, l, j), clean(0, l, j));
        EXPECT_EQ(z(0, l, j), clean_rms(0, l, j));
      }
    }
    for (const Index l : {0, 3, 7}) {
      const auto row = mha::view(&std::as_const(data.x)(0, l, 0), 1, width);
      const auto alone = layer(row), alone_rms = rms(row);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), &clean(0, l, 0))) << B::name << ", row " << l;
      EXPECT_TRUE(std::equal(alone_rms.begin(), alone_rms.end(), &clean_rms(0, l, 0))) << B::name << ", row " << l;
    }
  }
}
TEST(Norm, OddRowsAreWhatTheDocumentationSaysAndLeaveTheOthersAlone) {
  expect_odd_rows<mha::Cpu>();
  expect_odd_rows<mha::Reference>();
  expect_odd_rows<mha::EigenCpu>();
  expect_odd_rows<mha::Systolic<>>();
}

TEST(Norm, SquaresOfHalfAndBfloat16DoNotOverflow) {
  Tensor<mha::half, 2> x(1, 2);
  x(0, 0) = mha::half(60000.f);
  x(0, 1) = mha::half(-60000.f);
  EXPECT_EQ(float(RmsNorm<mha::half>({.width = 2})(x)(0, 1)), -1);
  EXPECT_EQ(float(LayerNorm<mha::half>({.width = 2})(x)(0, 0)), 1);
}

TEST(Norm, ARowHasTheSameBitsAloneAmongOthersAndOnThreads) {
  support::Random random("bits of norms");
  const Data<float> data(random, 1, 600, 512);
  const LayerNorm<float> norm({.width = 512});
  const auto all = norm(data.x), alone = norm(data.x, mha::Cpu(mha::ThreadPool(1)));
  EXPECT_EQ(support::differing(all, alone), 0u);
  EXPECT_EQ(support::differing(norm(data.x, mha::Cpu(mha::ThreadPool(5))), all), 0u);
  for (const Index l : {0, 1, 299, 599}) {
    Tensor<float, 2> row(1, 512);
    std::copy_n(&data.x(0, l, 0), 512, row.data());
    const auto y = norm(row);
    EXPECT_TRUE(std::equal(y.begin(), y.end(), &all(0, l, 0)));
  }
}

TYPED_TEST(Norms, ASecondCallAllocatesNothing) {
  using T = TypeParam;
  support::Random random("norm without allocation");
  const Data<T> data(random, 2, 40, 96);
  const LayerNorm<T> norm({.width = 96});
  Tensor<T, 3> y(2, 40, 96);
  mha::Workspace workspace;
  norm(data.x, mha::residual(data.residual), mha::into(y), workspace);
  const int before = workspace.allocations();
  norm(data.x, mha::residual(data.residual), mha::into(y), workspace);
  norm(data.x, mha::into(y), workspace);
  EXPECT_EQ(workspace.allocations(), before);
}

TEST(Norm, UpdateChangesWhatCallsReadAndNothingIfItThrows) {
  support::Random random("update");
  Data<float> data(random, 1, 2, 9);
  LayerNorm<float> norm({.width = 9});
  norm.update([&](auto& p) {
    static_assert(std::is_const_v<std::remove_reference_t<decltype(p)>>, "or p.weight = view would change nothing");
    std::copy(data.weight.begin(), data.weight.end(), &p.weight(0));
    std::copy(data.bias.begin(), data.bias.end(), p.flat().begin() + 9);
  });
  data.expect(norm(data.x), true, 1e-5, true, false, "updated");
  EXPECT_EQ(norm.parameters().bias(8), data.bias(8));
  EXPECT_EQ(norm.parameters().flat().size(), 18u);
  EXPECT_THROW(norm.update([](auto& p) {
    p.weight(0) = 1e9f;
    throw std::runtime_error("no");
  }),
               std::runtime_error);
  EXPECT_EQ(norm.parameters().weight(0), data.weight(0));
  const auto copy = norm;
  norm.update([](auto& p) { std::fill(p.flat().begin(), p.flat().end(), 0.f); });
  data.expect(copy(data.x), true, 1e-5, true, false, "a copy");
  EXPECT_EQ(norm(data.x)(0, 1, 8), 0);
}

TEST(Norm, BorrowsWithAnyStridesAndKeepsTheOwnerAlive) {
  support::Random random("borrow");
  Data<float> data(random, 1, 2, 9);
  auto owner = std::make_shared<std::vector<float>>(18);
  for (std::size_t j = 0; j < 9; ++j) {
    (*owner)[2 * j] = data.weight(int(j));
    (*owner)[2 * j + 1] = data.bias(int(j));
  }
  LayerNorm<float> norm({.width = 9});
  using Column = mha::TensorView<float, 1>;
  norm.borrow({.weight = Column{owner->data(), {9}, {2}}, .bias = Column{owner->data() + 1, {9}, {2}}}, owner);
  const std::weak_ptr<std::vector<float>> watched = owner;
  owner.reset();
  EXPECT_FALSE(watched.expired());
  data.expect(norm(data.x), true, 1e-5, true, false, "strided");
  EXPECT_EQ(norm.parameters().bias(3), data.bias(3));
  EXPECT_EQ(message_of([&] { norm.update([](auto&) {}); }),
            "update: the norm's 18 parameters are borrowed, so they cannot be written: copy them in the update() of a "
            "new one");
  EXPECT_NE(message_of([&] { static_cast<void>(norm.parameters().flat()); }).find("are borrowed"), std::string::npos);
  EXPECT_NE(norm.explain(3).find("borrowed"), std::string::npos);
  LayerNorm<float, mha::Reference> other({.width = 9});
  other.borrow(norm.parameters());
  data.expect(other(data.x), true, 1e-5, true, false, "another's");
  norm = LayerNorm<float>({.width = 9});
  EXPECT_TRUE(watched.expired());
}

/// Parameters in W give the bits of the same numbers in T, and are not read again.
template <class T, class W> void expect_widened() {
  support::Random random("widened norm");
  Data<T> data(random, 2, 3, 37);
  auto stored = std::make_unique<Tensor<W, 2>>(37, 2);  // weight and bias beside each other
  for (Index j = 0; j < 37; ++j) {
    (*stored)(j, 0) = support::Random::rounded<W>(random.normal());
    (*stored)(j, 1) = support::Random::rounded<W>(random.normal());
    data.weight(j) = T(float((*stored)(j, 0)));
    data.bias(j) = T(float((*stored)(j, 1)));
  }
  LayerNorm<T> wide({.width = 37}), narrow({.width = 37});
  wide.borrow({.weight = data.weight, .bias = data.bias});
  const auto column = [&](int c) { return mha::TensorView<const W, 1>{&(*stored)(0, c), {37}, {2}}; };
  narrow.borrow(mha::BorrowedNorm<W>{.weight = column(0), .bias = column(1)});
  EXPECT_EQ(message_of([&] { narrow.borrow(mha::BorrowedNorm<W>{.weight = column(0)}); }),
            "borrow: the bias has 0 elements, expected 37");
  stored.reset();
  EXPECT_EQ(support::differing(narrow(data.x), wide(data.x)), 0u);
  data.expect(narrow(data.x), true, 1e-5, true, false, "widened");
  EXPECT_EQ(narrow.parameters().bias(36), data.bias(36));
}

TEST(Norm, BorrowsNarrowParametersWidened) {
  expect_widened<float, mha::half>();
  expect_widened<float, mha::bfloat16>();
  expect_widened<double, mha::half>();
  expect_widened<double, mha::bfloat16>();
}

TEST(Norm, UpdateLeavesTheParametersWhereTheyAre) {
  LayerNorm<float> owner({.width = 64}), borrower({.width = 64});
  borrower.borrow(owner.parameters());
  owner.update([](auto& p) { p.weight(0) = 3; });
  EXPECT_EQ(borrower.parameters().weight(0), 3);
  EXPECT_EQ(borrower.parameters().weight.data, owner.parameters().weight.data);
  Tensor<float, 1> other(64);
  EXPECT_NE(message_of([&] {
              owner.update([&](auto&) { owner.borrow({.weight = other, .bias = other}); });
            }).find("are borrowed"),
            std::string::npos);
}

TEST(Norm, DoesNotBorrowWhatItOwnsItself) {
  support::Random random("own parameters");
  const Data<float> data(random, 1, 2, 8);
  LayerNorm<float> norm({.width = 8});
  const auto own = norm.parameters();
  using View = mha::TensorView<const float, 1>;
  const View reversed{own.bias.data + 7, {8}, {-1}}, inside{own.weight.data + 4, {8}, {1}};
  const std::string refused = "borrow: weights that are among the 16 of the norm's own, expected another's";
  EXPECT_EQ(message_of([&] { norm.borrow({.weight = data.weight, .bias = own.bias}); }), refused);
  EXPECT_EQ(message_of([&] { norm.borrow({.weight = data.weight, .bias = reversed}); }), refused);
  EXPECT_EQ(message_of([&] { norm.borrow({.weight = inside, .bias = data.bias}); }), refused);
  EXPECT_EQ(norm.parameters().weight.data, own.weight.data);
  EXPECT_EQ(norm.parameters().weight(7), 1);
}

TEST(Norm, AViewOfNoElementsIsNoBias) {
  support::Random random("no bias");
  const Data<float> data(random, 1, 2, 1024);
  const std::vector<float> one(1, 7.f);
  RmsNorm<float> norm({.width = 1024});
  norm.borrow({.weight = data.weight, .bias = mha::view(one.data(), 0)});
  EXPECT_EQ(norm.parameters().bias.data, nullptr);
  data.expect(norm(data.x), false, 1e-6, false, false, "an empty bias");
}

TEST(Norm, WhatIsBorrowedAgainKeepsItsOwner) {
  auto owner = std::make_shared<Tensor<float, 1>>(9);
  std::fill(owner->begin(), owner->end(), 2.f);
  const std::weak_ptr<Tensor<float, 1>> watched = owner;
  RmsNorm<float> norm({.width = 9});
  norm.borrow({.weight = *owner}, owner);
  owner.reset();
  norm.borrow({.weight = norm.parameters().weight});
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(norm.parameters().weight(8), 2);
  norm.borrow(norm.parameters());
  EXPECT_FALSE(watched.expired());
  const Tensor<float, 1> other(9);
  norm.borrow({.weight = other});
  EXPECT_TRUE(watched.expired());
}

template <class Norm> void expect_sentences_when_moved_from(Norm norm, const char* weights) {
  const Norm moved = std::move(norm);
  const std::string sentence = std::string(": expected ") + weights + " weights, got 0: the norm was moved from";
  Tensor<float, 2> x(1, 8);
  EXPECT_EQ(message_of([&] { static_cast<void>(norm(x)); }), "LayerNorm" + sentence);
  EXPECT_EQ(message_of([&] { norm.update([](auto& p) { p.weight(0) = 2; }); }), "update" + sentence);
  EXPECT_EQ(norm.parameters().weight.data, nullptr);
  EXPECT_EQ(norm.parameters().bias.extent[0], 0);
  norm = moved;
  EXPECT_EQ(support::differing(norm(x), moved(x)), 0u);
}
TEST(Norm, OneThatWasMovedFromSaysSo) {
  expect_sentences_when_moved_from(LayerNorm<float>({.width = 8}), "16");
  const auto owner = std::make_shared<Tensor<float, 1>>(8);
  LayerNorm<float, mha::Reference> borrower({.width = 8, .bias = false});
  borrower.borrow({.weight = *owner}, owner);
  expect_sentences_when_moved_from(std::move(borrower), "8");
}

/// Rows in one memory, element by element apart or shared: the bits of rows that share nothing.
template <class Norm> void expect_overlaps(const char* backend) {
  support::Random random(backend);
  const Index length = 6, width = 20;
  using View = mha::TensorView<float, 3>;
  const Norm norm({.width = width});
  Tensor<float, 1> memory(2 * length * width);
  const auto rows = [&](Index first, bool reversed = false) {
    const std::ptrdiff_t row = reversed ? -width : width;
    return View{memory.data() + (reversed ? first + length - 1 : first) * width, {1, length, width}, {0, row, 1}};
  };
  const auto copy = [&](const View& v) {
    Tensor<float, 3> t(1, length, width);
    for (Index l = 0; l < length; ++l)
      for (Index j = 0; j < width; ++j) t(0, l, j) = v(0, l, j);
    return t;
  };
  const View turned{memory.data(), {1, length, width}, {0, 1, length}};
  for (const View& y : {rows(0), rows(1), rows(2), rows(1, true), turned}) {
    const std::string place = std::string(backend) + ", " + std::to_string(y.data - memory.data()) + ", stride " +
                              std::to_string(y.stride[1]);
    const Tensor<float, 3> other = [&] {
      Tensor<float, 3> t(1, length, width);
      random.fill(t);
      return t;
    }();
    random.fill(memory);
    auto expected = norm(copy(rows(1)));
    norm(rows(1), mha::into(y));
    EXPECT_EQ(support::differing(copy(y), expected), 0u) << place;

    random.fill(memory);
    const auto added = copy(rows(1));
    expected = norm(other, mha::residual(added));
    norm(other, mha::residual(rows(1)), mha::into(y));
    EXPECT_EQ(support::differing(copy(y), expected), 0u) << place << ", residual";

    random.fill(memory);
    auto sum = other, result = other;
    const auto apart = copy(rows(1));
    norm(apart, mha::residual(other), mha::into(expected), mha::sum_into(sum));
    norm(rows(1), mha::residual(other), mha::into(result), mha::sum_into(y));
    EXPECT_EQ(support::differing(copy(y), sum), 0u) << place << ", sum";
    EXPECT_EQ(support::differing(result, expected), 0u) << place << ", sum";

    const auto before = copy(y);
    for (const View& s : {rows(1), rows(3)}) {
      EXPECT_EQ(message_of([&] { norm(other, mha::residual(other), mha::into(y), mha::sum_into(s)); }),
                "LayerNorm: the result and the sum overlap, expected separate memory")
          << place;
    }
    EXPECT_EQ(support::differing(copy(y), before), 0u) << place;
  }
}
TEST(Norm, WhatOverlapsIsRightOrRefused) {
  expect_overlaps<LayerNorm<float>>("overlaps, Cpu");
  expect_overlaps<LayerNorm<float, mha::Reference>>("overlaps, Reference");
}

TEST(Norm, HalvesOfOneMatrixAreApart) {
  for (const bool beside : {false, true}) {
    Eigen::MatrixXf both = Eigen::MatrixXf::Random(beside ? 6 : 12, beside ? 40 : 20);
    const Eigen::MatrixXf x = Eigen::MatrixXf::Random(6, 20), r = Eigen::MatrixXf::Random(6, 20);
    const RmsNorm<float> norm({.width = 20});
    const Eigen::MatrixXf expected = norm(x, mha::residual(r));
    mha::Workspace workspace;
    norm(x, mha::residual(r), mha::into(both.topLeftCorner(6, 20)), mha::sum_into(both.bottomRightCorner(6, 20)),
         workspace);
    EXPECT_TRUE(both.topLeftCorner(6, 20) == expected);
    EXPECT_TRUE(both.bottomRightCorner(6, 20) == x + r);
  }
}

TEST(Norm, ZeroCenteredWeightsCountFromOne) {
  support::Random random("zero centered");
  Data<float> data(random, 1, 2, 40);
  auto less = data.weight;
  for (float& w : less) w -= 1;
  for (Index j = 0; j < 40; ++j) data.weight(j) = less(j) + 1;
  RmsNorm<float> norm({.width = 40, .zero_centered = true});
  EXPECT_EQ(norm.parameters().weight(0), 0);
  norm.borrow({.weight = less});
  data.expect(norm(data.x), false, 1e-6, false, false, "zero centered");
}

TEST(Norm, SizesThatDoNotFitAreOneSentence) {
  LayerNorm<float> norm({.width = 6});
  Tensor<float, 3> x(2, 3, 6), wide(2, 3, 7), longer(2, 4, 6), fewer(1, 3, 6);
  Tensor<float, 1> six(6), five(5);
  EXPECT_EQ(message_of([&] { static_cast<void>(norm(wide)); }), "LayerNorm: x has width 7 but the norm has width 6");
  EXPECT_EQ(message_of([&] { norm(x, mha::into(wide)); }), "LayerNorm: x has width 6 but the result has width 7");
  EXPECT_EQ(message_of([&] { static_cast<void>(norm(x, mha::residual(longer))); }),
            "LayerNorm: x has length 3 but the residual has length 4");
  EXPECT_EQ(message_of([&] { static_cast<void>(norm(x, mha::residual(x), mha::sum_into(fewer))); }),
            "LayerNorm: x has batch 2 but the sum has batch 1");
  EXPECT_EQ(message_of([&] { norm(x, mha::residual(x), mha::into(longer)); }),
            "LayerNorm: x has length 3 but the result has length 4");
  EXPECT_EQ(message_of([&] { norm(x, mha::residual(x), mha::into(x), mha::sum_into(x)); }),
            "LayerNorm: the result and the sum overlap, expected separate memory");
  EXPECT_EQ(message_of([&] { norm(x, mha::into(support::repeated(wide.view(), 0))); }).substr(0, 24),
            "LayerNorm: x has width 6");
  Tensor<float, 3> y(2, 3, 6);
  EXPECT_EQ(message_of([&] { norm(x, mha::into(support::repeated(y.view(), 0))); }),
            support::overlaps_itself("LayerNorm: the result", "batch", 2));
  EXPECT_EQ(
      message_of([&] { static_cast<void>(norm(x, mha::residual(x), mha::sum_into(support::repeated(y.view(), 2)))); }),
      support::overlaps_itself("LayerNorm: the sum", "width", 6));
  EXPECT_EQ(message_of([&] { static_cast<void>(norm(mha::view(static_cast<float*>(nullptr), 3, 6))); }),
            "LayerNorm: x has 18 elements but its data is null");
  EXPECT_EQ(message_of([&] { norm.borrow({.weight = five, .bias = six}); }),
            "borrow: the weight has 5 elements, expected 6");
  EXPECT_EQ(message_of([&] { norm.borrow({.weight = six}); }), "borrow: the bias has 0 elements, expected 6");
  EXPECT_EQ(message_of([&] { RmsNorm<float>({.width = 6}).borrow({.weight = six, .bias = six}); }),
            "borrow: the bias has 6 elements, expected 0");
  EXPECT_EQ(message_of([&] { norm.borrow({.weight = norm.parameters().weight, .bias = six}); }),
            "borrow: weights that are among the 12 of the norm's own, expected another's");
  EXPECT_EQ(message_of([] { RmsNorm<float>(NormConfig{}); }), "RmsNorm: width is 0, it must be at least 1");
  EXPECT_EQ(message_of([] { LayerNorm<float>({.width = 3, .eps = -1}); }),
            "LayerNorm: eps is -1, it must be a finite number, 0 or above");
}

TEST(Norm, NoRowsAreNoWork) {
  const RmsNorm<float> norm({.width = 6});
  EXPECT_EQ(norm(Tensor<float, 3>(2, 0, 6)).size(), 0u);
  EXPECT_EQ(norm(mha::view(static_cast<const float*>(nullptr), 0, 6)).extent(1), 6);
}

TEST(Norm, TellsItsConfigurationCostAndKernel) {
  const LayerNorm<float> norm({.width = 768, .eps = 1e-12});
  EXPECT_EQ(norm.config().eps, 1e-12);
  EXPECT_TRUE(*norm.config().bias);
  EXPECT_FALSE(*RmsNorm<float>({.width = 2}).config().bias);
  EXPECT_EQ(norm.cost(512).parameters, 1536);
  EXPECT_EQ(norm.cost(512).bytes, 4. * (2 * 512 * 768 + 1536));
  EXPECT_EQ(message_of([&] { static_cast<void>(norm.cost(-1)); }), "cost: rows is -1, it must be at least 0");
  EXPECT_EQ(norm.explain(512),
            "norm:        LayerNorm, width 768, eps 1e-12, bias\n"
            "weights:     1536 float, owned\n"
            "cost:        3151872 bytes for 512 rows\n"
            "kernel:      Cpu: one of its own, sums in float\n");
  const RmsNorm<mha::half, mha::Reference> reference({.width = 5, .zero_centered = true});
  EXPECT_EQ(reference.explain(2),
            "norm:        RmsNorm, width 5, eps 1e-06, no bias, weight stored less 1\n"
            "weights:     5 half, owned\n"
            "cost:        50 bytes for 2 rows\n"
            "kernel:      Reference: a row after another, sums in float\n");
}

}  // namespace
