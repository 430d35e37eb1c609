// SPDX-License-Identifier: Apache-2.0
// expect: mha: memory_into(m) of a temporary or a constant m
#include <mha/mha.hpp>

auto result([[maybe_unused]] mha::Tensor<float, 2>& m) {
#ifdef MHA_FAIL
  return mha::memory_into(mha::Tensor<float, 2>(2, 3));
#else
  return mha::memory_into(m);
#endif
}
