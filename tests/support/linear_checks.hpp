// SPDX-License-Identifier: Apache-2.0
// Linears of a backend whose tensors are DeviceTensors beside the same weights in double on the host.
#pragma once

#include <algorithm>

#include <mha/block/feed_forward.hpp>

#include "layer_checks.hpp"

namespace linear_checks {

using layer_checks::drawn;
using mha::Index;
using mha::Tensor;

/// The same weights, rounded to T, in both.
template <class T, class There, class Here> void share(There& there, Here& here, support::Random& random) {
  there.update([&](auto& p) {
    for (T& w : p.flat()) w = support::Random::rounded<T>(random.uniform(-0.2, 0.2));
  });
  const auto from = there.parameters().flat();
  here.update([&](auto& p) {
    std::transform(from.begin(), from.end(), p.flat().begin(), [](T w) { return support::to_double(w); });
  });
}

/// A Linear into a tensor of its own and over its residual, then a feed-forward over x.
template <class B, class T, class F> void expect_block(const char* name) {
  SCOPED_TRACE(name);
  support::Random random(name);
  const double bound = 4 * layer_checks::bound<T>();  // a gate multiplies two results that were rounded
  const auto wide = [](const Tensor<T, 3>& t) {
    return device_checks::doubled(t, Tensor<double, 3>(t.extent(0), t.extent(1), t.extent(2)));
  };
  mha::Linear<T, B, F> there({.inputs = 48, .outputs = 40});
  mha::Linear<double, mha::Reference, F> here({.inputs = 48, .outputs = 40});
  share<T>(there, here, random);
  const auto x = drawn<T, 3>(random, 2, 19, 48), r = drawn<T, 3>(random, 2, 19, 40);
  const auto wide_x = wide(x), wide_r = wide(r);
  const auto far_x = mha::to_device(x);
  auto far_r = mha::to_device(r);
  typename B::Workspace workspace;
  device_checks::expect_near(mha::to_host(there(far_x, workspace)), here(wide_x), bound, "a Linear");
  there(far_x, mha::residual(far_r), mha::into(far_r), workspace);
  device_checks::expect_near(mha::to_host(far_r), here(wide_x, mha::residual(wide_r)), bound, "with a residual");

  mha::FeedForward<T, B, F> far_ff({.d_model = 48, .d_hidden = 88});
  mha::FeedForward<double, mha::Reference, F> near_ff({.d_model = 48, .d_hidden = 88});
  share<T>(far_ff.up(), near_ff.up(), random);
  share<T>(far_ff.down(), near_ff.down(), random);
  auto rows = mha::to_device(x);
  far_ff(rows, mha::residual(rows), mha::into(rows), workspace);
  device_checks::expect_near(mha::to_host(rows), near_ff(wide_x, mha::residual(wide_x)), 4 * bound, "a feed-forward");
  const int allocations = workspace.allocations();
  far_ff(rows, mha::residual(rows), mha::into(rows), workspace);
  EXPECT_EQ(workspace.allocations(), allocations);
}

template <class B, class T> void expect_blocks(const char* name) {
  expect_block<B, T, mha::Identity>(name);
  expect_block<B, T, mha::Gelu>(name);
  expect_block<B, T, mha::SwiGlu>(name);
}

}  // namespace linear_checks
