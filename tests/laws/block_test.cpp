// SPDX-License-Identifier: Apache-2.0
// What a Linear makes of a row is that row's alone: other rows, their number and the threads change none of its bits.
#include <cmath>
#include <type_traits>
#include <utility>

#include <mha/block.hpp>

#include "law.hpp"

namespace {

using laws::Index;

template <class T> class Block : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Block, Scalars);

template <class T, class F> void expect_rows_alone(support::Random& random, Index rows, Index width) {
  const Index hidden = 1 + random.below(150);
  mha::FeedForward<T, mha::Cpu, F> ff({.d_model = width, .d_hidden = hidden}, mha::Cpu(mha::ThreadPool(3)));
  ff.initialize(mha::XavierUniform{.seed = random.engine()()});
  mha::Tensor<T, 2> x(rows, width);
  random.fill(x);
  const auto all = ff(x, mha::residual(x));
  EXPECT_EQ(support::differing(all, ff(x, mha::residual(x), mha::Cpu(mha::ThreadPool(1)))), 0u);
  const Index bad = random.below(rows);
  for (Index e = 0; e < width; ++e) x(bad, e) = support::poison<T>();
  const auto beside_nan = ff(x, mha::residual(x));
  for (Index i = 0; i < rows; ++i) {
    if (i == bad) {
      for (Index e = 0; e < width; ++e) EXPECT_TRUE(std::isnan(support::to_double(beside_nan(i, e))));
      continue;
    }
    const auto row = mha::view(&std::as_const(x)(i, 0), 1, width);
    const auto alone = ff(row, mha::residual(row));
    for (Index e = 0; e < width; ++e) {
      EXPECT_EQ(support::bits(all(i, e)), support::bits(beside_nan(i, e)));
      EXPECT_EQ(support::bits(all(i, e)), support::bits(alone(0, e)));
    }
  }
}

TYPED_TEST(Block, BitsOfARowDependOnItAlone) {
  support::Random random("rows of a block");
  laws::at_every_isa([&] {
    for (int round = 0; round < 3; ++round) {
      expect_rows_alone<TypeParam, mha::Gelu>(random, 2 + random.below(60), 1 + random.below(50));
      expect_rows_alone<TypeParam, mha::SwiGlu>(random, 2 + random.below(60), 1 + random.below(50));
    }
    if constexpr (std::is_same_v<TypeParam, float>)
      for (const Index width : {200, 1025}) expect_rows_alone<float, mha::SwiGlu>(random, 2 + random.below(9), width);
  });
}

}  // namespace
