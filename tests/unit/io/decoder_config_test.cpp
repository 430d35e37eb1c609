// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <mha/io/decoder_config.hpp>

#include "scratch.hpp"

namespace {

using mha::ConfigFile;
using mha::Index;
using Windows = std::vector<Index>;

TEST(DecoderConfig, WindowsBecomeMasks) {
  mha::DecoderConfig c;
  c.layers = 2;
  c.windows = {5, 0};
  EXPECT_EQ(c.window(0).left.value, 4);
  EXPECT_EQ(c.window(1).left.value, std::numeric_limits<Index>::max());
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(c.window(2)); }),
            "window: there is no layer 2 among the 2");
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { static_cast<void>(c.window(-1)); }),
            "window: there is no layer -1 among the 2");
}

TEST(DecoderConfig, HeadsShareThoseOfKeysAndValues) {
  const ConfigFile file("c", "{}");
  mha::Config a{.num_heads = 6};
  mha::detail::read_kv_heads(file, a, 2);
  EXPECT_EQ(a.num_kv_heads, 2);
  EXPECT_EQ(mha_test::message_of<mha::SafetensorsError>([&] { mha::detail::read_kv_heads(file, a, 4); }),
            "c: 'num_key_value_heads' 4 does not divide 'num_attention_heads' 6");
}

TEST(DecoderConfig, LayerTypesSayWhichLayersHaveAWindow) {
  const auto windows = [](std::string_view types, Index window) {
    const ConfigFile file("c", R"({"layer_types":)" + std::string(types) + "}");
    return mha::detail::windows_of_types(file, *file.find("layer_types"), 3, window);
  };
  constexpr std::string_view mixed = R"(["sliding_attention","full_attention","sliding_attention"])";
  EXPECT_EQ(windows(mixed, 7), (Windows{7, 0, 7}));
  EXPECT_EQ(windows(R"(["full_attention","full_attention","full_attention"])", 0), (Windows{0, 0, 0}));
  const auto says = [&](std::string_view types, Index window) {
    return mha_test::message_of<mha::SafetensorsError>([&] { static_cast<void>(windows(types, window)); });
  };
  EXPECT_EQ(says(mixed, 0), "c: 'layer_types' has \"sliding_attention\", but there is no 'sliding_window' in use");
  EXPECT_EQ(says("3", 7), "c: 'layer_types' is 3, expected a list of 3 texts, one a layer");
  EXPECT_EQ(says(R"(["full_attention"])", 7),
            "c: 'layer_types' is [\"full_attention\"], expected a list of 3 texts, one a layer");
  EXPECT_EQ(says(R"(["full_attention","chunked_attention","full_attention"])", 7),
            "c: 'layer_types' is \"chunked_attention\", expected \"full_attention\" or \"sliding_attention\"");
  EXPECT_EQ(says(R"(["full_attention",1,"full_attention"])", 7), "c: 'layer_types' is 1, expected a text");
}

}  // namespace
