// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <mha/io/safetensors_index.hpp>

#include "scratch.hpp"

namespace {

using mha::detail::SafetensorsIndex;

std::string refusal(std::string_view text) {
  return mha_test::message_of<mha::SafetensorsError>(
      [&] { static_cast<void>(mha::detail::read_safetensors_index("i", text)); });
}

TEST(SafetensorsIndex, MapsNamesToShards) {
  const auto index = mha::detail::read_safetensors_index(
      "i", R"({"metadata":{"total_size":96,"weight_map":{"x":[1]}},"other":[{"a":"b"},null,-1,2.5,true],)"
           R"("weight_map":{"b":"model-2.safetensors","a":"model-1.safetensors"},"last":"text"})");
  EXPECT_EQ(index, (SafetensorsIndex{{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}}));
  EXPECT_TRUE(mha::detail::read_safetensors_index("i", R"( {"weight_map":{}} )").empty());
}

TEST(SafetensorsIndex, WhatIsNoIndexIsSaidInOneSentence) {
  EXPECT_EQ(refusal("{}"), "i: the index has no weight_map");
  EXPECT_EQ(refusal(R"({"metadata":{"weight_map":{"a":"b"}}})"), "i: the index has no weight_map");
  EXPECT_EQ(refusal(R"([{"weight_map":{}}])"), "i: the index is no JSON object");
  EXPECT_EQ(refusal("3"), "i: the index is no JSON object");
  EXPECT_EQ(refusal(R"({"weight_map":["a"]})"), "i: the weight_map of the index is not an object");
  EXPECT_EQ(refusal(R"({"weight_map":"a"})"), "i: the weight_map of the index is not an object");
  EXPECT_EQ(refusal(R"({"weight_map":{},"weight_map":{}})"), "i: the index has weight_map twice");
  EXPECT_EQ(refusal(""), "i: the index is not valid JSON at its byte 1");
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"b"})"), "i: the index is not valid JSON at its byte 24");
  EXPECT_EQ(refusal(std::string_view("{}\0{", 4)), "i: the index is not valid JSON at its byte 3");
  EXPECT_EQ(refusal(R"({"weight_map":{}})" + std::string(100'000'000, ' ')),
            "i: the index has 100000017 bytes, the limit is 100000000");
}

TEST(SafetensorsIndex, ATensorIsNamedOnceAndItsShardIsAFileBesideTheIndex) {
  EXPECT_EQ(refusal(R"({"weight_map":{"a":"x","b":"x","a":"x"}})"), "i: the index names tensor 'a' twice");
  for (const char* other : {"1", "null", "true", "-1", "1.5", "[\"x\"]", "{\"x\":\"y\"}"})
    EXPECT_EQ(refusal(std::string(R"({"weight_map":{"a":)") + other + "}}"),
              "i: tensor 'a' is in a file whose name is not a string");
  for (const char* other : {"", ".", "..", "../x", "/etc/x", "a/b", "a\\\\b", "x\\u0000"}) {
    const std::string message = refusal(std::string(R"({"weight_map":{"a":")") + other + "\"}}");
    EXPECT_TRUE(message.starts_with("i: tensor 'a' is in '")) << message;
    EXPECT_TRUE(message.ends_with("', expected a file beside the index")) << message;
  }
}

}  // namespace
