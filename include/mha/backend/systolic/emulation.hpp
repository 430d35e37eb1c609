// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "../../core/scalar.hpp"
#include "../../core/view.hpp"
#include "array.hpp"
#include "unit.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The order in which a unit adds the products of one element of c, from which its bits follow.
///
///   chained       Per Depth rows of the array: one chain of fused multiply-adds from 0, k ascending; then added to c.
///                 Subnormal numbers are kept. The portable unit.
///   split_chains  Per Depth rows: even k and odd k in two chains of fused multiply-adds from 0; the two are added, and
///                 their sum to c. Subnormal operands and results count as zero of their sign. AMX.
///   pairs         One chain of fused multiply-adds from c through all k: of every pair the odd k first, then the even.
///                 Subnormal operands and results count as zero of their sign. AVX512_BF16.
enum class SumOrder : int { chained, split_chains, pairs };

constexpr SumOrder order_of(MatrixUnit unit) {
  return unit == MatrixUnit::amx           ? SumOrder::split_chains
         : unit == MatrixUnit::dot_product ? SumOrder::pairs
                                           : SumOrder::chained;
}

namespace detail::systolic {

/// Arithmetic of a unit that takes subnormal operands for zero and flushes subnormal results to it.
struct Flushing {
  static constexpr float smallest_normal = 0x1p-126f;

  static float operand(float x) { return std::abs(x) < smallest_normal ? std::copysign(0.f, x) : x; }
  static float add(float a, float b) { return multiply_add(a, 1.f, b); }

  /// a · b + c, rounded once.
  static float multiply_add(float a, float b, float c) {
    a = operand(a);
    b = operand(b);
    c = operand(c);
    const float sum = std::fma(a, b, c);
    // A result is subnormal if it were below the normal range after rounding to 24 bits of any exponent.
    if (std::abs(sum) <= smallest_normal && sum != 0 &&
        std::abs(std::fma(a * 0x1p60f, b, c * 0x1p60f)) < smallest_normal * 0x1p60f)
      return std::copysign(0.f, sum);
    return sum;
  }
};

/// IEEE arithmetic.
struct Gradual {
  static float add(float a, float b) { return a + b; }
  static float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
};

}  // namespace detail::systolic

/// A systolic array in plain code, pass by pass: the bit-for-bit oracle of a unit that adds in the given order.
///
/// Scalars   operands bfloat16, sums float
/// Numerics  bits of the unit for every input, NaN standing for any NaN; of portable code where products are normal
///           numbers or 0, because it is not always compiled to fused multiply-adds
/// Cost      about 10 ns a multiply-add: for tests and for reading
template <class Array> class EmulatedArray {
 public:
  explicit EmulatedArray(SumOrder order) : order_(order) {}

  /// c += a · b, zero-padded to whole passes.
  ///
  /// Shapes    a (M, K)  b (K, N)  c (M, N); any strides
  void multiply(const TensorView<const bfloat16, 2>& a, const TensorView<const bfloat16, 2>& b,
                const TensorView<float, 2>& c) {
    const Index m = c.extent[0], n = c.extent[1], k = a.extent[1];
    for (Index i = 0; i < m; i += Array::rows)
      for (Index j = 0; j < n; j += Array::columns)
        for (Index p = 0; p < k; p += Array::depth) pass(a, b, c, i, j, p);
    use_ = use_ + array_use<Array>(m, n, k);
  }

  const ArrayUse& use() const { return use_; }

 private:
  using Flushing = detail::systolic::Flushing;
  using Gradual = detail::systolic::Gradual;

  /// Rows [i, …) of a and columns [j, …) of b over the depth [p, p + Depth).
  void pass(const TensorView<const bfloat16, 2>& a, const TensorView<const bfloat16, 2>& b,
            const TensorView<float, 2>& c, Index i, Index j, Index p) const {
    float x[Array::depth], y[Array::depth];
    for (Index r = i; r < i + Array::rows && r < c.extent[0]; ++r)
      for (Index s = j; s < j + Array::columns && s < c.extent[1]; ++s) {
        for (Index d = 0; d < Array::depth; ++d) {
          x[d] = p + d < a.extent[1] ? float(a(r, p + d)) : 0.f;
          y[d] = p + d < a.extent[1] ? float(b(p + d, s)) : 0.f;
        }
        c(r, s) = sum(x, y, c(r, s));
      }
  }

  float sum(const float* x, const float* y, float c) const {
    if (order_ == SumOrder::chained) {
      float chain = 0;
      for (Index d = 0; d < Array::depth; ++d) chain = Gradual::multiply_add(x[d], y[d], chain);
      return Gradual::add(c, chain);
    }
    if (order_ == SumOrder::split_chains) {
      float chain[2] = {};
      for (Index d = 0; d < Array::depth; ++d) chain[d % 2] = Flushing::multiply_add(x[d], y[d], chain[d % 2]);
      return Flushing::add(c, Flushing::add(chain[0], chain[1]));
    }
    for (Index d = 0; d < Array::depth; d += 2) {
      c = Flushing::multiply_add(x[d + 1], y[d + 1], c);
      c = Flushing::multiply_add(x[d], y[d], c);
    }
    return c;
  }

  SumOrder order_;
  ArrayUse use_;
};

}  // namespace mha::inline MHA_NAMESPACE
