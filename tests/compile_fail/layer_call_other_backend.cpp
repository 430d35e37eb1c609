// SPDX-License-Identifier: Apache-2.0
// expect: mha: a call may be given another value of the layer's backend type, but not another backend type
#include <mha/mha.hpp>

auto on(const mha::MultiHeadAttention<float, mha::Cpu>& layer, const mha::Tensor<float, 2>& x) {
#ifdef MHA_FAIL
  return layer(x, mha::CpuWith<mha::Serial>{});
#else
  return layer(x, mha::Cpu(mha::ThreadPool(2)));
#endif
}
