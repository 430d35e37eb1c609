// SPDX-License-Identifier: Apache-2.0
// expect only: mha: an index is an integer
#include <mha/mha.hpp>

float result(const mha::Tensor<float, 2>& x, [[maybe_unused]] double i) {
#ifdef MHA_FAIL
  return x(i, 1);
#else
  return x(int(i), 1);
#endif
}
