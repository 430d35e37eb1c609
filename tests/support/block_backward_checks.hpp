// SPDX-License-Identifier: Apache-2.0
// What the tests of the backward passes of Linear, FeedForward and norms share.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>

#include <mha/block.hpp>

#include "compare.hpp"
#include "message_of.hpp"
#include "random.hpp"

namespace support {

using mha::Index;

template <class T = double> mha::Tensor<T, 3> random_rows(const std::string& stream, Index b, Index l, Index e) {
  mha::Tensor<T, 3> x(b, l, e);
  Random(stream).fill(x);
  return x;
}

/// The derivative of loss() by a number at `at`, which must be written to take effect: set(x).
template <class Loss, class Set> double quotient(const Loss& loss, double at, const Set& set) {
  constexpr double step = 0x1p-17;
  set(at + step);
  const double up = loss();
  set(at - step);
  const double down = loss();
  set(at);
  return (up - down) / (2 * step);
}
template <class Loss>
void expect_row_gradients(const char* name, mha::Tensor<double, 3>& x, const mha::Tensor<double, 3>& dx,
                          const Loss& loss) {
  ASSERT_EQ(x.size(), dx.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = quotient(loss, x.data()[i], [&](double value) { x.data()[i] = value; });
    ASSERT_NEAR(dx.data()[i], expected, 1e-7 * (1 + std::abs(expected))) << name << ", row element " << i;
  }
}
/// Of a Linear or a norm: of every number of flat().
template <class Block, class Gradients, class Loss>
void expect_parameter_gradients(const char* name, Block& block, const Gradients& g, const Loss& loss) {
  ASSERT_EQ(g.flat().size(), block.parameters().flat().size());
  for (std::size_t i = 0; i < g.flat().size(); ++i) {
    const double expected = quotient(loss, block.parameters().flat()[i],
                                     [&](double w) { block.update([&](auto& p) { p.flat()[i] = w; }); });
    ASSERT_NEAR(g.flat()[i], expected, 1e-7 * (1 + std::abs(expected))) << name << ", parameter " << i;
  }
}

/// Normal numbers of a size that keeps the results near 1.
template <class Block> void draw(Block& block, const std::string& stream, double size) {
  Random random(stream);
  block.update([&](auto& p) {
    for (auto& w : p.flat()) w = random.rounded<std::remove_reference_t<decltype(w)>>(size * random.normal());
  });
}

/// ‖given − expected‖ / ‖expected‖ over the elements that a pair of functions names.
class NormWise {
 public:
  void add(double given, double expected) {
    error_ += (given - expected) * (given - expected);
    size_ += expected * expected;
  }
  double error() const { return std::sqrt(error_ / size_); }

 private:
  double error_ = 0, size_ = 0;
};

}  // namespace support
