// SPDX-License-Identifier: Apache-2.0
// Norms of a backend whose tensors are DeviceTensors beside the same numbers in double on the host.
#pragma once

#include <algorithm>

#include <mha/backend/cuda/device_tensor.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/block/norm.hpp>

#include "device_checks.hpp"

namespace norm_checks {

using mha::Tensor;

template <template <class, class> class Norm, class B, class T> void expect_norm(const char* name) {
  support::Random random(name);
  const mha::NormConfig config{.width = 257, .eps = 1e-4, .bias = true};
  Norm<T, B> there(config);
  Norm<double, mha::Reference> here(config);
  there.update([&](auto& p) {
    const auto all = p.flat();
    random.fill(all);
  });
  const auto weights = there.parameters();
  here.update([&](auto& p) {
    std::transform(weights.flat().begin(), weights.flat().end(), p.flat().begin(),
                   [](T w) { return support::to_double(w); });
  });
  Tensor<T, 3> x(2, 5, 257), residual(2, 5, 257);
  random.fill(x);
  random.fill(residual);
  const auto wide = [](const Tensor<T, 3>& t) { return device_checks::doubled(t, Tensor<double, 3>(2, 5, 257)); };
  const double bound = sizeof(T) == 8 ? 1e-11 : sizeof(T) == 4 ? 1e-4 : 16 * support::unit_roundoff<T>();
  const auto far_x = mha::to_device(x), far_residual = mha::to_device(residual);
  typename B::Workspace workspace;
  device_checks::expect_near(mha::to_host(there(far_x, workspace)), here(wide(x)), bound, "alone");
  mha::DeviceTensor<T, 3> y(2, 5, 257), sum(2, 5, 257);
  there(far_x, mha::residual(far_residual), mha::into(y), mha::sum_into(sum), workspace);
  const auto added = mha::to_host(sum);
  for (std::size_t i = 0; i < x.size(); ++i) {
    using A = mha::Accumulator<T>;
    ASSERT_EQ(support::bits(added.data()[i]), support::bits(T(A(x.data()[i]) + A(residual.data()[i]))));
  }
  Tensor<double, 3> exact = wide(x);
  for (std::size_t i = 0; i < x.size(); ++i) exact.data()[i] += support::to_double(residual.data()[i]);
  device_checks::expect_near(mha::to_host(y), here(exact), bound, "of the sum");
}

template <class B, class T> void expect_norms() {
  expect_norm<mha::LayerNorm, B, T>("layer norm on a device");
  expect_norm<mha::RmsNorm, B, T>("rms norm on a device");
}

}  // namespace norm_checks
