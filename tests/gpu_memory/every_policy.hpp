// SPDX-License-Identifier: Apache-2.0
// What tests/cuda runs on a GPU, with its tensors and policies in memory that the host does not reach.
#pragma once

#include "../gpu_model/gpu_cases.hpp"
#include "../gpu_model/gpu_laws.hpp"
#include "far_cuda.hpp"

namespace far {

template <class T> void expect_agreement() {
  gpu_cases::expect_agreement<support::FarCuda, T>(gpu_cases::small(), [](support::Random&, auto&& run) { run(); });
}

template <class Scalar> struct Setup {
  using Backend = support::FarCuda;
  using T = Scalar;
  static const char* missing() { return nullptr; }
};

}  // namespace far
