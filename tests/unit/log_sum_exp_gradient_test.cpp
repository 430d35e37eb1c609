// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/core/tensor.hpp>
#include <mha/log_sum_exp_gradient.hpp>

#include "message_of.hpp"

namespace {

using mha::LogSumExpGradient;

TEST(LogSumExpGradient, HasAnAxisForEachOfACall) {
  const mha::Tensor<float, 1> one_head(5);
  const mha::Tensor<float, 2> heads(3, 5);
  const auto of_head = LogSumExpGradient(one_head).from;
  EXPECT_EQ(of_head.extent[0], 1);
  EXPECT_EQ(of_head.extent[1], 1);
  EXPECT_EQ(of_head.extent[2], 5);
  const auto of_heads = LogSumExpGradient(heads).from;
  EXPECT_EQ(of_heads.extent[1], 3);
  EXPECT_EQ(of_heads.pointer(0, 2, 4), &heads(2, 4));
}

TEST(LogSumExpGradient, IsFoundAmongWhatACallIsGiven) {
  const mha::Tensor<float, 3> d(2, 3, 5);
  EXPECT_EQ(mha::detail::given_d_log_sum_exp<float>(1, LogSumExpGradient(d)).data, d.data());
  EXPECT_EQ(mha::detail::given_d_log_sum_exp<float>(1).data, nullptr);
}

TEST(LogSumExpGradient, IsRefusedWhereACallHasOtherRows) {
  const mha::Tensor<mha::half, 4> q(2, 5, 3, 8);
  const auto message = [&](mha::Index b, mha::Index h, mha::Index l) {
    const mha::Tensor<float, 3> d(b, h, l);
    return support::message_of(
        [&] { mha::detail::require_log_sum_exp_gradient<mha::half, float>("call", "q", q.view(), d.view()); });
  };
  EXPECT_EQ(message(2, 3, 5), "");
  EXPECT_EQ(message(1, 3, 5), "call: q has batch 2 but LogSumExpGradient has batch 1");
  EXPECT_EQ(message(2, 4, 5), "call: q has 3 heads but LogSumExpGradient has 4");
  EXPECT_EQ(message(2, 3, 6), "call: q has length 5 but LogSumExpGradient has length 6");
  EXPECT_EQ(message(0, 0, 0), "call: q has batch 2 but LogSumExpGradient has batch 0");
}

}  // namespace
