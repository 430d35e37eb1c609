// SPDX-License-Identifier: Apache-2.0
// expect: SafetensorsWriter reads tensors in write(), when a temporary one is gone: name it first
#include <mha/core/tensor.hpp>
#include <mha/io/safetensors_writer.hpp>

void save(mha::SafetensorsWriter& file) {
  const mha::Tensor<float, 1> w(3);
#ifdef MHA_FAIL
  file.add("w", mha::Tensor<float, 1>(3));
#else
  file.add("w", w);
#endif
}
