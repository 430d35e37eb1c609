// SPDX-License-Identifier: Apache-2.0
// What a dense block makes of a row is that row's alone: other rows, their number and the threads change none of its
// bits. On EigenCpu the threads change none.
#include <cmath>
#include <type_traits>

#include <mha/block.hpp>
#include <mha/eigen.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "law.hpp"

namespace {

using laws::Index;
using mha::Tensor;
using mha::TensorView;

template <class T> class Block : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Block, Scalars);

template <class B> B backend_of(Index threads) {
  if constexpr (std::is_constructible_v<B, mha::ThreadPool>)
    return B(mha::ThreadPool(threads));
  else
    return B{};
}

/// block(x, backend) makes rows of rows (n, width).
template <class T, class B, class F>
void expect_rows_alone(support::Random& random, Index rows, Index width, const F& block) {
  const B three = backend_of<B>(3), one = backend_of<B>(1);
  Tensor<T, 2> x(rows, width);
  random.fill(x);
  const auto all = block(x.view(), three);
  EXPECT_EQ(support::differing(all, block(x.view(), one)), 0u);
  if constexpr (std::is_same_v<B, mha::EigenCpu>) return;
  const Index bad = random.below(rows);
  for (Index e = 0; e < width; ++e) x(bad, e) = support::poison<T>();
  const auto beside_nan = block(x.view(), three);
  for (Index i = 0; i < rows; ++i) {
    if (i == bad) {
      for (Index e = 0; e < all.extent(1); ++e) EXPECT_TRUE(std::isnan(support::to_double(beside_nan(i, e))));
      continue;
    }
    const auto alone = block(mha::view(&x(i, 0), 1, width), three);
    for (Index e = 0; e < all.extent(1); ++e) {
      EXPECT_EQ(support::bits(all(i, e)), support::bits(beside_nan(i, e)));
      EXPECT_EQ(support::bits(all(i, e)), support::bits(alone(0, e)));
    }
  }
}

template <class T, class B, class F> void expect_feed_forward(support::Random& random, Index rows, Index width) {
  mha::FeedForward<T, B, F> block({.d_model = width, .d_hidden = 1 + random.below(150)});
  block.initialize(mha::XavierUniform{.seed = random.engine()()});
  expect_rows_alone<T, B>(random, rows, width, [&](const TensorView<T, 2>& x, const B& backend) {
    return block(x, mha::residual(x), backend);
  });
}
template <class T, class B> void expect_linear(support::Random& random, Index rows, Index width) {
  mha::Linear<T, B, mha::Silu> block({.inputs = width, .outputs = width});
  block.initialize(mha::XavierUniform{.seed = random.engine()()});
  expect_rows_alone<T, B>(random, rows, width, [&](const TensorView<T, 2>& x, const B& backend) {
    return block(x, mha::residual(x), backend);
  });
}
/// Attention to a memory, plus the rows themselves: the sum of what two calls give, but for how often it is rounded.
template <class T, class B> void expect_attention(support::Random& random, Index rows) {
  constexpr Index width = 24;
  mha::MultiHeadAttention<T, B> layer({.d_model = width, .num_heads = 4, .num_kv_heads = 4, .bias = true});
  layer.initialize(mha::XavierUniform{.seed = random.engine()()});
  Tensor<T, 2> memory(1 + random.below(50), width), x(rows, width);
  random.fill(memory);
  expect_rows_alone<T, B>(random, rows, width, [&](const TensorView<T, 2>& r, const B& backend) {
    return layer(r, memory, mha::residual(r), backend);
  });
  random.fill(x);
  const auto alone = layer(x, memory), sum = layer(x, memory, mha::residual(x));
  for (Index i = 0; i < rows; ++i)
    for (Index e = 0; e < width; ++e) {
      const double of_heads = support::to_double(alone(i, e)), of_row = support::to_double(x(i, e));
      const double bound = 2 * support::unit_roundoff<T>() * (std::abs(of_heads) + std::abs(of_row));
      EXPECT_NEAR(support::to_double(sum(i, e)), of_heads + of_row, bound) << i << ' ' << e;
    }
}
/// The sums first, then their norms.
template <class Norm, class T, class B> void expect_norm(support::Random& random, Index rows, Index width) {
  const Norm block({.width = width});
  Tensor<T, 2> added(1, width);
  random.fill(added);
  const auto call = [&](const TensorView<T, 2>& x, const B& backend) {
    Tensor<T, 2> r(x.extent[0], width), sum(x.extent[0], width), y(x.extent[0], width);
    for (Index i = 0; i < x.extent[0]; ++i)
      for (Index e = 0; e < width; ++e) r(i, e) = added(0, e);
    block(x, mha::residual(r), mha::sum_into(sum), mha::into(y), backend);
    Tensor<T, 2> both(x.extent[0], 2 * width);
    for (Index i = 0; i < x.extent[0]; ++i)
      for (Index e = 0; e < width; ++e) both(i, e) = sum(i, e), both(i, width + e) = y(i, e);
    return both;
  };
  expect_rows_alone<T, B>(random, rows, width, call);
}

template <class T, class B> void expect_blocks(support::Random& random) {
  for (int round = 0; round < 3; ++round) {
    const auto rows = [&] { return 2 + random.below(60); };
    const auto width = [&] { return 1 + random.below(50); };
    expect_feed_forward<T, B, mha::Gelu>(random, rows(), width());
    expect_feed_forward<T, B, mha::SwiGlu>(random, rows(), width());
    expect_linear<T, B>(random, rows(), width());
    expect_attention<T, B>(random, rows());
    expect_norm<mha::LayerNorm<T, B>, T, B>(random, rows(), width());
    expect_norm<mha::RmsNorm<T, B>, T, B>(random, rows(), width());
  }
  if constexpr (std::is_same_v<T, float>)
    for (const Index width : {200, 1025}) expect_feed_forward<T, B, mha::SwiGlu>(random, 2 + random.below(9), width);
}

TYPED_TEST(Block, BitsOfARowDependOnItAlone) {
  support::Random random("rows of a block");
  laws::at_every_isa([&] { expect_blocks<TypeParam, mha::Cpu>(random); });
}

TEST(BlockOnReference, BitsOfARowDependOnItAlone) {
  support::Random random("rows of a block on Reference");
  expect_blocks<float, mha::Reference>(random);
}

TEST(BlockOnSystolic, BitsOfARowDependOnItAlone) {
  support::Random random("rows of a block on Systolic");
  expect_blocks<float, mha::Systolic<>>(random);
  expect_blocks<mha::bfloat16, mha::Systolic<>>(random);
}

TEST(BlockOnEigen, BitsDoNotDependOnThreads) {
  support::Random random("rows of a block on EigenCpu");
  expect_blocks<float, mha::EigenCpu>(random);
}

}  // namespace
