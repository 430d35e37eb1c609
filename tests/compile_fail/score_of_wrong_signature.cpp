// SPDX-License-Identifier: Apache-2.0
// expect only: mha: score(f) needs a functor
#include <Eigen/Core>

#include <mha/mha.hpp>

auto run(const Eigen::MatrixXf& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, mha::score([](auto s, int q, int k) { return s - float(q - k); }));
#else
  return mha::attention(x, x, x, mha::score([](auto s, int, int, int q, int k) { return s - float(q - k); }));
#endif
}
