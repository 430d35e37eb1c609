// SPDX-License-Identifier: Apache-2.0
// What runs on the GPU with kernels for any mask and score; compiled once per scalar, so that the work is spread.
#pragma once

#include "../gpu_model/gpu_cases.hpp"
#include "../gpu_model/gpu_laws.hpp"
#include "any_policies.cuh"

namespace on_gpu {

/// The cases of the host model, and those of all sizes.
template <class T> void expect_agreement() {
  for (const gpu_cases::Array* array : {&gpu_cases::small(), &gpu_cases::all()})
    gpu_cases::expect_agreement<CudaOfAny, T>(*array, [](support::Random&, auto&& run) { run(); });
}

template <class Scalar> struct OnGpu {
  using Backend = CudaOfAny;
  using T = Scalar;
  static const char* missing() { return support::no_gpu(); }
};

}  // namespace on_gpu
