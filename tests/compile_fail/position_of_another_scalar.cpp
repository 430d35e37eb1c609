// SPDX-License-Identifier: Apache-2.0
// expect: mha: this position turns no rows of the layer's scalar: it has no member apply(x, first) const
#include <mha/mha.hpp>

struct Shift {
  static constexpr mha::Role role = mha::Role::position;
  static constexpr const char* name = "Shift";
  void apply(const mha::TensorView<float, 4>& x, const mha::Origins& first) const {
    x(0, 0, 0, 0) += static_cast<float>(first[0]);
  }
};

#ifdef MHA_FAIL
using Scalar = double;
#else
using Scalar = float;
#endif

auto result(const mha::MultiHeadAttention<Scalar, mha::Cpu, Shift>& layer, const mha::TensorView<const Scalar, 2>& x) {
  return layer(x);
}
