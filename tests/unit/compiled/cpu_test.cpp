// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <gtest/gtest.h>

#include <mha/block.hpp>
#include <mha/compiled/cpu.hpp>
#include <mha/mha.hpp>

#include "compare.hpp"
#include "declared.hpp"
#include "eight_bits.hpp"
#include "four_bits.hpp"
#include "random.hpp"

namespace {

static_assert(MHA_KERNELS_ELSEWHERE, "the tests link mha::compiled, which says so to every unit with its flags");

TEST(CompiledCpu, IsRightInFloat) {
  declared::expect_right<float, mha::Cpu>(1e-4);
  declared::expect_right<float, mha::CpuWith<mha::Serial>>(1e-4);
}
TEST(CompiledCpu, IsRightInDouble) {
  declared::expect_right<double, mha::Cpu>(1e-12);
  declared::expect_right<double, mha::CpuWith<mha::Serial>>(1e-12);
}
TEST(CompiledCpu, IsRightInHalf) {
  declared::expect_right<mha::half, mha::Cpu>(0.02);
  declared::expect_right<mha::half, mha::CpuWith<mha::Serial>>(0.02);
}
TEST(CompiledCpu, IsRightInBfloat16) {
  declared::expect_right<mha::bfloat16, mha::Cpu>(0.15);
  declared::expect_right<mha::bfloat16, mha::CpuWith<mha::Serial>>(0.15);
}

/// Rows in 8 bits under queries of float, one and many, beside the same numbers in float.
template <class B> void expect_bits_of_eight_bits() {
  support::Random random("compiled kernels of 8 bits");
  for (const mha::Index queries : {1, 3, 70}) {
    mha::Tensor<float, 4> q(2, queries, 8, 64), k(2, 90, 2, 64), v(2, 90, 2, 32);
    for (auto* t : {&q, &k, &v}) random.fill(*t);
    const auto stored_k = support::in_eight_bits(k), stored_v = support::in_eight_bits(v);
    const mha::ContiguousKv<mha::scaled_int8> rows{support::numbers_of(stored_k), support::numbers_of(stored_v)};
    const mha::ContiguousKv<float> wide{k.view(), v.view()};
    EXPECT_EQ(support::differing(mha::attention<B>(q, rows, mha::Causal{}), mha::attention<B>(q, wide, mha::Causal{})),
              0u);
    EXPECT_EQ(support::differing(mha::attention_weights<B>(q, rows), mha::attention_weights<B>(q, wide)), 0u);
  }
}
TEST(CompiledCpu, ReadsRowsInEightBits) {
  expect_bits_of_eight_bits<mha::Cpu>();
  expect_bits_of_eight_bits<mha::CpuWith<mha::Serial>>();
}

/// Products by integers of Q, of few rows and many, beside those by the same numbers in float.
template <class Q, class B> void expect_products_by_integers() {
  support::Random random("compiled products by integers");
  for (const mha::Index in : {31, 300}) {
    mha::Tensor<float, 2> weight(in, 70);
    random.fill(weight);
    const auto rounded = support::rounded_weights<Q, float>(std::as_const(weight).view());
    mha::Linear<float, B> linear({.inputs = in, .outputs = 70, .bias = false}), same(linear.config());
    linear.template quantize<Q>({.weight = weight});
    same.borrow({.weight = rounded});
    for (const mha::Index rows : {1, 5, 90}) {
      mha::Tensor<float, 2> x(rows, in);
      random.fill(x);
      EXPECT_EQ(support::differing(linear(x), same(x)), 0u) << in << ", " << rows;
    }
  }
}
TEST(CompiledCpu, MultipliesByIntegers) {
  expect_products_by_integers<mha::scaled_int8, mha::Cpu>();
  expect_products_by_integers<mha::scaled_int8, mha::CpuWith<mha::Serial>>();
  expect_products_by_integers<mha::scaled_int4, mha::Cpu>();
  expect_products_by_integers<mha::scaled_int4, mha::CpuWith<mha::Serial>>();
}

}  // namespace
