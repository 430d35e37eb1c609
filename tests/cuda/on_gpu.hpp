// SPDX-License-Identifier: Apache-2.0
// A call on the GPU beside the same numbers in double on the host.
#pragma once

#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include <mha/cuda.cuh>

#include "device_checks.hpp"
#include "gpu.hpp"

namespace on_gpu {

using device_checks::doubled;
using device_checks::expect_near;
using device_checks::Inputs;
using device_checks::Sizes;
using device_checks::tolerance;
using mha::Index;
using mha::Tensor;

/// The device of device_checks.hpp that is one.
struct Gpu {
  using Backend = mha::Cuda;
  template <class T, int Rank> static auto to(const Tensor<T, Rank>& x) { return mha::to_device(x); }
  template <class T, int Rank> static auto from(const mha::DeviceTensor<T, Rank>& x) { return mha::to_host(x); }
  template <class P> static auto keep(const P& policy) { return mha::on_device(policy); }
  static void fill(void* p, int byte, std::size_t n) { mha::cuda::check(cudaMemset(p, byte, n), "cudaMemset"); }
};

/// Output and log-sum-exp of a call on the GPU, both poisoned before, against the reference in double. `there` are the
/// policies as the GPU gets them, `here` as the host does.
template <class Device = Gpu, class T, class There, class Here>
void expect_right(const Inputs<T>& in, const There& there, const Here& here) {
  const auto found = there([&](const auto&... extra) { return device_checks::answer<Device>(in, extra...); });
  const auto expected = here([&](const auto&... extra) { return device_checks::expected(in, extra...); });
  expect_near(found, expected, in.sizes.text());
}

/// The same policies on both sides.
template <class Device = Gpu, class T, class... Extra>
void expect_right_with(const Inputs<T>& in, const Extra&... extra) {
  const auto pass = [&](const auto& call) { return call(extra...); };
  expect_right<Device>(in, pass, pass);
}

}  // namespace on_gpu
