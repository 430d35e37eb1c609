// SPDX-License-Identifier: Apache-2.0
// Attention as one writes it with Eigen: the L × L matrix is stored. It stays as it is, so that ratios can be compared
// over time.
#pragma once

#include <cmath>
#include <Eigen/Core>

#include <mha/core/view.hpp>

namespace bench {

/// softmax(Q Kᵀ / √D) V, head by head, in two dense products and one pass over the rows between them.
///
/// Shapes    q, k, v, out (B, L, H, D), contiguous along the last axis
class EigenAttention {
 public:
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Input = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
  using Output = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

  /// How a causal mask is used: to hide what was computed, or to compute half with Eigen's triangular products.
  enum class Causal { none, hide, triangular };

  void operator()(const mha::TensorView<float, 4>& out, const mha::TensorView<const float, 4>& q,
                  const mha::TensorView<const float, 4>& k, const mha::TensorView<const float, 4>& v, Causal causal) {
    scores_.resize(q.length(), k.length());
    for (int b = 0; b < q.batch(); ++b)
      for (int h = 0; h < q.heads(); ++h)
        head(Output(&out(b, 0, h, 0), out.length(), out.dim(), Eigen::OuterStride<>(out.stride[1])), map(q, b, h),
             map(k, b, h), map(v, b, h), causal);
  }

 private:
  static Input map(const mha::TensorView<const float, 4>& x, int b, int h) {
    return Input(&x(b, 0, h, 0), x.length(), x.dim(), Eigen::OuterStride<>(x.stride[1]));
  }

  void head(Output out, const Input& q, const Input& k, const Input& v, Causal causal) {
    Matrix& s = scores_;
    const float scale = 1 / std::sqrt(static_cast<float>(q.cols()));
    if (causal == Causal::triangular)
      s.triangularView<Eigen::Lower>() = q * k.transpose();
    else
      s.noalias() = q * k.transpose();
    inverse_sums_.resize(s.rows());
    for (Eigen::Index i = 0; i < s.rows(); ++i) {
      const Eigen::Index visible = causal == Causal::none ? s.cols() : i + 1;
      auto row = s.row(i).head(visible);
      row.array() = ((row.array() - row.maxCoeff()) * scale).exp();
      inverse_sums_(i) = 1 / row.sum();
      if (causal == Causal::hide) s.row(i).tail(s.cols() - visible).setZero();
    }
    if (causal == Causal::triangular)
      out.noalias() = s.triangularView<Eigen::Lower>() * v;
    else
      out.noalias() = s * v;
    out.array().colwise() *= inverse_sums_.array();
  }

  Matrix scores_;                 // (L, L), kept from call to call
  Eigen::VectorXf inverse_sums_;  // (L)
};

}  // namespace bench
