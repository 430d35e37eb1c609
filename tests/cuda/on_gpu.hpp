// SPDX-License-Identifier: Apache-2.0
// A call on the GPU beside the same numbers in double on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/cuda.cuh>

#include "compare.hpp"
#include "gpu.hpp"
#include "random.hpp"

namespace on_gpu {

using mha::Index;
using mha::Tensor;

struct Sizes {
  Index batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, dim = 64, value_dim = 64;
  std::string text() const {
    const auto n = [](Index x) { return std::to_string(x); };
    return "B " + n(batch) + " Lq " + n(queries) + " Lk " + n(keys) + " H " + n(heads) + "/" + n(kv_heads) + " D " +
           n(dim) + " Dv " + n(value_dim);
  }
};

template <class T, int Rank> Tensor<double, Rank> doubled(const Tensor<T, Rank>& x, Tensor<double, Rank> to) {
  std::transform(x.begin(), x.end(), to.begin(), [](T n) { return support::to_double(n); });
  return to;
}

/// Normal numbers of the host's, and copies of them in double and on the device.
template <class T> struct Inputs {
  Sizes sizes;
  Tensor<T, 4> q, k, v;

  Inputs(const Sizes& s, support::Random& random)
      : sizes(s),
        q(s.batch, s.queries, s.heads, s.dim),
        k(s.batch, s.keys, s.kv_heads, s.dim),
        v(s.batch, s.keys, s.kv_heads, s.value_dim) {
    random.fill(q);
    random.fill(k);
    random.fill(v);
  }
  static Tensor<double, 4> wide(const Tensor<T, 4>& x) {
    return doubled(x, Tensor<double, 4>(x.extent(0), x.extent(1), x.extent(2), x.extent(3)));
  }
};

/// What an output of normal values may be off by, relative to their size: the rounding of the weights and the result,
/// or the sums of the accumulator.
template <class T> double tolerance() {
  return sizeof(T) == 8 ? 1e-11 : sizeof(T) == 4 ? 1e-4 : 8 * support::unit_roundoff<T>();
}

template <class T, int Rank>
void expect_near(const Tensor<T, Rank>& found, const Tensor<double, Rank>& expected, double bound,
                 const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double a = support::to_double(found.data()[i]), e = expected.data()[i];
    if (a == e || (a != a && e != e)) continue;
    worst = std::fmax(worst, a != a || e != e ? INFINITY : std::fabs(a - e));
  }
  EXPECT_LE(worst, bound) << what;
}

/// Output and log-sum-exp of a call on the GPU, both poisoned before, against the reference in double. `there` are the
/// policies as the GPU gets them, `here` as the host does.
template <class T, class There, class Here>
void expect_right(const Inputs<T>& in, const There& there, const Here& here) {
  using A = mha::Accumulator<T>;
  const Sizes& s = in.sizes;
  mha::Cuda::Workspace workspace;
  Tensor<T, 4> out(s.batch, s.queries, s.heads, s.value_dim);
  Tensor<A, 3> lse(s.batch, s.heads, s.queries);
  support::poison_all(out);
  support::poison_all(lse);
  const auto q = mha::to_device(in.q), k = mha::to_device(in.k), v = mha::to_device(in.v);
  auto to = mha::to_device(out);
  auto sums = mha::to_device(lse);
  there([&](const auto&... extra) {
    mha::attention_into<mha::Cuda>(to, q, k, v, extra..., mha::LogSumExp(sums), workspace);
  });
  Tensor<double, 4> expected(s.batch, s.queries, s.heads, s.value_dim);
  Tensor<double, 3> expected_lse(s.batch, s.heads, s.queries);
  here([&](const auto&... extra) {
    mha::attention_into<mha::Reference>(expected, Inputs<T>::wide(in.q), Inputs<T>::wide(in.k), Inputs<T>::wide(in.v),
                                        extra..., mha::LogSumExp(expected_lse));
  });
  expect_near(mha::to_host(to), expected, 4 * tolerance<T>(), s.text());
  expect_near(mha::to_host(sums), expected_lse, sizeof(T) == 8 ? 1e-10 : 2e-2, s.text() + ", log-sum-exp");
}

/// The same policies on both sides.
template <class T, class... Extra> void expect_right_with(const Inputs<T>& in, const Extra&... extra) {
  const auto pass = [&](const auto& call) { call(extra...); };
  expect_right(in, pass, pass);
}

}  // namespace on_gpu
