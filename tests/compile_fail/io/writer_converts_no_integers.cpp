// SPDX-License-Identifier: Apache-2.0
// expect: bool and integers, of which the first four are converted to one another
#include <mha/io/safetensors_writer.hpp>

void save(mha::SafetensorsWriter& file, const int* ids) {
#ifdef MHA_FAIL
  file.add<float>("ids", mha::view(ids, 3));
#else
  file.add<int>("ids", mha::view(ids, 3));
#endif
}
