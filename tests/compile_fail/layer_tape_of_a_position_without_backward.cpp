// SPDX-License-Identifier: Apache-2.0
// expect: mha: this position has no backward pass: it has no member for_each_items_back(gradient, at, f)
#include <mha/mha.hpp>

// Of bfloat16 alone: gradients of a layer of bfloat16 are float.
struct Shift {
  static constexpr mha::Role role = mha::Role::position;
  static constexpr const char* name = "Shift";
  void apply(const mha::TensorView<mha::bfloat16, 4>& x, const mha::Origins& first) const {
    x(0, 0, 0, 0) = static_cast<mha::bfloat16>(static_cast<float>(first[0]));
  }
};
using Layer = mha::MultiHeadAttention<mha::bfloat16, mha::Cpu, Shift>;

void use(const Layer& layer, const mha::Tensor<mha::bfloat16, 2>& x, const Layer::Tape& tape, Layer::Gradients& to) {
#ifdef MHA_FAIL
  static_cast<void>(layer.backward(x, tape, to));
#else
  static_cast<void>(layer(x)), static_cast<void>(tape), static_cast<void>(to);
#endif
}
