// SPDX-License-Identifier: Apache-2.0
// expect: SafetensorsWriter takes views, mha::view(pointer, extents...), an mha::Tensor or
#include <vector>

#include <mha/io/safetensors_writer.hpp>

void save(mha::SafetensorsWriter& file, const std::vector<float>& numbers) {
#ifdef MHA_FAIL
  file.add("w", numbers);
#else
  file.add("w", mha::view(numbers.data(), 2));
#endif
}
