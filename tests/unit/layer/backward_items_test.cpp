// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <gtest/gtest.h>

#include <mha/layer/backward_items.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "random.hpp"

namespace {

using mha::Index;

constexpr Index batch = 2, length = 3, heads = 2, dim = 5;

mha::Tensor<float, 4> rows(const char* stream) {
  mha::Tensor<float, 4> x(batch, length, heads, dim);
  support::Random(stream).fill(x);
  return x;
}

TEST(GateBackwardItems, AreTheRowsOfTheConcatenation) {
  const auto x = rows("gate items x");
  auto d = rows("gate items d"), expected = d;
  const mha::Tensor<float, 1> gate = [] {
    mha::Tensor<float, 1> g(heads);
    g(0) = 0.5f, g(1) = -2;
    return g;
  }();
  mha::Tensor<double, 2> sums(batch * length, heads);
  support::poison_all(sums);
  mha::detail::run_serially(mha::detail::GateBackwardItems<float, mha::GatedHeads>{batch * length, heads, 1, x.view(),
                                                                                   d.view(), gate.view(), sums.view()});
  for (Index b = 0; b < batch; ++b)
    for (Index l = 0; l < length; ++l)
      for (Index h = 0; h < heads; ++h)
        EXPECT_EQ(sums(b * length + l, h),
                  (mha::GatedHeads::row_backward<float, double>(&x(b, l, h, 0), dim, gate(h), &expected(b, l, h, 0))));
  EXPECT_EQ(support::differing(d, expected), 0u);
}

TEST(HeadNormBackwardItems, AreTheRowsOfTheNorm) {
  const auto x = rows("norm items x");
  auto d = rows("norm items d"), expected = d;
  mha::Tensor<float, 1> weight(dim);
  support::Random("norm items w").fill(weight);
  const mha::QkNorm norm{.eps = 0.1};
  mha::Tensor<float, 2> sums(batch * length * heads, dim), own(1, dim);
  support::poison_all(sums);
  mha::detail::run_serially(mha::detail::HeadNormBackwardItems<float, mha::QkNorm>{
      batch * length, heads, 1, norm, x.view(), std::as_const(weight).view(), d.view(), sums.data()});
  for (Index i = 0; i < batch * length * heads; ++i) {
    for (float& s : own) s = 0;
    norm.row_backward<float>(x.data() + std::ptrdiff_t{i} * dim, 1, std::as_const(weight).view(),
                             expected.data() + std::ptrdiff_t{i} * dim, own.data());
    for (Index e = 0; e < dim; ++e) EXPECT_EQ(sums(i, e), own(0, e)) << i;
  }
  EXPECT_EQ(support::differing(d, expected), 0u);
  const mha::detail::FlatTerm<float> term{sums.data(), dim};
  EXPECT_EQ(term(7, 3), sums(7, 3));
}

}  // namespace
