// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/cpu/columns.hpp>
#include <mha/core/tensor.hpp>
#include <mha/core/view.hpp>

namespace {

using mha::Index;
using mha::detail::cpu::AnyColumns;
using mha::detail::cpu::LooseColumns;

constexpr Index width = mha::detail::cpu::panel_columns<float>;

class Columns : public testing::Test {
 protected:
  Columns() : matrix(5, width + 3), turned(width + 3, 5), biases(std::size_t{2 * width}) {
    for (Index k = 0; k < 5; ++k)
      for (Index j = 0; j < width + 3; ++j) matrix(k, j) = turned(j, k) = static_cast<float>(100 * k + j);
    for (std::size_t j = 0; j < biases.size(); ++j) biases[j] = static_cast<float>(j);
  }

  mha::Tensor<float, 2> matrix, turned;
  std::vector<float> biases;
};

TEST_F(Columns, PanelsArePackedInScratchAndFilledUp) {
  for (const auto& view : {matrix.view(), mha::transposed(turned.view())}) {
    const LooseColumns<float> loose{view, nullptr};
    const AnyColumns<float> any(loose);
    ASSERT_TRUE(any.uses_scratch());
    std::vector<float> scratch(std::size_t{3 * width}, -1.f);
    ASSERT_EQ(any.panel(0, 1, 2, 3, scratch.data()), scratch.data());
    for (Index k = 0; k < 3; ++k)
      for (Index j = 0; j < width; ++j)
        EXPECT_EQ(scratch[static_cast<std::size_t>(k * width + j)], j < 3 ? matrix(k + 2, width + j) : 0.f);
  }
}

TEST_F(Columns, PackedPanelsAreReadWhereTheyAre) {
  const std::vector<float> packed(std::size_t{2 * 5 * width});
  const LooseColumns<float> loose{matrix.view(), nullptr, packed.data()};
  const AnyColumns<float> any(loose);
  EXPECT_FALSE(any.uses_scratch());
  EXPECT_EQ(any.panel(0, 1, 2, 3, nullptr), packed.data() + (5 + 2) * width);
}

TEST_F(Columns, BiasesAreThoseOfThePanelOrNone) {
  const LooseColumns<float> with{matrix.view(), biases.data()}, without{matrix.view(), nullptr};
  EXPECT_EQ(AnyColumns<float>(with).bias(0, 1), biases.data() + width);
  EXPECT_EQ(AnyColumns<float>(without).bias(0, 1), nullptr);
}

TEST_F(Columns, OneRowMeetsAMatrixThatIsInRows) {
  const LooseColumns<float> rows{matrix.view(), nullptr}, columns{mha::transposed(turned.view()), nullptr};
  EXPECT_EQ(AnyColumns<float>(rows).rows(), &rows.matrix);
  EXPECT_EQ(AnyColumns<float>(columns).rows(), nullptr);
}

// In memory that had other numbers: the first of a pair takes the whole byte, the second the half above it.
TEST(PutInteger, WritesTwoRowsToAByte) {
  for (int first = -8; first < 8; ++first)
    for (int second = -8; second < 8; ++second) {
      std::vector<mha::scaled_int4> group(std::size_t{2 * width});
      for (auto& x : group) x.pair = 0xff;
      mha::detail::cpu::put_integer(group.data(), 2, 5, static_cast<std::int8_t>(first));
      ASSERT_EQ(group[std::size_t{width + 5}].pair, first & 15);
      mha::detail::cpu::put_integer(group.data(), 3, 5, static_cast<std::int8_t>(second));
      ASSERT_EQ(group[std::size_t{width + 5}].pair, (first & 15) + 16 * (second & 15));
      group[std::size_t{width + 5}].pair = 0xff;
      for (const auto x : group) ASSERT_EQ(x.pair, 0xff);
    }
  std::vector<mha::scaled_int8> rows(std::size_t{2 * width});
  mha::detail::cpu::put_integer(rows.data(), 1, 7, std::int8_t{-127});
  EXPECT_EQ(rows[std::size_t{width + 7}].integer, -127);
}

}  // namespace
