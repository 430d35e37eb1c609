// SPDX-License-Identifier: Apache-2.0
// One model of each kind of norm and score on the other backends of the host.
#include <gtest/gtest.h>

#include <mha/eigen.hpp>
#include <mha/systolic.hpp>

#include "checks.hpp"

namespace {

using namespace models;

TEST(Models, EqualHuggingFacesOnEigen) {
  using On = mha::EigenCpu;
  EXPECT_LT(
      (models::testing::decoder<Llama<mha::QkNorm, On>, mha::Llama<float>>("qwen3", models::testing::data("qwen3"))),
      tolerance);
  EXPECT_LT((models::testing::t5<T5<mha::Relu, On>>("t5", models::testing::data("t5"))), tolerance);
}

// Products of operands that are rounded to 8 bits.
TEST(Models, AreCloseToHuggingFacesOnMatrixUnits) {
  using On = mha::Systolic<>;
  EXPECT_LT(
      (models::testing::decoder<Llama<mha::QkNorm, On>, mha::Llama<float>>("qwen3", models::testing::data("qwen3"))),
      3e-2f);
  EXPECT_LT((models::testing::t5<T5<mha::Relu, On>>("t5", models::testing::data("t5"))), 3e-2f);
}

}  // namespace
