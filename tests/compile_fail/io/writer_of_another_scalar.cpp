// SPDX-License-Identifier: Apache-2.0
// expect: mha: safetensors files hold double, float, half, bfloat16, bool and integers
#include <mha/io/safetensors_writer.hpp>

void save(mha::SafetensorsWriter& file, const long double* w) {
#ifdef MHA_FAIL
  file.add("w", mha::view(w, 3));
#else
  file.add("w", mha::view(reinterpret_cast<const double*>(w), 3));
#endif
}
