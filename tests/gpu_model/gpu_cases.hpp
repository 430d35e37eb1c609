// SPDX-License-Identifier: Apache-2.0
// The cases of the kernels of the CUDA backend, on the host model and on a GPU alike: two by two, every scalar, policy,
// layout and size. A case has the same number, and the same numbers in it, on both.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "../conformance/run_case.hpp"

namespace gpu_cases {

using conformance::Case;
using conformance::Index;

struct Array {
  const char* name;
  std::vector<std::vector<int>> levels;  // tried, of each factor
  std::vector<support::CoveringRow> rows;

  std::vector<int> counts() const;
  Case at(std::size_t row) const;
};
/// Few and small sizes, of which the tensor-core kernels take more: the host model is a slow machine.
const Array& small();
/// All sizes of the conformance suite.
const Array& all();

template <class T> constexpr conformance::Storage storage_of() {
  using conformance::Storage;
  return std::is_same_v<T, float>       ? Storage::float32
         : std::is_same_v<T, double>    ? Storage::float64
         : std::is_same_v<T, mha::half> ? Storage::half
                                        : Storage::bfloat16;
}

/// The cases of one scalar on a backend, against the reference in double. with(random, run) sets the machine up and
/// calls run().
template <class B, class T, class With> void expect_agreement(const Array& array, const With& with) {
  int failed = 0;
  for (std::size_t i = 0; i < array.rows.size() && failed < 10; ++i) {
    const Case c = array.at(i);
    if (c.at<conformance::Storage>(conformance::storage) != storage_of<T>()) continue;
    support::Random stream(array.name + std::to_string(i));
    // Elements from a multiple of 16 bytes.
    const Index start = stream.chance(0.6) ? 16 : 1;
    SCOPED_TRACE(array.name + std::to_string(i) + " from element " + std::to_string(start) + ": " + c.text());
    with(stream, [&] { conformance::run_on<B, T>(c, stream, start); });
    failed += testing::Test::HasFailure() ? 1 : 0;
  }
}

}  // namespace gpu_cases
