// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/block.hpp>

#include "block_backward_checks.hpp"
#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using support::message_of;
using support::random_rows;
using Rows = mha::Tensor<double, 3>;

template <class FF> void draw(FF& ff, const std::string& stream) {
  support::draw(ff.up(), stream + " up", 0.4);
  support::draw(ff.down(), stream + " down", 0.4);
}

template <class F> void expect_quotients(const char* name, bool bias) {
  mha::FeedForward<double, mha::Reference, F> ff({.d_model = 4, .d_hidden = 5, .bias = bias});
  draw(ff, name);
  Rows x = random_rows(std::string(name) + " x", 2, 3, 4);
  const Rows dy = random_rows(std::string(name) + " dy", 2, 3, 4);
  auto tape = ff.tape();
  auto g = ff.gradients();
  // The residual is another tensor of the same numbers: its gradient is dy, and none of backward()'s.
  const Rows r = x;
  EXPECT_EQ(support::differing(ff(x, mha::residual(r), tape), ff(x, mha::residual(r))), 0u) << name;
  const Rows dx = ff.backward(dy, tape, g);
  const auto loss = [&] { return support::inner(dy, ff(x, mha::residual(r))); };
  support::expect_row_gradients(name, x, dx, loss);
  support::expect_parameter_gradients(name, ff.up(), g.up, loss);
  support::expect_parameter_gradients(name, ff.down(), g.down, loss);
  ASSERT_EQ(static_cast<std::int64_t>(g.flat().size()), ff.parameter_count());
  EXPECT_EQ(g.flat().data(), g.up.flat().data());
  EXPECT_EQ(g.flat().data() + g.up.flat().size(), g.down.flat().data());
  EXPECT_EQ(g.flat().size(), g.up.flat().size() + g.down.flat().size());
}

TEST(FeedForwardBackward, EqualsDifferenceQuotients) {
  expect_quotients<mha::Gelu>("gelu", true);
  expect_quotients<mha::SwiGlu>("swiglu", false);
  expect_quotients<mha::Identity>("identity", true);
}

/// Against Reference in double on the same numbers, of whatever strides.
template <class T, class F> void expect_double(double bound) {
  using A = mha::Accumulator<T>;
  constexpr Index batch = 3, length = 41, model = 24, hidden = 67;
  mha::FeedForward<T, mha::Cpu, F> ff({.d_model = model, .d_hidden = hidden});
  mha::FeedForward<double, mha::Reference, F> exact({.d_model = model, .d_hidden = hidden});
  draw(ff, "double");
  const auto copy = [](auto& to, const auto& from) {
    to.update([&](auto& p) {
      for (std::size_t i = 0; i < p.flat().size(); ++i) p.flat()[i] = support::to_double(from.parameters().flat()[i]);
    });
  };
  copy(exact.up(), ff.up());
  copy(exact.down(), ff.down());
  const auto x = random_rows<T>("double x", batch, length, model),
             dy = random_rows<T>("double dy", batch, length, model);
  Rows wide_x(batch, length, model), wide_dy(batch, length, model);
  for (std::size_t i = 0; i < x.size(); ++i) {
    wide_x.data()[i] = support::to_double(x.data()[i]);
    wide_dy.data()[i] = support::to_double(dy.data()[i]);
  }
  auto tape = ff.tape();
  auto exact_tape = exact.tape();
  auto g = ff.gradients();
  auto exact_g = exact.gradients();
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(g.flat()[0])>, A>);
  mha::Tensor<T, 3> dx(batch, length, model);
  support::poison_all(dx);
  const auto y = ff(x, tape);
  EXPECT_EQ(support::differing(y, ff(x)), 0u);
  ff.backward(dy, tape, g, mha::into(dx));
  static_cast<void>(exact(wide_x, exact_tape));
  const Rows exact_dx = exact.backward(wide_dy, exact_tape, exact_g);
  support::NormWise of_x, of_g;
  for (std::size_t i = 0; i < dx.size(); ++i) of_x.add(support::to_double(dx.data()[i]), exact_dx.data()[i]);
  for (std::size_t i = 0; i < g.flat().size(); ++i) of_g.add(g.flat()[i], exact_g.flat()[i]);
  EXPECT_LT(of_x.error(), bound);
  EXPECT_LT(of_g.error(), bound);
}

TEST(FeedForwardBackward, IsNearTheDoubleReference) {
  expect_double<float, mha::GeluTanh>(2e-6);
  expect_double<float, mha::SwiGlu>(2e-6);
  expect_double<double, mha::GeGlu>(1e-14);
  expect_double<mha::bfloat16, mha::SwiGlu>(8e-3);
  expect_double<mha::half, mha::Gelu>(1e-3);
}

template <class Threads> std::vector<float> outcome(const Threads& threads) {
  using B = mha::CpuWith<Threads>;
  mha::FeedForward<float, B, mha::SwiGlu> ff({.d_model = 40, .d_hidden = 120}, B(threads));
  draw(ff, "threads");
  const auto x = random_rows<float>("threads x", 3, 200, 40), dy = random_rows<float>("threads dy", 3, 200, 40);
  auto tape = ff.tape();
  auto g = ff.gradients();
  static_cast<void>(ff(x, tape));
  const auto dx = ff.backward(dy, tape, g);
  std::vector<float> all(g.flat().begin(), g.flat().end());
  all.insert(all.end(), dx.begin(), dx.end());
  return all;
}

TEST(FeedForwardBackward, BitsDoNotDependOnTheThreads) {
  const auto one = outcome(mha::Serial{});
  for (const int threads : {1, 2, 3, 5}) EXPECT_EQ(support::differing(one, outcome(mha::ThreadPool(threads))), 0u);
}

TEST(FeedForwardBackward, AddsToTheGradientsAndTakesATapeTwice) {
  mha::FeedForward<double> ff({.d_model = 4, .d_hidden = 7});
  draw(ff, "adds");
  const Rows x = random_rows("adds x", 1, 5, 4), dy = random_rows("adds dy", 1, 5, 4);
  auto tape = ff.tape();
  auto once = ff.gradients(), twice = ff.gradients();
  static_cast<void>(ff(x, tape));
  const Rows dx = ff.backward(dy, tape, once);
  static_cast<void>(ff.backward(dy, tape, twice));
  auto moved = std::move(tape);
  EXPECT_FALSE(tape.recorded());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(support::differing(ff.backward(dy, moved, twice), dx), 0u);
  for (std::size_t i = 0; i < once.flat().size(); ++i) EXPECT_EQ(2 * once.flat()[i], twice.flat()[i]);
  const auto copy = twice;
  twice.clear();
  EXPECT_EQ(twice.down.bias(1), 0);
  EXPECT_NE(copy.down.bias(1), 0);
  EXPECT_EQ(copy.down.flat().data(), copy.flat().data() + copy.up.flat().size());
}

TEST(FeedForwardBackward, DxOverlapsNoParameterOfAnyKind) {
  mha::FeedForward<float, mha::Cpu, mha::SwiGlu> ff({.d_model = 3, .d_hidden = 5});
  ff.initialize(mha::XavierUniform{.seed = 7});
  const auto x = random_rows<float>("kinds x", 1, 1, 3), dy = random_rows<float>("kinds dy", 1, 1, 3);
  auto tape = ff.tape();
  auto g = ff.gradients();
  static_cast<void>(ff(x, tape));
  int parts = 0;
  const auto look_at = [&](const char* of) {
    return [&, of](const char* name, const auto& part) {
      if (part.size() == 0) return;
      EXPECT_EQ(
          message_of([&] { ff.backward(dy, tape, g, mha::into(mha::view(const_cast<float*>(part.data), 1, 1, 3))); }),
          std::string("backward: dx overlaps the parameter '") + name + "' of " + of + "()");
      ++parts;
    };
  };
  using Parts = mha::detail::PartsOf<mha::LinearViews<const float>>;
  const auto up = ff.up().parameters(), down = ff.down().parameters();
  Parts::each(look_at("up"), up);
  Parts::each(look_at("down"), down);
  EXPECT_EQ(parts, 6);
  for (const float d : g.flat()) EXPECT_EQ(d, 0);
}

TEST(FeedForwardBackward, RefusesWhatDoesNotFitAndChangesNothing) {
  mha::FeedForward<double> ff({.d_model = 4, .d_hidden = 7}), other({.d_model = 4, .d_hidden = 7});
  Rows x = random_rows("refuses x", 2, 5, 4), dy = random_rows("refuses dy", 2, 5, 4);
  const Rows narrow(2, 5, 3), longer(2, 6, 3);
  auto tape = ff.tape();
  auto g = ff.gradients(), foreign = mha::FeedForward<double>({.d_model = 4, .d_hidden = 8}).gradients();
  EXPECT_EQ(message_of([&] { static_cast<void>(ff(x, tape)); }),
            "feed_forward: up(): expected 35 weights, got 0: call initialize, update or borrow first");
  draw(ff, "refuses");
  draw(other, "refuses");
  const auto backward = [&](const auto& d, auto& to, const auto&... extra) {
    return message_of([&] { static_cast<void>(ff.backward(d, tape, to, extra...)); });
  };
  EXPECT_EQ(backward(dy, g), "backward: nothing was recorded on the tape: call it with x and the tape first");
  static_cast<void>(ff(x, tape));
  const Rows before = ff.backward(dy, tape, g);
  const std::string weights =
      "backward: the tape was recorded with other weights: by another FeedForward, or before this one's weights "
      "changed";
  EXPECT_EQ(message_of([&] { static_cast<void>(other.backward(dy, tape, g)); }), weights);
  EXPECT_EQ(backward(narrow, g), "backward: dy has width 3, expected 4");
  EXPECT_EQ(backward(longer, g), "backward: x has length 5 but dy has length 6");
  EXPECT_EQ(backward(dy, foreign),
            "backward: up: the gradients are of other sizes: on axis 1 their weight has extent 8, expected 7");
  EXPECT_EQ(backward(dy, g, mha::into(x)), "backward: dx overlaps x");
  EXPECT_EQ(backward(dy, g, mha::into(dy)), "backward: dx overlaps dy");
  EXPECT_EQ(message_of([&] { static_cast<void>(ff(x, tape, mha::into(x))); }),
            "feed_forward: the result overlaps x, which the backward pass of the tape reads");
  EXPECT_EQ(message_of([&] { static_cast<void>(ff(longer, tape)); }), "feed_forward: x has width 3 but d_model is 4");
  auto fresh = ff.gradients();
  EXPECT_EQ(support::differing(ff.backward(dy, tape, fresh), before), 0u);
  EXPECT_TRUE(std::equal(g.flat().begin(), g.flat().end(), fresh.flat().begin()));

  ff.down().update([](auto& p) { p.flat()[0] += 1; });
  EXPECT_EQ(backward(dy, g), weights);
  static_cast<void>(ff(x, tape));
  ff.drop_unpacked();
  EXPECT_EQ(backward(dy, g), "");  // the weights are the same
}

}  // namespace
