// SPDX-License-Identifier: Apache-2.0
// expect only: mha: mask(f) needs a functor
#include <Eigen/Core>

#include <mha/mha.hpp>

auto run(const Eigen::MatrixXf& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, mha::mask([](int, int, int q, int k) { return q - k; }));
#else
  return mha::attention(x, x, x, mha::mask([](int, int, int q, int k) { return q >= k; }));
#endif
}
