// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/policy/concat.hpp>

namespace {

TEST(Concat, IsRecognisedByItsRole) {
  static_assert(mha::Concat<mha::ConcatHeads> && mha::Concat<const mha::GatedHeads&> && !mha::Concat<int>);
  static_assert(!mha::ConcatHeads::has_gates && mha::GatedHeads::has_gates);
}

TEST(ConcatHeads, IsTheLayoutOfTheHeadsReadAsRows) {
  constexpr int L = 3, H = 2, D = 4;
  float memory[L * H * D] = {};
  const auto heads = mha::view_blhd(memory, 1, L, H, D);
  const auto rows = mha::view(memory, L, H * D);
  for (int l = 0; l < L; ++l)
    for (int h = 0; h < H; ++h)
      for (int d = 0; d < D; ++d) EXPECT_EQ(&heads(0, l, h, d), &rows(l, h * D + d));
}

TEST(GatedHeads, MultipliesEachHeadByItsGate) {
  mha::Tensor<double, 4> heads(2, 3, 3, 4);
  double n = 0;
  for (double& x : heads) x = ++n;
  const auto before = heads;
  const double gates[3] = {0, 1, -2.5};
  mha::detail::run_serially(mha::GatedHeads::items(heads.view(), mha::view(gates, 3)));
  for (int b = 0; b < 2; ++b)
    for (int l = 0; l < 3; ++l)
      for (int h = 0; h < 3; ++h)
        for (int d = 0; d < 4; ++d) EXPECT_EQ(heads(b, l, h, d), before(b, l, h, d) * gates[h]);
}

TEST(GatedHeads, MultipliesInTheAccumulatorAndReadsAnyStrides) {
  const float x = 1.00390625f;  // 1 + 2^-8: a bfloat16 would round it to 1
  std::vector<mha::bfloat16> memory(4, mha::bfloat16(x * 2));
  const mha::bfloat16 gate[1] = {mha::bfloat16(0.5f)};
  mha::detail::run_serially(mha::GatedHeads::items(mha::view_bhld(memory.data(), 1, 1, 2, 2), mha::view(gate, 1)));
  for (const mha::bfloat16 y : memory) EXPECT_EQ(float(y), float(mha::bfloat16(x)));
  std::vector<float> heads{1, 2, 3, 4, 5, 6, 7, 8};
  const float gates[2] = {10, 100};
  mha::detail::run_serially(mha::GatedHeads::items(mha::view_bhld(heads.data(), 1, 2, 2, 2), mha::view(gates, 2)));
  EXPECT_EQ(heads, (std::vector<float>{10, 20, 30, 40, 500, 600, 700, 800}));
}

TEST(GatedHeads, BackwardOfARowAddsNothingWhereItsGradientIsZero) {
  const double x[3] = {2, std::numeric_limits<double>::quiet_NaN(), -4};
  double d[3] = {1, 0, 0.5};
  const double sum = mha::GatedHeads::row_backward<double, double>(x, 3, 3., d);
  EXPECT_EQ(sum, 2 - 2);
  EXPECT_EQ(d[0], 3);
  EXPECT_EQ(d[1], 0);
  EXPECT_EQ(d[2], 1.5);
}

}  // namespace
