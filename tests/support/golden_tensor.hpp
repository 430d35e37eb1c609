// SPDX-License-Identifier: Apache-2.0
// A golden file's tensors as the library's.
#pragma once

#include <algorithm>

#include <mha/core/tensor.hpp>

#include "golden.hpp"

namespace golden {

/// A tensor of the file in this scalar; one of a lower rank throws.
template <class T, int Rank> mha::Tensor<T, Rank> tensor(const Tensor& from) {
  const auto& e = from.extent;
  mha::Tensor<T, Rank> to = [&] {
    if constexpr (Rank == 1)
      return mha::Tensor<T, 1>(e.at(0));
    else if constexpr (Rank == 2)
      return mha::Tensor<T, 2>(e.at(0), e.at(1));
    else if constexpr (Rank == 3)
      return mha::Tensor<T, 3>(e.at(0), e.at(1), e.at(2));
    else
      return mha::Tensor<T, 4>(e.at(0), e.at(1), e.at(2), e.at(3));
  }();
  std::transform(from.values.begin(), from.values.end(), to.begin(), [](double x) { return static_cast<T>(x); });
  return to;
}

}  // namespace golden
