// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/backward_arguments.hpp>
#include <mha/core/tensor.hpp>

namespace {

using mha::LogSumExpGradient;
using mha::SinkGradient;
using mha::Tensor;

TEST(LogSumExpGradient, ReadsWhatItIsGivenWithTheAxesOfRows) {
  const Tensor<float, 3> all(2, 3, 5);
  const LogSumExpGradient gradient(all);
  static_assert(std::is_same_v<decltype(gradient), const LogSumExpGradient<float>>);
  EXPECT_EQ(gradient.from.data, all.data());
  const Tensor<double, 1> row(5);
  const LogSumExpGradient of_a_head(row);
  EXPECT_EQ(of_a_head.from.extent[0], 1);
  EXPECT_EQ(of_a_head.from.extent[1], 1);
  EXPECT_EQ(of_a_head.from.extent[2], 5);
}

TEST(SinkGradient, WritesToTensorsAndViews) {
  Tensor<float, 1> to(4);
  EXPECT_EQ(SinkGradient(to).to.data, to.data());
  EXPECT_EQ(SinkGradient(to.view()).to.data, to.data());
  EXPECT_FALSE(SinkGradient(to).adds);
  EXPECT_EQ(SinkGradient(mha::add_to(to)).to.data, to.data());
  EXPECT_TRUE(SinkGradient(mha::add_to(to.view())).adds);
}

TEST(BackwardArguments, AreFoundAmongOthers) {
  Tensor<float, 3> sums(1, 2, 3);
  Tensor<float, 1> sink(2);
  const LogSumExpGradient gradient(sums);
  const SinkGradient to(sink);
  EXPECT_EQ((mha::detail::given_d_log_sum_exp<float>(to, mha::Scale{2}, gradient).data), sums.data());
  EXPECT_EQ((mha::detail::given_d_log_sum_exp<float>(to).data), nullptr);
  int found = 0;
  const auto look = [&](const auto& v, bool adds) {
    ++found;
    EXPECT_EQ(v.data, sink.data());
    EXPECT_FALSE(adds);
  };
  mha::detail::with_sink_gradient(look, gradient, to);
  EXPECT_EQ(found, 1);
  mha::detail::with_sink_gradient(look, gradient);
  EXPECT_EQ(found, 1);
}

}  // namespace
