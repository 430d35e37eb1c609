// SPDX-License-Identifier: Apache-2.0
// expect: may be given once each
#include <mha/mha.hpp>

void run(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& x, mha::Tensor<float, 3>& y,
         [[maybe_unused]] mha::Tensor<float, 3>& z) {
#ifdef MHA_FAIL
  layer(x, mha::into(y), mha::into(z));
#else
  layer(x, mha::into(y));
#endif
}
