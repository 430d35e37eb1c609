// SPDX-License-Identifier: Apache-2.0
// expect only: mha: memory_into(add_to(m)) of a constant m: the gradient cannot be added there
#include <utility>

#include <mha/mha.hpp>

using Layer = mha::MultiHeadAttention<float>;

void add(const Layer& layer, const Layer::Tape& tape, const mha::Tensor<float, 2>& dy,
         mha::Tensor<float, 2>& d_memory) {
#ifdef MHA_FAIL
  static_cast<void>(layer.backward(dy, tape, mha::memory_into(mha::add_to(std::as_const(d_memory)))));
#else
  static_cast<void>(layer.backward(dy, tape, mha::memory_into(mha::add_to(d_memory))));
#endif
}
