// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <mha/block.hpp>
#include <mha/block/cost.hpp>

namespace {

TEST(Flop, AreToldInTheUnitThatSuitsThem) {
  using mha::detail::flop_in_words;
  EXPECT_EQ(flop_in_words(0), "0 FLOP");
  EXPECT_EQ(flop_in_words(999), "999 FLOP");
  EXPECT_EQ(flop_in_words(1000), "1 kFLOP");
  EXPECT_EQ(flop_in_words(999949), "999.9 kFLOP");
  EXPECT_EQ(flop_in_words(999950), "1 MFLOP");
  EXPECT_EQ(flop_in_words(2.5e9), "2.5 GFLOP");
  EXPECT_EQ(flop_in_words(1.25e16), "12.5 PFLOP");
}

TEST(Counts, HaveAllOfTheirDigitsBeyondEveryIntegerToo) {
  using mha::detail::count_in_words;
  EXPECT_EQ(count_in_words(0), "0");
  EXPECT_EQ(count_in_words(std::int64_t{9007199254740993}), "9007199254740993");
  EXPECT_EQ(count_in_words(1.75), "1");
  EXPECT_EQ(count_in_words(0x1p63), "9223372036854775808");
  EXPECT_EQ(mha::detail::stage_in_words("", 0, 0x1p76), "0 FLOP, 75557863725914323419136 bytes");
  const mha::Linear<float> wide({.inputs = (1 << 30) - 1, .outputs = 2, .bias = false});
  const std::string text = wide.explain(2147483647);  // rows
  EXPECT_NE(text.find(" EFLOP, 9223372049739677696 bytes\n"), std::string::npos) << text;
}

TEST(StageCost, StagesAdd) {
  const mha::StageCost sum = mha::StageCost{3, 5, 7} + mha::StageCost{10, 20, 40};
  EXPECT_EQ(sum.parameters, 13);
  EXPECT_EQ(sum.flop, 25);
  EXPECT_EQ(sum.bytes, 47);
}

TEST(BackwardStageCost, IsThatOfBothProductsAndWhatTheTapeKeeps) {
  const mha::Linear<float> plain({.inputs = 10, .outputs = 20});
  const auto c = plain.backward_cost(7);
  EXPECT_EQ(c.parameters, 220);
  EXPECT_EQ(c.flop, 2 * plain.cost(7).flop);
  EXPECT_EQ(c.bytes, 4. * (200 + 7 * (2 * 10 + 20) + 220));
  EXPECT_EQ(c.tape_bytes, 0);
  EXPECT_EQ(c.scratch_bytes, 0);
  const mha::Linear<mha::bfloat16, mha::Cpu, mha::SwiGlu> gated({.inputs = 10, .outputs = 20, .bias = false});
  const auto g = gated.backward_cost(7);
  EXPECT_EQ(g.flop, 8. * 7 * 200);
  EXPECT_EQ(g.tape_bytes, 4. * 7 * 40);
  EXPECT_EQ(g.scratch_bytes, 4. * 7 * 60);
  EXPECT_EQ(g.bytes, 2. * (400 + 7 * 40) + 4. * (400 + 7 * 40));
  const mha::FeedForward<float, mha::Cpu, mha::Gelu> ff({.d_model = 10, .d_hidden = 30});
  const auto f = ff.backward_cost(7);
  EXPECT_EQ(f.flop, 2 * ff.cost(7).flop);
  EXPECT_EQ(f.tape_bytes, 4. * 7 * 60);
  EXPECT_EQ(f.scratch_bytes, 4. * 7 * 60);
  const mha::LayerNorm<float> norm({.width = 10});
  EXPECT_EQ(norm.backward_cost(7).bytes, 4. * (3 * 70 + 30));
  EXPECT_EQ(norm.backward_cost(7).tape_bytes, 4. * 70);
  EXPECT_EQ(norm.explain_backward(7),
            "backward:    0 FLOP, 960 bytes\ntape:        280 bytes\n"
            "workspace:   0 bytes\n");
  EXPECT_EQ(plain.explain_backward(7),
            "backward:    5.6 kFLOP, 2800 bytes\ntape:        0 bytes\n"
            "workspace:   0 bytes\n");
  // 2 · 2 · 7 rows · 2 products · 10 · 30; the matrices, x, y, dy and dx of both, the gradients, and 7 · 30 sums of
  // Gelu
  EXPECT_EQ(ff.explain_backward(7), "backward:    16.8 kFLOP, " + std::to_string(4 * (600 + 7 * 120 + 640 + 210)) +
                                        " bytes\ntape:        1680 bytes\nworkspace:   1680 bytes\n");
}

/// The matrices of weights that are only packed are unpacked to the workspace for dx.
template <class F> void expect_unpacked(int matrices) {
  mha::Linear<float, mha::Cpu, F> linear({.inputs = 40, .outputs = 70, .bias = false});
  linear.initialize(mha::XavierUniform{.seed = 1});
  const mha::BackwardStageCost before = linear.backward_cost(7);
  linear.drop_unpacked();
  const mha::BackwardStageCost packed = linear.backward_cost(7);
  EXPECT_EQ(packed.scratch_bytes - before.scratch_bytes, 4. * matrices * 40 * 70);
  EXPECT_EQ(packed.bytes, before.bytes);
  EXPECT_EQ(packed.tape_bytes, before.tape_bytes);
  const mha::Tensor<float, 3> x(1, 7, 40), dy(1, 7, 70);
  auto tape = linear.tape();
  static_cast<void>(linear(x, tape));
  mha::Workspace workspace;
  static_cast<void>(linear.backward(dy, tape, workspace));
  EXPECT_GE(double(workspace.bytes()), packed.scratch_bytes);
}

TEST(BackwardStageCost, CountsMatricesThatAreUnpacked) {
  expect_unpacked<mha::Identity>(1);
  expect_unpacked<mha::Gelu>(1);
  expect_unpacked<mha::SwiGlu>(2);
}

}  // namespace
