// SPDX-License-Identifier: Apache-2.0
// expect only: mha: the layer's scalar and the input's differ
#include <mha/mha.hpp>

auto run(const mha::MultiHeadAttention<float>& layer, const mha::Tensor<float, 3>& keys,
         const mha::Tensor<double, 3>& values) {
#ifdef MHA_FAIL
  return layer.project_memory(keys, values);
#else
  return static_cast<void>(values), layer.project_memory(keys, keys);
#endif
}
