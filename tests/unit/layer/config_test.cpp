// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <mha/layer/config.hpp>

#include "scratch.hpp"

namespace {

using mha::Config;
using mha::GroupedQuery;
using mha::MultiHead;
using mha::MultiQuery;

template <class Heads = MultiHead> Config completed(const Config& c) { return mha::detail::completed<Heads>(c); }

template <class Heads = MultiHead> std::string error_of(const Config& c) {
  return mha_test::message_of<mha::ShapeError>([&] { completed<Heads>(c); });
}

TEST(Config, DerivesWhatIsNotGiven) {
  const Config c = completed({.d_model = 512, .num_heads = 8});
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.value_dim, 64);
  EXPECT_EQ(c.kv_model, 512);
  EXPECT_EQ(c.value_model, 512);
  EXPECT_EQ(completed({.d_model = 512, .num_heads = 8, .kv_model = 6}).value_model, 6);
  EXPECT_FALSE(c.bias);
  EXPECT_FALSE(c.scale.has_value());
  EXPECT_EQ(c.query_width(), 512);
  EXPECT_EQ(c.key_width(), 512);
  EXPECT_EQ(c.value_width(), 512);
}

TEST(Config, KeepsWhatIsGiven) {
  const Config c = completed<GroupedQuery<mha::Dynamic>>({.d_model = 10,
                                                          .num_heads = 6,
                                                          .num_kv_heads = 3,
                                                          .head_dim = 4,
                                                          .value_dim = 5,
                                                          .kv_model = 7,
                                                          .value_model = 9,
                                                          .bias = true,
                                                          .scale = 0.25});
  EXPECT_EQ(c.num_kv_heads, 3);
  EXPECT_EQ(c.kv_model, 7);
  EXPECT_EQ(c.value_model, 9);
  EXPECT_TRUE(c.bias);
  EXPECT_EQ(c.scale, 0.25);
  EXPECT_EQ(c.query_width(), 24);
  EXPECT_EQ(c.key_width(), 12);
  EXPECT_EQ(c.value_width(), 15);
  EXPECT_EQ(c.concat_width(), 30);
}

TEST(Config, BiasesMayBeSaidApart) {
  const auto biases = [](const Config& c) {
    std::string all;
    for (const bool b : {c.has_query_bias(), c.has_key_bias(), c.has_value_bias(), c.has_output_bias()})
      all += b ? '1' : '0';
    return all;
  };
  EXPECT_EQ(biases(completed({.d_model = 8, .num_heads = 2})), "0000");
  EXPECT_EQ(biases(completed({.d_model = 8, .num_heads = 2, .bias = true})), "1111");
  EXPECT_EQ(biases(completed({.d_model = 8, .num_heads = 2, .bias = true, .query_bias = false})), "0111");
  EXPECT_EQ(biases(completed({.d_model = 8, .num_heads = 2, .bias = true, .key_bias = false})), "1011");
  EXPECT_EQ(biases(completed({.d_model = 8, .num_heads = 2, .bias = true, .output_bias = false})), "1110");
  EXPECT_EQ(biases(completed({.d_model = 8, .num_heads = 2, .value_bias = true})), "0010");
}

TEST(Config, ValueDimFollowsAGivenHeadDim) {
  const Config c = completed({.d_model = 10, .num_heads = 3, .head_dim = 6});
  EXPECT_EQ(c.head_dim, 6);
  EXPECT_EQ(c.value_dim, 6);
}

TEST(Config, TheHeadsPolicyCountsKeyValueHeads) {
  EXPECT_EQ(completed<GroupedQuery<2>>({.d_model = 64, .num_heads = 8}).num_kv_heads, 2);
  EXPECT_EQ(completed<GroupedQuery<2>>({.d_model = 64, .num_heads = 8, .num_kv_heads = 2}).num_kv_heads, 2);
  EXPECT_EQ(completed<MultiQuery>({.d_model = 64, .num_heads = 8}).num_kv_heads, 1);
  EXPECT_EQ(completed<GroupedQuery<mha::Dynamic>>({.d_model = 64, .num_heads = 8, .num_kv_heads = 4}).num_kv_heads, 4);
}

TEST(Config, ErrorsNameTheSizeAndItsValue) {
  EXPECT_EQ(error_of({.num_heads = 2}), "Config: d_model is 0, it must be at least 1");
  EXPECT_EQ(error_of({.d_model = -8, .num_heads = 2}), "Config: d_model is -8, it must be at least 1");
  EXPECT_EQ(error_of({.d_model = 8}), "Config: num_heads is 0, it must be at least 1");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = -1}), "Config: num_heads is -1, it must be at least 1");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 2, .num_kv_heads = -2}),
            "Config: num_kv_heads is -2, it must be at least 1");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 2, .head_dim = -4}), "Config: head_dim is -4, it must be at least 1");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 2, .value_dim = -4}),
            "Config: value_dim is -4, it must be at least 1");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 2, .kv_model = -4}), "Config: kv_model is -4, it must be at least 1");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 2, .value_model = -4}),
            "Config: value_model is -4, it must be at least 1");
}

TEST(Config, ErrorsNameTheSizesThatDoNotFit) {
  const std::string dynamic = ": name mha::GroupedQuery<mha::Dynamic> in the layer's type";
  EXPECT_EQ(error_of({.d_model = 10, .num_heads = 3}), "Config: num_heads 3 does not divide d_model 10: give head_dim");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 4, .num_kv_heads = 2}),
            "Config: num_kv_heads is 2 but the heads policy says 4" + dynamic);
  EXPECT_EQ(error_of<GroupedQuery<2>>({.d_model = 8, .num_heads = 4, .num_kv_heads = 4}),
            "Config: num_kv_heads is 4 but the heads policy says 2" + dynamic);
  EXPECT_EQ(error_of<MultiQuery>({.d_model = 8, .num_heads = 4, .num_kv_heads = 4}),
            "Config: num_kv_heads is 4 but the heads policy says 1" + dynamic);
  EXPECT_EQ(error_of<GroupedQuery<3>>({.d_model = 8, .num_heads = 4}),
            "Config: num_kv_heads 3 does not divide num_heads 4");
  EXPECT_EQ(error_of<GroupedQuery<mha::Dynamic>>({.d_model = 8, .num_heads = 4}),
            "Config: GroupedQuery<Dynamic> needs num_kv_heads, it is 0");
  EXPECT_EQ(error_of<GroupedQuery<mha::Dynamic>>({.d_model = 8, .num_heads = 2, .num_kv_heads = 4}),
            "Config: num_kv_heads 4 does not divide num_heads 2");
}

TEST(Config, WidthsThatOverflowAreErrors) {
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 65536, .head_dim = 65536}),
            "Config: 65536 heads are 4294967296 wide together, the limit is 1073741823");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 65536, .head_dim = 1, .value_dim = 32768}),
            "Config: 65536 heads are 2147483648 wide together, the limit is 1073741823");
}

// The numbers of such a layer would not even be counted in 64 bits.
TEST(Config, MatricesThatNoMemoryHoldsAreErrors) {
  constexpr mha::Index most = std::numeric_limits<mha::Index>::max(), longest = most / 2;
  EXPECT_EQ(error_of({.d_model = most, .num_heads = 1}), "Config: d_model is 2147483647, the limit is 1073741823");
  EXPECT_EQ(error_of({.d_model = 1, .num_heads = 1, .kv_model = longest + 1}),
            "Config: kv_model is 1073741824, the limit is 1073741823");
  EXPECT_EQ(error_of({.d_model = 1, .num_heads = 1, .value_model = longest + 1}),
            "Config: value_model is 1073741824, the limit is 1073741823");
  EXPECT_EQ(error_of({.d_model = longest, .num_heads = 1}),
            "Config: the matrix of d_model and all heads is (1073741823, 1073741823), more than 36028797018963967 "
            "elements, an empty axis counted as 1");
  EXPECT_EQ(error_of({.d_model = 1, .num_heads = 1, .head_dim = longest, .value_dim = 1, .kv_model = longest}),
            "Config: the matrix of kv_model and all key/value heads is (1073741823, 1073741823), more than "
            "36028797018963967 elements, an empty axis counted as 1");
  EXPECT_EQ(error_of({.d_model = 1, .num_heads = 1, .value_dim = longest, .value_model = longest}),
            "Config: the matrix of value_model and all key/value heads is (1073741823, 1073741823), more than "
            "36028797018963967 elements, an empty axis counted as 1");
  EXPECT_EQ(error_of({.d_model = 1 << 27, .num_heads = 1}), "");
}

TEST(Config, TheScaleIsFinite) {
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 2, .scale = std::numeric_limits<double>::infinity()}),
            "Config: scale is inf, not finite");
  EXPECT_NE(error_of({.d_model = 8, .num_heads = 2, .scale = std::numeric_limits<double>::quiet_NaN()}), "");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 2, .scale = -2.0}), "");
  EXPECT_EQ(error_of({.d_model = 8, .num_heads = 2, .scale = 0.0}), "");
}

}  // namespace
