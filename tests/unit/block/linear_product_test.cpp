// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <mha/block/linear_product.hpp>
#include <mha/mha.hpp>

namespace {

using mha::Tensor;

struct Negated {
  template <class S> S operator()(const S& x) const { return -x; }
};

/// −(x · w + b) + r of two sequences, in place of r, with the sums kept.
template <class B> void expect_product() {
  Tensor<float, 3> x(2, 3, 2), y(2, 3, 4);
  Tensor<float, 2> w(2, 4), sums(6, 4);
  Tensor<float, 1> b(4);
  float next = 0;
  for (float& e : x) e = ++next;
  for (float& e : w) e = ++next;
  for (float& e : b) e = ++next;
  const mha::LinearViews<const float> weights{std::as_const(w).view(), std::as_const(b).view(), {}, {}, {}};
  const B backend;
  const mha::detail::LinearProduct<float, B, Negated> product(backend, weights);
  typename B::Workspace workspace;
  const auto expect = [&](const auto&... kept) {
    for (float& e : y) e = 100;
    product.run(backend, std::as_const(x).view(), y.view(), std::as_const(y).view(), {}, weights, workspace, kept...);
    for (int i = 0; i < 6; ++i)
      for (int j = 0; j < 4; ++j) {
        const float sum = x.data()[2 * i] * w(0, j) + x.data()[2 * i + 1] * w(1, j) + b(j);
        ASSERT_EQ(y(i / 3, i % 3, j), 100 - sum) << B::name << ' ' << i << ' ' << j;
        if constexpr (sizeof...(kept) > 0) {
          ASSERT_EQ(sums(i, j), sum) << B::name << ' ' << i << ' ' << j;
        }
      }
  };
  expect();
  const mha::TensorView<float, 2> kept[] = {sums.view()};
  expect(std::span<const mha::TensorView<float, 2>>(kept));
  EXPECT_EQ(product.packed(), (mha::PacksWeights<B, float>));
}

TEST(LinearProduct, ActivatesAndAddsFusedOrNot) {
  expect_product<mha::Reference>();
  expect_product<mha::Cpu>();
}

TEST(LinearProduct, SaysWhetherItFuses) {
  const auto text = [](const auto& backend) {
    return mha::detail::linear_in_words<float, Negated>(backend, {}, {.inputs = 2, .outputs = 4}, 6, "");
  };
  EXPECT_NE(text(mha::Cpu{}).find("fused epilogue"), std::string::npos);
  EXPECT_NE(text(mha::Reference{}).find("epilogue in a pass of its own"), std::string::npos);
}

}  // namespace
