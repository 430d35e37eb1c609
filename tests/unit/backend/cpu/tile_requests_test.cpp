// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <gtest/gtest.h>

#include <mha/backend/backend.hpp>
#include <mha/backend/cpu/tile_requests.hpp>
#include <mha/backend/simd/tile_policies.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/mask/positional.hpp>

namespace {

namespace cpu = mha::detail::cpu;
namespace simd = mha::detail::simd;
using mha::Index;
using mha::Tensor;

constexpr Index keys = 5 * cpu::key_block, head_dim = 64, value_dim = 32;

/// The second of two key/value heads, of one sequence; a head's rows lie one after another.
template <class T> class TileRequests : public testing::Test {
 protected:
  using Call = mha::AttendCall<T, mha::detail::AnyKv<T>, simd::AnyMask<mha::Accumulator<T>>, mha::NoScore>;
  using Requests = cpu::TileRequests<Call>;

  /// Expects the lines of rows [begin, end) of these, and of no others.
  void expect(const simd::LineRanges& lines, const Tensor<T, 4>& rows, Index begin, Index end, bool near) const {
    EXPECT_EQ(lines.near, near);
    ASSERT_EQ(lines.count, 1);
    EXPECT_EQ(lines.data->begin, address(&rows(0, 1, begin, 0)));
    EXPECT_EQ(lines.data->end, address(&rows(0, 1, end - 1, 0) + rows.extent(3)));
  }
  static const char* address(const T* at) { return reinterpret_cast<const char*>(at); }

  simd::RowRuns<T> values(Index begin, Index count) {
    run_ = {&v_(0, 1, begin, 0), value_dim, count};
    return {&run_, 1};
  }

  Tensor<T, 4> k_{1, 2, keys, head_dim}, v_{1, 2, keys, value_dim};
  simd::StoredRows<T> run_{};
  mha::ContiguousKv<T> kv_{mha::view_bhld(k_.data(), 1, 2, keys, head_dim),
                           mha::view_bhld(v_.data(), 1, 2, keys, value_dim)};
  mha::Full full_;
  simd::AnyMask<mha::Accumulator<T>> mask_{full_, mha::current_isa()};
  Call call_{{},
             mha::detail::AnyKv<T>(kv_),
             mask_,
             {},
             {},
             {},
             {.batch = 1, .heads = 2, .queries = 1, .keys = keys},
             2,
             head_dim,
             value_dim};
  cpu::TileKeys<Call> tile_keys_{
      call_, simd::TileLanes{.b = 0, .head = 1, .heads = 1, .first = 0, .rows = 1, .position = 0}, 1};
};
using Scalars = testing::Types<float, mha::bfloat16>;
TYPED_TEST_SUITE(TileRequests, Scalars);

// Of a whole block each: its values while its scores are computed, and the next keys while its values are added.
TYPED_TEST(TileRequests, AreForWhatTheOtherNeedsNext) {
  typename TestFixture::Requests requests(this->call_, cpu::Asking::of_other);
  constexpr Index begin = cpu::key_block, end = 2 * cpu::key_block;
  this->expect(requests.in_scores(this->tile_keys_, begin, this->values(begin, cpu::key_block)), this->v_, begin, end,
               false);
  this->expect(requests.in_values(this->tile_keys_, begin, end), this->k_, end, end + cpu::key_block, false);
  EXPECT_EQ(requests.in_values(this->tile_keys_, keys - cpu::key_block, keys).count, 0);
}

// Each for its own rows, as far ahead as it says, a block of them or those that are left.
TYPED_TEST(TileRequests, AreForTheirOwnRowsFartherOn) {
  using Asked = typename TestFixture::Requests;
  Asked requests(this->call_, cpu::Asking::of_own);
  const Index ahead = Asked::keys_ahead(head_dim), values_ahead = Asked::values_ahead;
  for (const Index begin : {Index{0}, Index{7}, Index{cpu::key_block}}) {
    const Index key = begin + ahead, value = begin + values_ahead;
    this->expect(requests.in_scores(this->tile_keys_, begin, this->values(begin, cpu::key_block)), this->k_, key,
                 key + cpu::key_block, true);
    this->expect(requests.in_values(this->tile_keys_, begin, begin + cpu::key_block), this->v_, value,
                 value + cpu::key_block, true);
  }
  const Index last_key = keys - ahead - 1, last_value = keys - values_ahead - 1;
  this->expect(requests.in_scores(this->tile_keys_, last_key, {}), this->k_, keys - 1, keys, true);
  this->expect(requests.in_values(this->tile_keys_, last_value, keys), this->v_, keys - 1, keys, true);
  EXPECT_EQ(requests.in_scores(this->tile_keys_, last_key + 1, {}).count, 0);
  EXPECT_EQ(requests.in_values(this->tile_keys_, last_value + 1, keys).count, 0);
}

// 16 KiB of keys, and no fewer than the scores of two registers of 16 read at once; of empty rows too.
TYPED_TEST(TileRequests, AreSoManyBytesAhead) {
  using Asked = typename TestFixture::Requests;
  constexpr Index elements = 16384 / static_cast<Index>(sizeof(TypeParam));
  EXPECT_EQ(Asked::keys_ahead(elements / 128), 128);
  EXPECT_EQ(Asked::keys_ahead(elements / 32), 32);
  EXPECT_EQ(Asked::keys_ahead(elements), 32);
  EXPECT_GE(Asked::keys_ahead(0), 32);
}

}  // namespace
