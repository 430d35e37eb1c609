// SPDX-License-Identifier: Apache-2.0
// Products as they are laid out for cuBLASLt, by the imitation of tests/gpu_memory; tests/cuda has those of cuBLASLt
// itself.
#include <span>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/backend/cuda/gemm.hpp>
#include <mha/backend/cuda/products.hpp>

#include "../../../gpu_memory/far_cuda.hpp"
#include "gemm_checks.hpp"

namespace {

using support::FarCuda;

TEST(FarProducts, OfFloat) { gemm_checks::expect_products<FarCuda, float>("far products float"); }
TEST(FarProducts, OfDouble) { gemm_checks::expect_products<FarCuda, double>("far products double"); }
TEST(FarProducts, OfSixteenBits) {
  gemm_checks::expect_products<FarCuda, mha::bfloat16>("far products bfloat16");
  gemm_checks::expect_products<FarCuda, mha::half>("far products half");
}

TEST(FarProducts, AddToWhatIsThere) {
  gemm_checks::expect_sums<FarCuda, float>("far sums float");
  gemm_checks::expect_sums<FarCuda, double>("far sums double");
  gemm_checks::expect_sums<FarCuda, mha::bfloat16>("far sums bfloat16");
  gemm_checks::expect_sums<FarCuda, mha::half>("far sums half");
}

TEST(FarProducts, AddAResidualOnTheWay) {
  gemm_checks::expect_residuals<FarCuda, float>("far residuals float");
  gemm_checks::expect_residuals<FarCuda, double>("far residuals double");
  gemm_checks::expect_residuals<FarCuda, mha::bfloat16>("far residuals bfloat16");
}

TEST(FarProducts, LeaveAResidualToTheCallerWhereThereIsNoAlgorithm) {
  using mha::bfloat16, mha::TensorView;
  mha::Tensor<bfloat16, 2> a(3, 4), w(4, 8), r(3, 12);
  const auto far_a = mha::to_device(a), far_r = mha::to_device(r);
  auto c = mha::to_device(mha::Tensor<bfloat16, 2>(3, 8));
  const mha::DenseWeights<bfloat16> weights{w.view(), {}};
  const auto packed = FarCuda{}.pack(std::span(&weights, 1));
  const TensorView<bfloat16, 2> to = c.view();
  FarCuda::Workspace workspace;
  const auto fused = [&](int first) {
    using Packed = std::remove_cvref_t<decltype(packed)>;
    const TensorView<const bfloat16, 2> residual{far_r.data() + first, {3, 8}, {12, 1}};
    return FarCuda{}.gemm(mha::PackedGemmCall<bfloat16, Packed>{far_a.view(), packed, 0, {&to, 1}},
                          mha::Epilogue<bfloat16, mha::Identity>{{}, residual}, workspace);
  };
  EXPECT_TRUE(fused(2));
  EXPECT_FALSE(fused(1)) << "the imitation has none for so little alignment";
}

// A server sees every length of a prompt: what is kept must not grow with each.
TEST(FarProducts, KeepAsManyChoicesAsTheyMay) {
  using mha::cuda::operand, mha::cuda::Products;
  using View = mha::TensorView<const float, 2>;
  alignas(256) const float x[8] = {};
  const auto product = [&](mha::Index rows) {
    return mha::cuda::Product{CUDA_R_32F, *operand(View{x, {rows, 4}, {4, 1}}), *operand(View{x, {4, 4}, {4, 1}}),
                              *operand(View{x, {rows, 4}, {4, 1}})};
  };
  Products products;
  constexpr auto most = static_cast<mha::Index>(Products::most_choices);
  for (mha::Index rows = 1; rows <= 3 * most; ++rows) {
    EXPECT_TRUE(products.choose(product(rows)).found);
    EXPECT_TRUE(products.choose(product(1)).found);
    ASSERT_LE(products.choices(), Products::most_choices);
    ASSERT_TRUE(products.knows(product(rows)));
  }
  EXPECT_EQ(products.choices(), Products::most_choices);
  EXPECT_TRUE(products.knows(product(1))) << "used again and again";
  EXPECT_TRUE(products.knows(product(2 * most + 2)));
  EXPECT_FALSE(products.knows(product(2 * most)));
}

}  // namespace
