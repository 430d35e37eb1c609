// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>
#include <mha/layer/products.hpp>

#include "compare.hpp"
#include "own_policies.hpp"
#include "random.hpp"

namespace {

using mha::Index;
using mha::Tensor;
using mha::TensorView;
using mha::detail::LayerMatrix;
using mha::detail::LayerProducts;

/// A backend that counts what it is asked for, its products those of the reference.
struct Counting : mha::Reference {
  static inline int packs = 0, packed_products = 0;
  struct Packed {
    std::vector<Tensor<double, 2>> matrices;
    std::vector<Tensor<double, 1>> biases;
    std::size_t bytes() const { return 8 * matrices.size(); }
  };
  template <class T> Packed pack(std::span<const mha::DenseWeights<T>> weights) const {
    ++packs;
    Packed packed;
    for (const auto& w : weights) {
      auto& matrix = packed.matrices.emplace_back(w.matrix.extent[0], w.matrix.extent[1]);
      auto& bias = packed.biases.emplace_back(w.matrix.extent[1]);
      for (Index j = 0; j < w.matrix.extent[1]; ++j) {
        bias(j) = w.bias(j);
        for (Index k = 0; k < w.matrix.extent[0]; ++k) matrix(k, j) = w.matrix(k, j);
      }
    }
    return packed;
  }
  using mha::Reference::gemm;
  void gemm(const mha::PackedGemmCall<double, Packed>& call, Workspace& workspace) const {
    ++packed_products;
    for (std::size_t i = 0; i < call.c.size(); ++i) {
      const std::size_t part = static_cast<std::size_t>(call.first) + i;
      gemm(mha::GemmCall<double>{call.a, call.weights.matrices[part].view(), call.weights.biases[part].view(),
                                 call.c[i]},
           workspace);
    }
  }
};
static_assert(mha::PacksWeights<Counting, double> && mha::PacksWeights<mha::Cpu, float>);
static_assert(!mha::PacksWeights<mha::Reference, double> && !mha::PacksWeights<mha::Cpu, long double>);

const mha::Config config = mha::detail::completed<mha::GroupedQuery<2>>(
    {.d_model = 10, .num_heads = 4, .head_dim = 3, .value_dim = 5, .bias = true});

/// Parameters as a projection policy lays them out, with random numbers.
template <class P> struct Made {
  mha::Parameters<double, support::OwnPolicies<P>> parameters{config};
  Made() {
    support::Random random("products");
    auto p = parameters.writable();
    for (double& x : p.flat()) x = random.normal();
  }
};

template <class B, class P> std::vector<Tensor<double, 2>> all_products(bool pack) {
  const Made<P> made;
  const auto w = made.parameters.views();
  const B backend;
  const LayerProducts<double, B> products =
      pack ? LayerProducts<double, B>(backend, w, true) : LayerProducts<double, B>();
  support::Random random("product rows");
  Tensor<double, 2> x(7, 10), heads(7, 20);
  random.fill(x);
  random.fill(heads);
  std::vector<Tensor<double, 2>> results;
  for (const Index columns : {12, 6, 10, 10}) results.emplace_back(7, columns);
  std::vector<TensorView<double, 2>> to;
  for (auto& r : results) to.push_back(r.view());
  typename B::Workspace workspace;
  const std::span<const TensorView<double, 2>> all(to);
  products.run(backend, std::as_const(x).view(), w, LayerMatrix::query, all.first(3), workspace);
  products.run(backend, std::as_const(heads).view(), w, LayerMatrix::output, all.subspan(3), workspace);
  return results;
}

template <class P> class ProductsOf : public testing::Test {};
using Policies = testing::Types<mha::FusedProjection, mha::PerHeadProjection>;
TYPED_TEST_SUITE(ProductsOf, Policies, );

TYPED_TEST(ProductsOf, PackedAreWhatTheyAreUnpacked) {
  const auto expected = all_products<mha::Reference, TypeParam>(false);
  const auto packed = all_products<Counting, TypeParam>(true), cpu = all_products<mha::Cpu, TypeParam>(true),
             cpu_unpacked = all_products<mha::Cpu, TypeParam>(false);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(support::differing(cpu[i], cpu_unpacked[i]), 0u) << i;
    for (std::size_t e = 0; e < expected[i].size(); ++e) {
      EXPECT_DOUBLE_EQ(packed[i].data()[e], expected[i].data()[e]) << i;
      EXPECT_NEAR(cpu[i].data()[e], expected[i].data()[e], 1e-13) << i;
    }
  }
}

TEST(Products, QueryKeyAndValueAreOneProductOfWeightsPackedOnce) {
  Counting::packs = Counting::packed_products = 0;
  static_cast<void>(all_products<Counting, mha::FusedProjection>(true));
  EXPECT_EQ(Counting::packs, 1);
  EXPECT_EQ(Counting::packed_products, 2);
}

TEST(Products, SayHowManyBytesArePacked) {
  const Made<mha::FusedProjection> made;
  const auto w = made.parameters.views();
  EXPECT_EQ((LayerProducts<double, Counting>(Counting{}, w, true).bytes()), 32u);
  EXPECT_EQ((LayerProducts<double, Counting>(Counting{}, w, false).bytes()), 24u);
  EXPECT_EQ((LayerProducts<double, Counting>().bytes()), 0u);
  EXPECT_EQ((LayerProducts<double, mha::Reference>(mha::Reference{}, w, true).bytes()), 0u);
}

}  // namespace
