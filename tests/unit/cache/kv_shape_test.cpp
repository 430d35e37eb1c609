// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mha/cache/kv_shape.hpp>

namespace {

TEST(KvShape, CountsTheNumbersOfAPosition) {
  const mha::KvShape shape{.heads = 3, .dim = 5, .value_dim = 2};
  EXPECT_EQ(shape.key_elements(), 15u);
  EXPECT_EQ(shape.value_elements(), 6u);
  EXPECT_EQ(shape.row_elements(), 21u);
  const mha::KvShape huge{.heads = 1 << 15, .dim = 1 << 15, .value_dim = 1 << 15};
  EXPECT_EQ(huge.row_elements(), std::size_t{1} << 31);
}

TEST(KvShape, CountsNoValuesThatAreInKeys) {
  const mha::KvShape shape{.heads = 3, .dim = 5, .value_dim = 2, .values_in_keys = true};
  EXPECT_EQ(shape.own_value_dim(), 0);
  EXPECT_EQ(shape.value_elements(), 0u);
  EXPECT_EQ(shape.row_elements(), 15u);
}

TEST(KvShape, CountsTheScalesOfStoredRows) {
  mha::KvShape shape{.heads = 3, .dim = 5, .value_dim = 2};
  EXPECT_EQ(mha::detail::stored_keys<float>(shape), shape.key_elements());
  EXPECT_EQ(mha::detail::stored_position<mha::half>(shape), shape.row_elements());
  EXPECT_EQ(mha::detail::stored_keys<mha::scaled_int8>(shape), 3u * 9u);
  EXPECT_EQ(mha::detail::stored_position<mha::scaled_int8>(shape), 3u * (9u + 6u));
  shape.values_in_keys = true;
  EXPECT_EQ(mha::detail::stored_position<mha::scaled_int8>(shape), 3u * 9u) << "no values, no scales of values";
}

}  // namespace
