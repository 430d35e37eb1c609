// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>

#include "block_backward_checks.hpp"
#include "compare.hpp"
#include "every_isa.hpp"
#include "linear_oracle.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using support::message_of;
using support::random_rows;
using Rows = mha::Tensor<double, 3>;

template <class Norm> void draw(Norm& norm, const std::string& stream) {
  support::Random random(stream);
  norm.update([&](auto& p) {
    for (auto& w : p.flat()) w = random.rounded<std::remove_reference_t<decltype(w)>>(1 + 0.5 * random.normal());
  });
}

template <class Norm> void expect_quotients(const char* name, const mha::NormConfig& config) {
  Norm norm(config);
  draw(norm, name);
  Rows x = random_rows(std::string(name) + " x", 2, 3, config.width);
  const Rows dy = random_rows(std::string(name) + " dy", 2, 3, config.width);
  auto tape = norm.tape();
  auto g = norm.gradients();
  EXPECT_EQ(support::differing(norm(x, tape), norm(x)), 0u) << name;
  const Rows dx = norm.backward(dy, tape, g);
  const auto loss = [&] { return support::inner(dy, norm(x)); };
  support::expect_row_gradients(name, x, dx, loss);
  support::expect_parameter_gradients(name, norm, g, loss);
}

TEST(NormBackward, EqualsDifferenceQuotients) {
  expect_quotients<mha::LayerNorm<double, mha::Reference>>("layer norm", {.width = 7});
  expect_quotients<mha::LayerNorm<double, mha::Reference>>("wide eps", {.width = 5, .eps = 0.7});
  expect_quotients<mha::LayerNorm<double, mha::Reference>>("no bias", {.width = 5, .bias = false});
  expect_quotients<mha::RmsNorm<double, mha::Reference>>("rms norm", {.width = 7});
  expect_quotients<mha::RmsNorm<double, mha::Reference>>("rms norm with a bias",
                                                         {.width = 6, .eps = 0.5, .bias = true});
  expect_quotients<mha::RmsNorm<double, mha::Reference>>("zero-centred", {.width = 6, .zero_centered = true});
  expect_quotients<mha::LayerNorm<double, mha::Cpu>>("layer norm, Cpu", {.width = 19});
  expect_quotients<mha::RmsNorm<double, mha::Cpu>>("rms norm, Cpu", {.width = 33});
}

TEST(NormBackward, AResidualHasTheGradientOfXAndASumAddsItsOwn) {
  mha::LayerNorm<double, mha::Reference> norm({.width = 6});
  draw(norm, "residual");
  Rows x = random_rows("residual x", 2, 3, 6), r = random_rows("residual r", 2, 3, 6), s(2, 3, 6);
  const Rows dy = random_rows("residual dy", 2, 3, 6), ds = random_rows("residual ds", 2, 3, 6);
  const auto loss = [&] {
    Rows sum(2, 3, 6);
    const Rows y = norm(x, mha::residual(r), mha::sum_into(sum));
    return support::inner(dy, y) + support::inner(ds, sum);
  };
  auto tape = norm.tape();
  auto g = norm.gradients();
  // In place: the tape borrows nothing.
  Rows stream = x;
  static_cast<void>(norm(stream, tape, mha::residual(r), mha::sum_into(stream), mha::into(s)));
  support::poison_all(stream);
  Rows dx = ds;
  norm.backward(dy, tape, g, mha::add_to(dx));
  support::expect_row_gradients("x", x, dx, loss);
  support::expect_row_gradients("r", r, dx, loss);
  support::expect_parameter_gradients("with a sum", norm, g, loss);
}

/// The formulas as loops in double.
template <class T, template <class, class> class Norm>
void expect_loops(const char* name, double bound, bool centred, Index width, support::Lie lie) {
  constexpr Index batch = 2, length = 71;
  constexpr double eps = 1e-3;
  Norm<T, mha::Cpu> norm({.width = width, .eps = eps, .bias = true});
  draw(norm, name);
  support::Random random(name);
  support::Rows<T> x(lie, batch, length, width), r(lie, batch, length, width), dy(lie, batch, length, width),
      dx(lie, batch, length, width);
  x.draw(random);
  r.draw(random);
  dy.draw(random);
  auto tape = norm.tape();
  auto g = norm.gradients();
  static_cast<void>(norm(x.view, tape, mha::residual(r.view)));
  norm.backward(dy.view, tape, g, mha::into(dx.view));
  EXPECT_EQ(dx.spoilt(), 0u);

  const auto w = norm.parameters();
  const auto number = [](auto v) { return support::to_double(v); };
  const auto z = static_cast<std::size_t>(width);
  std::vector<double> dw(z), db(z), n(z), along(z);
  support::NormWise of_x, of_w, of_b;
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l) {
      double mean = 0, square = 0, level = 0, product = 0;
      for (Index j = 0; j < width; ++j) n[std::size_t(j)] = number(x.view(b, l, j)) + number(r.view(b, l, j));
      for (const double v : n) mean += centred ? v / width : 0;
      for (double& v : n) square += (v - mean) * (v - mean) / width;
      const double inverse = 1 / std::sqrt(square + eps);
      for (Index j = 0; j < width; ++j) {
        const auto i = static_cast<std::size_t>(j);
        const double d = number(dy.view(b, l, j));
        n[i] = (n[i] - mean) * inverse;
        dw[i] += d * n[i];
        db[i] += d;
        along[i] = d * number(w.weight(j));
        level += along[i] / width;
        product += along[i] * n[i] / width;
      }
      for (Index j = 0; j < width; ++j) {
        const auto i = static_cast<std::size_t>(j);
        of_x.add(number(dx.view(b, l, j)), (along[i] - (centred ? level : 0) - n[i] * product) * inverse);
      }
    }
  for (Index j = 0; j < width; ++j) {
    of_w.add(g.weight(j), dw[static_cast<std::size_t>(j)]);
    of_b.add(g.bias(j), db[static_cast<std::size_t>(j)]);
  }
  const double rounded = std::is_same_v<T, mha::Accumulator<T>> ? 0 : support::unit_roundoff<T>();
  EXPECT_LT(of_x.error(), bound + rounded) << name;
  EXPECT_LT(of_w.error(), bound) << name;
  EXPECT_LT(of_b.error(), bound) << name;
}

TEST(NormBackward, EqualsLoopsAtEveryLevel) {
  support::at_every_isa([] {
    for (const support::Lie lie : support::lies) {
      expect_loops<float, mha::LayerNorm>("layer norm float", 2e-6, true, 37, lie);
      expect_loops<float, mha::RmsNorm>("rms norm float", 2e-6, false, 64, lie);
    }
    expect_loops<double, mha::LayerNorm>("layer norm double", 1e-14, true, 35, support::Lie::dense);
    expect_loops<double, mha::RmsNorm>("rms norm double", 1e-14, false, 5, support::Lie::columns_apart);
    expect_loops<mha::half, mha::RmsNorm>("rms norm half", 2e-6, false, 35, support::Lie::padded);
    expect_loops<mha::bfloat16, mha::LayerNorm>("layer norm bfloat16", 2e-6, true, 130, support::Lie::dense);
  });
}

TEST(NormBackward, ACallOnATapeHasTheBitsOfOneWithout) {
  mha::RmsNorm<mha::bfloat16> norm({.width = 21});
  draw(norm, "bits");
  const auto x = random_rows<mha::bfloat16>("bits x", 2, 9, 21), r = random_rows<mha::bfloat16>("bits r", 2, 9, 21);
  auto tape = norm.tape();
  EXPECT_EQ(support::differing(norm(x, tape, mha::residual(r)), norm(x, mha::residual(r))), 0u);
  auto in_place = x;
  static_cast<void>(norm(in_place, tape, mha::into(in_place)));
  EXPECT_EQ(support::differing(in_place, norm(x)), 0u);
}

TEST(NormBackward, AddsToRowsInStorage) {
  mha::RmsNorm<mha::bfloat16> norm({.width = 21});
  draw(norm, "storage");
  const auto x = random_rows<mha::bfloat16>("storage x", 2, 9, 21),
             dy = random_rows<mha::bfloat16>("storage dy", 2, 9, 21);
  auto sum = random_rows<mha::bfloat16>("storage dx", 2, 9, 21);
  const auto before = sum;
  auto tape = norm.tape();
  auto g = norm.gradients();
  static_cast<void>(norm(x, tape));
  const auto dx = norm.backward(dy, tape, g);
  norm.backward(dy, tape, g, mha::add_to(sum));
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double expected = support::to_double(before.data()[i]) + support::to_double(dx.data()[i]);
    EXPECT_NEAR(support::to_double(sum.data()[i]), expected, 0.02 * (1 + std::abs(expected)));
  }
}

TEST(NormBackward, BitsDoNotDependOnTheThreads) {
  const auto outcome = [](const auto& threads) {
    using B = mha::CpuWith<std::remove_cvref_t<decltype(threads)>>;
    mha::LayerNorm<float, B> norm({.width = 70}, B(threads));
    draw(norm, "threads");
    const auto x = random_rows<float>("threads x", 3, 500, 70), dy = random_rows<float>("threads dy", 3, 500, 70);
    auto tape = norm.tape();
    auto g = norm.gradients();
    static_cast<void>(norm(x, tape));
    const auto dx = norm.backward(dy, tape, g);
    std::vector<float> all(g.flat().begin(), g.flat().end());
    all.insert(all.end(), dx.begin(), dx.end());
    return all;
  };
  const auto one = outcome(mha::Serial{});
  for (const int threads : {1, 2, 3, 5}) EXPECT_EQ(support::differing(one, outcome(mha::ThreadPool(threads))), 0u);
}

template <class B> void expect_zero_rows() {
  mha::LayerNorm<float, B> norm({.width = 20});
  auto x = random_rows<float>("nan x", 1, 6, 20), dy = random_rows<float>("nan dy", 1, 6, 20);
  for (Index j = 0; j < 20; ++j) dy(0, 3, j) = 0;
  auto tape = norm.tape();
  auto clean = norm.gradients(), g = norm.gradients();
  static_cast<void>(norm(x, tape));
  const auto dx = norm.backward(dy, tape, clean);
  x(0, 3, 4) = std::numeric_limits<float>::quiet_NaN();
  static_cast<void>(norm(x, tape));
  EXPECT_EQ(support::differing(norm.backward(dy, tape, g), dx), 0u);
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), clean.flat().begin()));
  for (Index j = 0; j < 20; ++j) EXPECT_EQ(dx(0, 3, j), 0);
  x(0, 1, 4) = std::numeric_limits<float>::quiet_NaN();
  static_cast<void>(norm(x, tape));
  static_cast<void>(norm.backward(dy, tape, g));
  EXPECT_TRUE(std::isnan(g.weight(0)));
  // A row of equal numbers, of which nothing remains without eps.
  mha::LayerNorm<float, B> bare({.width = 20, .eps = 0});
  for (auto& v : x) v = 3;
  auto of_bare = bare.gradients();
  static_cast<void>(bare(x, tape));
  for (const float v : bare.backward(dy, tape, of_bare)) EXPECT_EQ(v, 0);
}

TEST(NormBackward, RowsWithoutAGradientOrAVarianceHaveTheGradient0) {
  expect_zero_rows<mha::Cpu>();
  expect_zero_rows<mha::Reference>();
}

TEST(NormBackward, AddsToTheGradientsAndTakesATapeTwice) {
  mha::RmsNorm<double> norm({.width = 6});
  draw(norm, "adds");
  const Rows x = random_rows("adds x", 1, 5, 6), dy = random_rows("adds dy", 1, 5, 6);
  auto tape = norm.tape();
  auto once = norm.gradients(), twice = norm.gradients();
  static_cast<void>(norm(x, tape));
  const Rows dx = norm.backward(dy, tape, once);
  static_cast<void>(norm.backward(dy, tape, twice));
  auto moved = std::move(tape);
  EXPECT_FALSE(tape.recorded());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(support::differing(norm.backward(dy, moved, twice), dx), 0u);
  for (std::size_t i = 0; i < once.flat().size(); ++i) EXPECT_EQ(2 * once.flat()[i], twice.flat()[i]);
  auto assigned = norm.tape();
  assigned = std::move(moved);
  EXPECT_FALSE(moved.recorded());  // NOLINT(bugprone-use-after-move)
  twice.clear();
  EXPECT_EQ(support::differing(norm.backward(dy, assigned, twice), dx), 0u);
  EXPECT_TRUE(std::equal(once.flat().begin(), once.flat().end(), twice.flat().begin()));
  const auto copy = norm;
  EXPECT_EQ(support::differing(copy.backward(dy, assigned, twice), dx), 0u);
}

TEST(NormBackward, DxOverlapsNoParameterOfAnyKind) {
  mha::LayerNorm<float> norm({.width = 4});
  mha::Tensor<float, 1> weight(4), bias(4);
  norm.borrow({.weight = weight, .bias = bias});
  const auto x = random_rows<float>("kinds x", 1, 1, 4);
  auto tape = norm.tape();
  auto g = norm.gradients();
  static_cast<void>(norm(x, tape));
  for (auto* const part : {&weight, &bias}) {
    const auto dx = mha::view(part->data(), 1, 1, 4);
    const std::string said =
        std::string("backward: dx overlaps the parameter '") + (part == &weight ? "weight'" : "bias'");
    EXPECT_EQ(message_of([&] { norm.backward(x, tape, g, mha::into(dx)); }), said);
    EXPECT_EQ(message_of([&] { norm.backward(x, tape, g, mha::add_to(dx)); }), said);
  }
  for (const float d : g.flat()) EXPECT_EQ(d, 0);
}

TEST(NormBackward, RefusesWhatDoesNotFitAndChangesNothing) {
  mha::LayerNorm<double> norm({.width = 4}), other({.width = 4});
  Rows x = random_rows("refuses x", 2, 5, 4), dy = random_rows("refuses dy", 2, 5, 4);
  const Rows narrow(2, 5, 3), longer(2, 6, 4);
  auto tape = norm.tape();
  auto g = norm.gradients(), foreign = mha::RmsNorm<double>({.width = 4}).gradients();
  const auto backward = [&](const auto& d, auto& to, const auto&... extra) {
    return message_of([&] { static_cast<void>(norm.backward(d, tape, to, extra...)); });
  };
  EXPECT_EQ(backward(dy, g), "backward: nothing was recorded on the tape: call it with x and the tape first");
  static_cast<void>(norm(x, tape));
  const Rows before = norm.backward(dy, tape, g);
  const std::string weights =
      "backward: the tape was recorded with other weights: by another norm, or before this one's weights changed";
  EXPECT_EQ(message_of([&] { static_cast<void>(other.backward(dy, tape, g)); }), weights);
  EXPECT_EQ(backward(narrow, g), "backward: dy has width 3, expected 4");
  EXPECT_EQ(backward(longer, g), "backward: x has length 5 but dy has length 6");
  EXPECT_EQ(backward(dy, foreign),
            "backward: the gradients are of other sizes: on axis 0 their bias has extent 0, expected 4");
  EXPECT_EQ(backward(dy, g, mha::into(dy)), "backward: dx overlaps dy");
  EXPECT_EQ(backward(dy, g, mha::add_to(dy)), "backward: dx overlaps dy");
  EXPECT_EQ(message_of([&] { static_cast<void>(norm(longer, tape, mha::residual(x))); }),
            "LayerNorm: x has length 6 but the residual has length 5");
  EXPECT_EQ(message_of([&] { static_cast<void>(norm(narrow, tape)); }),
            "LayerNorm: x has width 3 but the norm has "
            "width 4");
  auto fresh = norm.gradients();
  EXPECT_EQ(support::differing(norm.backward(dy, tape, fresh), before), 0u);
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), fresh.flat().begin()));
  norm.backward(dy, tape, g, mha::into(x));  // which the tape has copied

  norm.update([](auto& p) { p.flat()[0] += 1; });
  EXPECT_EQ(backward(dy, g), weights);
  static_cast<void>(norm(x, tape));
  norm.borrow(other.parameters());
  EXPECT_EQ(backward(dy, g), weights);
  const Rows none(0, 5, 4);
  static_cast<void>(norm(none, tape));
  EXPECT_EQ(norm.backward(none, tape, g).size(), 0u);
}

}  // namespace
