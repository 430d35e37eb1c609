// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <limits>

#include <gtest/gtest.h>

#include <mha/block/dense_backward.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "far_backend.hpp"
#include "random.hpp"

namespace {

using mha::Index;

/// Two products of the same rows, the second of which has heads with memory of their own.
template <class T, class B> void expect_loops(double bound) {
  using A = mha::Accumulator<T>;
  constexpr Index m = 131, k = 9, first = 10, heads = 3, dim = 5, n = first + heads * dim;
  support::Random random("dense backward");
  mha::Tensor<T, 2> rows(m, k), w(k, first), to(m, k);
  mha::Tensor<T, 3> apart(heads, k, dim);
  mha::Tensor<A, 2> d(m, n), dw(k, first), db(2, dim), db_apart(heads, dim);
  mha::Tensor<A, 3> dapart(heads, k, dim);
  random.fill(rows);
  random.fill(w);
  random.fill(apart);
  random.fill(d);
  random.fill(dw);
  random.fill(dapart);
  random.fill(db);
  for (Index j = 0; j < n; ++j) d(7, j) = 0;
  const auto dw_before = dw;
  const auto dapart_before = dapart;
  const auto db_before = db;
  const auto heads_of = [](auto* p, std::ptrdiff_t head, std::ptrdiff_t row, Index count, Index size) {
    return mha::TensorView<std::remove_pointer_t<decltype(p)>, 3>{p, {count, k, size}, {head, row, 1}};
  };
  const mha::detail::DensePart<T> parts[] = {{{heads_of(std::as_const(w).data(), dim, first, 2, dim), {}},
                                              {heads_of(dw.data(), dim, first, 2, dim), db.view()}},
                                             {{std::as_const(apart).view(), {}}, {dapart.view(), db_apart.view()}}};
  mha::Workspace workspace;
  const B backend;
  const mha::detail::DenseBackward<T, B> dense(backend, workspace);
  support::poison_all(to);
  dense.rows(d.view(), parts, to.view());
  for (Index e = 0; e < k; ++e) rows(7, e) = static_cast<T>(std::numeric_limits<A>::quiet_NaN());
  dense.add_weights(rows.view(), d.view(), parts);

  const auto weight = [&](Index e, Index j) {
    return support::to_double(j < first ? w(e, j) : apart((j - first) / dim, e, (j - first) % dim));
  };
  for (Index e = 0; e < k; ++e)
    for (Index j = 0; j < n; ++j) {
      const Index h = (j - first) / dim, c = (j - first) % dim;
      double sum = j < first ? double(dw_before(e, j)) : double(dapart_before(h, e, c));
      for (Index i = 0; i < m; ++i)
        if (i != 7) sum += support::to_double(rows(i, e)) * double(d(i, j));
      EXPECT_NEAR(j < first ? dw(e, j) : dapart(h, e, c), sum, 50 * bound);
    }
  for (Index j = 0; j < n; ++j) {
    double sum = j < first ? double(db_before(j / dim, j % dim)) : 0;
    for (Index i = 0; i < m; ++i) sum += double(d(i, j));
    EXPECT_NEAR(j < first ? db(j / dim, j % dim) : db_apart((j - first) / dim, (j - first) % dim), sum, 50 * bound);
  }
  for (Index i = 0; i < m; ++i)
    for (Index e = 0; e < k; ++e) {
      double sum = 0;
      for (Index j = 0; j < n; ++j) sum += double(d(i, j)) * weight(e, j);
      EXPECT_NEAR(support::to_double(to(i, e)), sum, 10 * bound + support::storage_error<T>(sum));
    }
}

TEST(DenseBackward, EqualsLoops) {
  expect_loops<double, mha::Reference>(1e-14);
  expect_loops<double, mha::Cpu>(1e-14);
  expect_loops<float, mha::Cpu>(1e-6);
  expect_loops<mha::half, mha::Cpu>(1e-6);
}

TEST(DenseBackward, ARowWithoutAGradientChangesNoBit) {
  constexpr Index m = 300, k = 20, n = 7;  // narrower than the rows, so that it is transposed, but for such a row
  support::Random random("a row without a gradient");
  mha::Tensor<float, 2> rows(m + 1, k), d(m + 1, n), w(k, n), dw(k, n), dw_of_all(k, n);
  random.fill(rows);
  random.fill(d);
  for (Index j = 0; j < n; ++j) d(m, j) = 0;
  for (Index e = 0; e < k; ++e) rows(m, e) = std::numeric_limits<float>::quiet_NaN();
  mha::Workspace workspace;
  const mha::Cpu backend;
  const mha::detail::DenseBackward<float, mha::Cpu> dense(backend, workspace);
  const auto add = [&](Index count, mha::Tensor<float, 2>& to) {
    for (float& x : to) x = 0;
    const mha::detail::DensePart<float> part[] = {
        mha::detail::output_part<float>(std::as_const(w).view(), to.view(), mha::TensorView<float, 1>{})};
    dense.add_weights({rows.data(), {count, k}, {k, 1}}, {d.data(), {count, n}, {n, 1}}, part);
  };
  add(m, dw);
  add(m + 1, dw_of_all);
  EXPECT_EQ(support::differing(dw, dw_of_all), 0u);
  double sum = 0;
  for (Index i = 0; i < m; ++i) sum += double(rows(i, 3)) * double(d(i, 5));
  EXPECT_NEAR(dw(3, 5), sum, 1e-4);
}

/// Far memory, with products that add.
struct FarSums : support::Far {
  using Far::gemm;
  template <class T> void gemm(const mha::GemmSumCall<T>& call, Workspace&) const {
    for (const void* p : {static_cast<const void*>(call.a.data), static_cast<const void*>(call.b.data),
                          static_cast<const void*>(call.c.data)})
      support::want_far("a matrix of a sum", p);
    const support::Kernel open;
    for (Index i = 0; i < call.c.extent[0]; ++i)
      for (Index j = 0; j < call.c.extent[1]; ++j)
        for (Index e = 0; e < call.a.extent[1]; ++e)
          call.c(i, j) += mha::Accumulator<T>(call.a(i, e)) * mha::Accumulator<T>(call.b(e, j));
  }
};

/// The same where the host does not reach: gradients of results are in T, weights lie side by side.
template <class T> void expect_far_loops(double bound) {
  using A = mha::Accumulator<T>;
  constexpr Index m = 131, k = 9, first = 4, heads = 3, dim = 5, n = first + heads * dim;
  support::Random random("dense backward far");
  mha::Tensor<T, 2> rows(m, k), w(k, n), to(m, k), d(m, n);
  mha::Tensor<A, 2> dw(k, first), db(1, first);
  mha::Tensor<A, 3> dapart(heads, k, dim);
  random.fill(rows), random.fill(w), random.fill(d), random.fill(dw), random.fill(db), random.fill(dapart);
  support::poison_all(to);
  for (Index j = 0; j < n; ++j) d(7, j) = T(0);
  for (Index e = 0; e < k; ++e) rows(7, e) = static_cast<T>(std::numeric_limits<A>::quiet_NaN());
  const support::FarTensor<T, 2> far_rows(rows), far_w(w), far_to(to), far_d(d);
  const support::FarTensor<A, 2> far_dw(dw), far_db(db);
  const support::FarTensor<A, 3> far_apart(dapart);
  const auto matrix = [&](Index column, Index count) {
    return mha::TensorView<const T, 3>{far_w.view().data + column, {1, k, count}, {0, n, 1}};
  };
  const mha::detail::DensePart<T> parts[] = {
      {{matrix(0, first), {}},
       {mha::TensorView<A, 3>{far_dw.view().data, {1, k, first}, {0, first, 1}}, far_db.view()}},
      {{matrix(first, heads * dim), {}}, {far_apart.view(), {}}}};
  FarSums::Workspace workspace;
  const FarSums backend;
  const mha::detail::DenseBackward<T, FarSums> dense(backend, workspace);
  dense.rows(far_d.view(), parts, far_to.view());
  dense.add_weights(far_rows.view(), far_d.view(), parts);
  const auto back = far_to.near();
  const auto of_w = far_dw.near(), of_b = far_db.near();
  const auto of_heads = far_apart.near();
  for (Index e = 0; e < k; ++e)
    for (Index j = 0; j < n; ++j) {
      const Index h = (j - first) / dim, c = (j - first) % dim;
      double sum = j < first ? double(dw(e, j)) : double(dapart(h, e, c));
      for (Index i = 0; i < m; ++i)
        if (i != 7) sum += support::to_double(rows(i, e)) * support::to_double(d(i, j));
      EXPECT_NEAR(j < first ? of_w(e, j) : of_heads(h, e, c), sum, 50 * bound);
    }
  for (Index j = 0; j < first; ++j) {
    double sum = double(db(0, j));
    for (Index i = 0; i < m; ++i) sum += support::to_double(d(i, j));
    EXPECT_NEAR(of_b(0, j), sum, 50 * bound);
  }
  for (Index i = 0; i < m; ++i)
    for (Index e = 0; e < k; ++e) {
      double sum = 0;
      for (Index j = 0; j < n; ++j) sum += support::to_double(d(i, j)) * support::to_double(w(e, j));
      EXPECT_NEAR(support::to_double(back(i, e)), sum, 10 * bound + support::storage_error<T>(sum));
    }
}

TEST(DenseBackward, EqualsLoopsWhereTheHostDoesNotReach) {
  expect_far_loops<double>(1e-13);
  expect_far_loops<float>(1e-5);
  expect_far_loops<mha::half>(1e-5);
}

}  // namespace
