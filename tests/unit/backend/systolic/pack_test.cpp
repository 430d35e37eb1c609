// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include <compare.hpp>
#include <gtest/gtest.h>
#include <random.hpp>

#include <mha/backend/systolic/pack.hpp>

#include "operands.hpp"

namespace {

using mha::bfloat16;
using mha::half;
using mha::Index;
using mha::Tensor;
using mha::TensorView;
using namespace mha::detail::systolic;

/// Memory for packed operands, every element a number no packing makes.
std::vector<bfloat16> poisoned(std::size_t size) { return std::vector<bfloat16>(size, support::poison<bfloat16>()); }

/// Where element (i, k) of activations, or (k, j) of weights, lies in its part.
std::size_t row_place(Index i, Index k, Index depth) {
  return static_cast<std::size_t>(i / 32) * panel_size(depth) +
         static_cast<std::size_t>(((k / 32 * 2 + i % 32 / 16) * 16 + i % 16) * 32 + k % 32);
}
std::size_t column_place(Index k, Index j, Index depth) {
  return static_cast<std::size_t>(j / 32) * panel_size(depth) +
         static_cast<std::size_t>((((k / 32 * 2 + j % 32 / 16) * 16 + k % 32 / 2) * 16 + j % 16) * 2 + k % 2);
}

template <Index Parts, class T> std::vector<bfloat16> packed_rows(const TensorView<const T, 2>& a) {
  const std::size_t size = packed_size(a.extent[0], a.extent[1]);
  auto to = poisoned(size * std::size_t{Parts});
  for (Index strip = 0; strip < strips(a.extent[0]); ++strip)
    pack_strip<Parts>(a, strip,
                      to.data() + static_cast<std::size_t>(strip / 2) * panel_size(a.extent[1]) + strip % 2 * tile_size,
                      size);
  return to;
}
template <Index Parts, class T> std::vector<bfloat16> packed_columns(const TensorView<const T, 2>& b) {
  const std::size_t size = packed_size(b.extent[1], b.extent[0]);
  auto to = poisoned(size * std::size_t{Parts});
  for (Index panel = 0; panel < panels(b.extent[1]); ++panel)
    pack_panel<Parts>(b, panel, to.data() + static_cast<std::size_t>(panel) * panel_size(b.extent[0]), size);
  return to;
}

struct Shape {
  Index rows, columns;
};
constexpr Shape shapes[] = {{1, 1}, {16, 32}, {33, 31}, {40, 65}, {7, 96}, {64, 64}};

template <class T> void expect_every_element_in_its_place() {
  support::Random random("places");
  for (const auto& [rows, columns] : shapes) {
    Tensor<T, 2> x(rows, columns), turned(columns, rows);
    random.fill(x);
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) turned(j, i) = x(i, j);
    const auto view = std::as_const(x).view();
    const auto a = packed_rows<1>(view), b = packed_columns<1>(view);
    for (Index i = 0; i < (rows + 15) / 16 * 16; ++i)
      for (Index j = 0; j < (columns + 31) / 32 * 32; ++j) {
        const bfloat16 expected = i < rows && j < columns ? bfloat16(static_cast<float>(x(i, j))) : bfloat16{};
        EXPECT_EQ(a[row_place(i, j, columns)].bits, expected.bits) << i << ", " << j;
      }
    for (Index i = 0; i < (rows + 31) / 32 * 32; ++i)
      for (Index j = 0; j < (columns + 31) / 32 * 32; ++j) {
        const bfloat16 expected = i < rows && j < columns ? bfloat16(static_cast<float>(x(i, j))) : bfloat16{};
        EXPECT_EQ(b[column_place(i, j, rows)].bits, expected.bits) << i << ", " << j;
      }
    // The same numbers in the other order of memory.
    const auto other = mha::transposed(std::as_const(turned).view());
    EXPECT_EQ(support::differing(packed_rows<1>(other), a), 0u);
    EXPECT_EQ(support::differing(packed_columns<1>(other), b), 0u);
  }
}

TEST(Pack, PutsEveryElementInItsPlaceAndZerosBeside) {
  expect_every_element_in_its_place<float>();
  expect_every_element_in_its_place<bfloat16>();
  expect_every_element_in_its_place<half>();
}

TEST(Pack, RoundsLikeTheScalarAndSplitsWhatIsLeft) {
  support::Random random("parts");
  Tensor<float, 2> x(16, 64);
  const float infinity = std::numeric_limits<float>::infinity();
  for (float& v : x) v = static_cast<float>(random.normal() * std::pow(10, random.uniform(-30, 30)));
  const float special[] = {0.f,       -0.f,     infinity, -infinity, std::nanf(""), 1e-40f, 0x1.fffffep127f,
                           0x1.01p0f, 0x1.03p0f};
  for (std::size_t i = 0; i < std::size(special); ++i) x(3, static_cast<Index>(i)) = special[i];
  const auto packed = packed_rows<3>(std::as_const(x).view());
  const std::size_t size = packed_size(16, 64);
  for (Index i = 0; i < 16; ++i)
    for (Index k = 0; k < 64; ++k) {
      float rest = x(i, k);
      for (std::size_t part = 0; part < 3; ++part) {
        const bfloat16 expected(rest), found = packed[part * size + row_place(i, k, 64)];
        if (std::isnan(rest))
          EXPECT_TRUE(std::isnan(float(found)));
        else
          EXPECT_EQ(found.bits, expected.bits) << rest << " part " << part;
        rest = std::isfinite(float(expected)) ? rest - float(expected) : 0.f;
      }
    }
}

TEST(Pack, SizesAreWholePanels) {
  EXPECT_EQ(panel_size(1), 1024u);
  EXPECT_EQ(panel_size(33), 2048u);
  EXPECT_EQ(packed_size(33, 33), 4096u);
  EXPECT_EQ(packed_size(0, 33), 0u);
  EXPECT_EQ(packed_size(100000, 100000), std::size_t{3125} * 3125 * 1024);
}

}  // namespace
