// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/backend/systolic/query_rows.hpp>
#include <mha/backend/systolic/tile_product.hpp>
#include <mha/backend/systolic/tiles.hpp>
#include <mha/core/tensor.hpp>

#include "random.hpp"
#include "units.hpp"

namespace {

namespace systolic = mha::detail::systolic;
using mha::bfloat16;
using mha::Index;

/// What QueryRows asks of a call.
template <class T> struct Call {
  using Scalar = T;
  mha::TensorView<const T, 4> q;  ///< (B, L, H, D)
  mha::TensorView<T, 4> out;
  Index head_dim, value_dim;

  Index queries(Index) const { return q.extent[1]; }
  const T* query(Index b, Index i, Index h) const { return &q(b, i, h, 0); }
  T* output(Index b, Index i, Index h) const { return &out(b, i, h, 0); }
};

template <class T> class QueryRows : public testing::Test {};
using Scalars = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(QueryRows, Scalars);

/// Rows [first, first + rows) of heads [head, head + heads) of sequence 1.
template <class T> void expect_right(Index head, Index heads, Index first, Index rows, Index dim, Index value_dim) {
  constexpr Index length = 64, all_heads = 6;
  support::Random random("rows of a tile");
  mha::Tensor<T, 4> q(2, length, all_heads, dim), out(2, length, all_heads, value_dim);
  random.fill(q);
  std::fill(out.begin(), out.end(), T(std::numeric_limits<float>::quiet_NaN()));
  const Call<T> call{q.view(), out.view(), dim, value_dim};
  const systolic::ProductUnit unit = systolic::attention_unit<mha::AmxArray>();
  const systolic::UnitScope scope(unit.unit);
  const mha::detail::simd::TileLanes lanes{1, head, heads, first, rows, first};
  ASSERT_LE(lanes.count(), unit.lanes);
  const systolic::QueryRows<Call<T>> memory(call, mha::current_isa(), unit, lanes, rows);

  const Index steps = (dim + 31) / 32;
  std::vector<bfloat16> scratch(static_cast<std::size_t>(unit.lanes * steps * 32));
  std::vector<std::uint32_t> packed(static_cast<std::size_t>(unit.lanes * steps * 16), 0xffffffffu);
  memory.pack(steps, scratch.data(), packed.data());
  for (Index lane = 0; lane < unit.lanes; ++lane)
    for (Index d = 0; d < 32 * steps; ++d) {
      const auto word =
          static_cast<std::size_t>((d / 32 * (unit.lanes / 16) + lane / 16) * 256 + d % 32 / 2 * 16 + lane % 16);
      const auto got = static_cast<std::uint16_t>(packed[word] >> (d % 2 * 16));
      const bool there = lane < lanes.count() && d < dim;
      const bfloat16 want = there ? bfloat16(float(q(1, lanes.row_of(lane), lanes.head_of(lane), d))) : bfloat16{};
      ASSERT_EQ(got, want.bits) << "lane " << lane << " at " << d;
    }
  memory.fetch(0, 100);

  std::vector<float> sums(static_cast<std::size_t>((value_dim + 63) / 64 * 64 * unit.lanes)),
      factor(static_cast<std::size_t>(unit.lanes)), rows_of_scratch(16 * systolic::stored_at_once);
  random.fill(sums);
  random.fill(factor);
  memory.store(sums.data(), factor.data(), rows_of_scratch.data());
  for (Index i = 0; i < length; ++i)
    for (Index h = 0; h < all_heads; ++h)
      for (Index d = 0; d < value_dim; ++d) {
        const bool there = i >= first && i < first + rows && h >= head && h < head + heads;
        const float got = float(out(1, i, h, d));
        if (!there) {
          ASSERT_TRUE(got != got) << "row " << i << " of head " << h << " was written";
          continue;
        }
        const Index lane = (h - head) * rows + i - first;
        const float want =
            sums[static_cast<std::size_t>(d * unit.lanes + lane)] * factor[static_cast<std::size_t>(lane)];
        ASSERT_EQ(got, float(T(want))) << "row " << i << " of head " << h << " at " << d;
      }
}

TYPED_TEST(QueryRows, ArePackedAndStoredWhereTheCallHasThem) {
  for (const auto& [dim, value_dim] : {std::pair<Index, Index>{64, 64}, {40, 72}, {7, 3}}) {
    const Index lanes = systolic::attention_unit<mha::AmxArray>().lanes;
    expect_right<TypeParam>(2, 1, 3, lanes, dim, value_dim);  // a head
    expect_right<TypeParam>(1, 1, 8, 5, dim, value_dim);
    expect_right<TypeParam>(0, 6, 63, 1, dim, value_dim);  // the heads of a group
    expect_right<TypeParam>(3, 2, 10, 9, dim, value_dim);
  }
}

}  // namespace
