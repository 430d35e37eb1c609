// SPDX-License-Identifier: Apache-2.0
// expect only: mha: a functor is neither a mask, 'bool operator()(Index b, Index h, Index q, Index k)
#include <Eigen/Core>

#include <mha/mha.hpp>

struct OfTwo {
  bool operator()(int q, int k) const { return k <= q; }
};
struct OfFour {
  bool operator()(int, int, int q, int k) const { return k <= q; }
};

auto run(const Eigen::MatrixXf& x) {
#ifdef MHA_FAIL
  return mha::attention(x, x, x, OfTwo{});
#else
  return mha::attention(x, x, x, OfFour{});
#endif
}
