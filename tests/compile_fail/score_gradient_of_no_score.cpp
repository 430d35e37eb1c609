// SPDX-License-Identifier: Apache-2.0
// expect only: mha: ScoreGradient takes a score of the type of the call's trained score
#include <mha/mha.hpp>

struct Plain {
  float slope = 0;
  template <class S> S operator()(S s, int, int, int, int) const { return s * slope; }
};

void gradients(const mha::MultiHeadAttention<float, mha::Reference>& layer, const mha::Tensor<float, 2>& x) {
  auto tape = layer.tape();
  auto g = layer.gradients();
  mha::SoftCap cap{2.f};
  Plain plain{1.f};
  static_cast<void>(layer(x, tape, cap, plain));
#ifdef MHA_FAIL
  static_cast<void>(layer.backward(x, tape, g, mha::ScoreGradient(plain)));
#else
  static_cast<void>(layer.backward(x, tape, g, mha::ScoreGradient(cap)));
#endif
}
