// SPDX-License-Identifier: Apache-2.0
// Linear, feed-forward and norm by loops in double, with bounds of the errors that a computation may have.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "block_cases.hpp"

namespace blocks {

/// A matrix whose elements may be wrong by so much.
struct Numbers {
  Index rows = 0, columns = 0;
  std::vector<double> value, error;

  Numbers() = default;
  Numbers(Index m, Index n)
      : rows(m), columns(n), value(static_cast<std::size_t>(m) * static_cast<std::size_t>(n)), error(value.size()) {}
  std::size_t at(Index i, Index j) const {
    return static_cast<std::size_t>(i) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(j);
  }
  double& operator()(Index i, Index j) { return value[at(i, j)]; }
  double operator()(Index i, Index j) const { return value[at(i, j)]; }
};

/// What a machine computes in.
struct Precision {
  double sums;     ///< relative error of one operation in the accumulator
  double storage;  ///< of rounding a result, 0 where it has the accumulator's scalar
  double least;    ///< absolute error of that
  double operand;  ///< relative error of a factor of a product, in the forward pass
  double operand_back;

  double stored(double x) const { return storage * std::abs(x) + least; }
};

struct LinearNumbers {
  Numbers weight, gate, bias, gate_bias;  // (in, out), (in, out), (1, out), (1, out); no columns for none
};
struct LinearAnswer {
  Numbers gate, sum, y;  // (M, out): what the activation is applied to, and the result
};
LinearAnswer linear(const Precision& p, Form form, Function f, const Numbers& x, const LinearNumbers& w,
                    const Numbers& residual);
struct LinearGradients {
  Numbers x;
  LinearNumbers weights;
};
/// The gradients of ⟨dy, y⟩.
LinearGradients linear_backward(const Precision& p, Form form, Function f, const Numbers& x, const LinearNumbers& w,
                                const LinearAnswer& y, const Numbers& dy);

struct NormNumbers {
  NormKind kind;
  double eps;
  std::vector<double> weight, bias;  // (E), as they multiply
};
struct NormAnswer {
  Numbers sum, y;
};
NormAnswer norm(const Precision& p, const NormNumbers& of, const Numbers& x, const Numbers& residual);
struct NormGradients {
  Numbers x, weight, bias;  // (M, E), (1, E), (1, E)
};
NormGradients norm_backward(const Precision& p, const NormNumbers& of, const Numbers& z, const Numbers& dy);

}  // namespace blocks
