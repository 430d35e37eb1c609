// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <string>

#include <mha/core/check.hpp>
#include <mha/core/tensor.hpp>

#include "message_of.hpp"
#include "random.hpp"

namespace support {

inline mha::Tensor<double, 4> random_rows(const char* stream, int batch, int length, int heads, int dim) {
  Random random(stream);
  mha::Tensor<double, 4> x(batch, length, heads, dim);
  random.fill(x);
  return x;
}

/// base^(−2i/r), written another way.
inline double plain_frequency(double base, int i, int r) { return 1 / std::exp(std::log(base) * (2.0 * i / r)); }

/// What check() says.
template <class R> std::string refusal(const R& rotary, mha::Index head_dim) {
  return message_of<mha::ShapeError>([&] { rotary.check(head_dim); });
}

}  // namespace support
