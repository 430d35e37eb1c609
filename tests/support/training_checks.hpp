// SPDX-License-Identifier: Apache-2.0
// Backward passes of blocks on a backend whose tensors are DeviceTensors, beside the same numbers in double on the
// host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/block/feed_forward.hpp>
#include <mha/block/linear.hpp>
#include <mha/block/norm.hpp>

#include "compare.hpp"
#include "linear_checks.hpp"
#include "random.hpp"

namespace training_checks {

using mha::Index;
using mha::Tensor;
using mha::TensorView;
using support::to_double;

/// ‖error‖ / ‖exact‖ of a backward pass in T.
template <class T> constexpr double bound() {
  return sizeof(T) == 8 ? 1e-13 : sizeof(T) == 4 ? 1e-5 : 6 * support::unit_roundoff<T>();
}

/// The error is as small beside `exact` and beside `terms`, the size of what may cancel in it.
template <class Given, class Exact>
void expect_norm_wise(const Given& given, const Exact& exact, double bound, const std::string& what, double terms = 0) {
  ASSERT_EQ(given.size(), exact.size()) << what;
  double error = 0, size = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const double expected = to_double(exact.data()[i]), difference = to_double(given.data()[i]) - expected;
    error += difference * difference;
    size += expected * expected;
  }
  EXPECT_LE(std::sqrt(error), bound * (std::sqrt(size) + terms)) << what;
}

/// Rows (B, L, E) on the device with poison between the sequences and behind every row, and the same in double.
template <class T> struct Rows {
  Index batch, length, width;
  Tensor<T, 3> here;
  mha::DeviceTensor<T, 3> there;
  Tensor<double, 3> wide;

  Rows(Index b, Index l, Index e) : batch(b), length(l), width(e), here(b, l + 1, e + 3), wide(b, l, e) {
    support::poison_all(here);
  }
  static Rows drawn(support::Random& random, Index b, Index l, Index e) {
    Rows r(b, l, e);
    r.each([&](T& x, double& w) {
      x = support::Random::rounded<T>(random.normal());
      w = to_double(x);
    });
    return r;
  }
  template <class F> void each(const F& f) {
    for (Index b = 0; b < batch; ++b)
      for (Index l = 0; l < length; ++l)
        for (Index e = 0; e < width; ++e) f(here(b, l, e), wide(b, l, e));
  }
  /// What the host has goes to the device.
  Rows& send() {
    there = mha::to_device(here);
    return *this;
  }
  TensorView<T, 3> view() {
    TensorView<T, 3> v = there.view();
    v.extent[1] = length;
    v.extent[2] = width;
    return v;
  }
  /// What the device has, without the poison, which must be as it was.
  Tensor<T, 3> fetched() {
    const auto all = mha::to_host(there);
    Tensor<T, 3> rows(batch, length, width);
    for (Index b = 0; b < batch; ++b)
      for (Index l = 0; l < length + 1; ++l)
        for (Index e = 0; e < width + 3; ++e)
          if (l < length && e < width)
            rows(b, l, e) = all(b, l, e);
          else
            EXPECT_EQ(support::bits(all(b, l, e)), support::bits(support::poison<T>())) << "beside the rows";
    return rows;
  }
};

/// Every element is twice the other's.
template <class T> void expect_doubled(const Tensor<T, 3>& given, const Tensor<T, 3>& once) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const double found = to_double(given.data()[i]), expected = 2 * to_double(once.data()[i]);
    EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << "added, element " << i;
  }
}

/// Allocations of the device's memory so far, those of no workspace among them, where they can be counted.
template <class B> int device_allocations() { return 0; }

/// A block there and in double here, of which some rows of dy are 0 and those of x NaN: two calls add up, twice, with
/// the same bits; nothing is allocated the second time.
template <class B, class T, class There, class Here>
void expect_block(There& there, Here& here, Index inputs, Index outputs, support::Random& random, double bound,
                  const std::string& what) {
  SCOPED_TRACE(what);
  const Index batch = 1 + random.below(3), length = 1 + random.below(90);
  auto x = Rows<T>::drawn(random, batch, length, inputs), dy = Rows<T>::drawn(random, batch, length, outputs);
  const auto nobody = static_cast<T>(std::numeric_limits<mha::Accumulator<T>>::quiet_NaN());
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l) {
      if (!random.chance(0.2)) continue;
      for (Index e = 0; e < inputs; ++e) x.here(b, l, e) = nobody, x.wide(b, l, e) = 0;
      for (Index e = 0; e < outputs; ++e) dy.here(b, l, e) = T(0), dy.wide(b, l, e) = 0;
    }
  x.send(), dy.send();
  auto wide_tape = here.tape();
  auto exact = here.gradients();
  static_cast<void>(here(x.wide, wide_tape));
  const auto exact_dx = here.backward(dy.wide, wide_tape, exact);
  static_cast<void>(here.backward(dy.wide, wide_tape, exact));

  typename There::Workspace workspace;
  auto tape = there.tape();
  auto gradients = there.gradients();
  mha::DeviceTensor<T, 3> y(batch, length, outputs), plain(batch, length, outputs);
  Tensor<mha::Accumulator<T>, 1> first(1);
  Tensor<T, 3> first_dx;
  for (int step = 0; step < 3; ++step) {
    Rows<T> dx(batch, length, inputs);
    dx.send();
    const int allocations = device_allocations<B>(), of_workspace = workspace.allocations();
    there(x.view(), tape, mha::into(y), workspace);
    for (int twice = 0; twice < 2; ++twice) there.backward(dy.view(), tape, gradients, mha::into(dx.view()), workspace);
    if (step > 0) {
      EXPECT_EQ(device_allocations<B>(), allocations) << "step " << step;
      EXPECT_EQ(workspace.allocations(), of_workspace) << "step " << step;
    }
    const auto& host = gradients.to_host(workspace);
    Tensor<mha::Accumulator<T>, 1> all(static_cast<Index>(host.flat().size()));
    std::copy(host.flat().begin(), host.flat().end(), all.begin());
    const auto found = dx.fetched();
    if (step == 0) {
      expect_norm_wise(found, exact_dx, bound, "dx");
      expect_norm_wise(all, exact.flat(), bound, "the gradients");
      first = all, first_dx = found;
    }
    EXPECT_EQ(support::differing(all, first), 0u) << "step " << step;
    EXPECT_EQ(support::differing(found, first_dx), 0u) << "step " << step;
    gradients.clear(workspace);
    for (const auto d : gradients.to_host(workspace).flat()) EXPECT_EQ(d, mha::Accumulator<T>(0));
  }
  // The same without gradients, and where no weights are left but the packed ones.
  const auto expect_again = [&](auto&... wanted) {
    Rows<T> dx(batch, length, inputs);
    dx.send();
    there(x.view(), tape, mha::into(y), workspace);
    for (int twice = 0; twice < 2; ++twice) there.backward(dy.view(), tape, wanted..., mha::into(dx.view()), workspace);
    EXPECT_EQ(support::differing(dx.fetched(), first_dx), 0u);
  };
  expect_again();
  Rows<T> twice(batch, length, inputs);
  twice.send();
  const auto sum = twice.view();
  there.backward(dy.view(), tape, mha::into(sum), workspace);
  there.backward(dy.view(), tape, mha::add_to(sum), workspace);
  expect_doubled(twice.fetched(), first_dx);
  if constexpr (requires { there.drop_unpacked(); }) {
    there.drop_unpacked();
    expect_again(gradients);
    const auto& host = gradients.to_host(workspace);
    EXPECT_TRUE(std::equal(host.flat().begin(), host.flat().end(), first.begin(), first.end()));
  }
  static_cast<void>(there(x.view(), mha::into(plain), workspace));
  const auto recorded = mha::to_host(y), not_recorded = mha::to_host(plain);
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const double a = to_double(recorded.data()[i]), b = to_double(not_recorded.data()[i]);
    EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << "recorded and not, element " << i;
  }
}

template <class B, class T, class F> void expect_linears(const char* name) {
  support::Random random(name);
  for (const bool bias : {true, false}) {
    const Index in = 1 + random.below(60), out = 1 + random.below(60);
    mha::Linear<T, B, F> there({.inputs = in, .outputs = out, .bias = bias});
    mha::Linear<double, mha::Reference, F> here({.inputs = in, .outputs = out, .bias = bias});
    linear_checks::share<T>(there, here, random);
    expect_block<B, T>(there, here, in, out, random, bound<T>(),
                       std::string(name) + ", " + std::to_string(in) + " to " + std::to_string(out));
  }
}

template <class B, class T> void expect_linears(const char* name) {
  expect_linears<B, T, mha::Identity>(name);
  expect_linears<B, T, mha::Gelu>(name);
  expect_linears<B, T, mha::SwiGlu>(name);
}

template <class B, class T, class F> void expect_feed_forwards(const char* name) {
  support::Random random(name);
  const Index model = 1 + random.below(40), hidden = 1 + random.below(70);
  mha::FeedForward<T, B, F> there({.d_model = model, .d_hidden = hidden});
  mha::FeedForward<double, mha::Reference, F> here({.d_model = model, .d_hidden = hidden});
  linear_checks::share<T>(there.up(), here.up(), random);
  linear_checks::share<T>(there.down(), here.down(), random);
  expect_block<B, T>(there, here, model, model, random, 2 * bound<T>(), name);
}

/// Both norms, with weights and biases drawn.
template <class B, class T, template <class, class> class Norm> void expect_norm(const char* name) {
  support::Random random(name);
  for (const Index width : {5 + random.below(27), 32 + random.below(200)})
    for (const bool bias : {true, false}) {
      const mha::NormConfig config{.width = width, .eps = 1e-3, .bias = bias, .zero_centered = !bias};
      Norm<T, B> there(config);
      Norm<double, mha::Reference> here(config);
      linear_checks::share<T>(there, here, random);
      expect_block<B, T>(there, here, width, width, random, 4 * bound<T>(),
                         std::string(name) + ", width " + std::to_string(width));
    }
}
template <class B, class T> void expect_norms(const char* name) {
  expect_norm<B, T, mha::LayerNorm>(name);
  expect_norm<B, T, mha::RmsNorm>(name);
}

}  // namespace training_checks
