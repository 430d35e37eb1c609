// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include <mha/io/config_file.hpp>

#include "scratch.hpp"

namespace {

using mha::ConfigFile;

/// What f says of a file with this text.
template <class F> std::string says(std::string_view text, F&& f) {
  return mha_test::message_of<mha::SafetensorsError>([&] { f(ConfigFile("c", text)); });
}
std::string opening(std::string_view text) {
  return says(text, [](const ConfigFile&) {});
}

TEST(ConfigFile, ReadsWhatIsThere) {
  const mha_test::Scratch scratch;
  const ConfigFile file(scratch.write(
      "config.json",
      R"({"n":12,"x":1e-5,"i":3,"on":true,"name":"bert","none":null,"zero":0,"list":[{"n":1},{"n":2}]})"));
  EXPECT_EQ(file.path(), (scratch.root() / "config.json").string());
  EXPECT_EQ(file.positive("n"), 12);
  EXPECT_EQ(file.positive_or("n", 7), 12);
  EXPECT_EQ(file.positive_or("none", 7), 7);
  EXPECT_EQ(file.positive_or("absent", 7), 7);
  EXPECT_EQ(file.natural_or("zero", 7), 0);
  EXPECT_EQ(file.natural_or("absent", 7), 7);
  EXPECT_EQ(file.number("x"), 1e-5);
  EXPECT_EQ(file.number("i"), 3);
  EXPECT_TRUE(file.flag_or("on", false));
  EXPECT_TRUE(file.flag_or("absent", true));
  EXPECT_EQ(file.text("name"), "bert");
  EXPECT_EQ(file.text_or("absent", "gelu"), "gelu");
  EXPECT_TRUE(file.has("none"));
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_FALSE(file.has("absent"));
  file.only("name", "bert");
  file.only("on", true);
  file.only("absent", false);
}

TEST(ConfigFile, ValuesOfAnotherKindAreRefused) {
  const char* const text =
      R"({"minus":-3,"zero":0,"real":1.5,"large":2147483648,"word":"x","on":true,"long":[0,0,0],"none":null})";
  const auto positive = [&](const char* key) {
    return says(text, [&](const ConfigFile& f) { return f.positive(key); });
  };
  EXPECT_EQ(positive("minus"), "c: 'minus' is -3, expected an integer from 1 to 2147483647");
  EXPECT_EQ(positive("zero"), "c: 'zero' is 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(positive("real"), "c: 'real' is 1.5, expected an integer from 1 to 2147483647");
  EXPECT_EQ(positive("large"), "c: 'large' is 2147483648, expected an integer from 1 to 2147483647");
  EXPECT_EQ(positive("word"), "c: 'word' is \"x\", expected an integer from 1 to 2147483647");
  EXPECT_EQ(positive("on"), "c: 'on' is true, expected an integer from 1 to 2147483647");
  EXPECT_EQ(positive("long"), "c: 'long' is [0,0,0], expected an integer from 1 to 2147483647");
  EXPECT_EQ(positive("absent"), "c: there is no 'absent'");
  EXPECT_EQ(positive("none"), "c: there is no 'none'");
  EXPECT_EQ(says(text, [](const ConfigFile& f) { return f.natural_or("minus", 1); }),
            "c: 'minus' is -3, expected an integer from 0 to 2147483647");
  EXPECT_EQ(says(text, [](const ConfigFile& f) { return f.number("word"); }), "c: 'word' is \"x\", expected a number");
  EXPECT_EQ(says(text, [](const ConfigFile& f) { return f.flag_or("zero", true); }),
            "c: 'zero' is 0, expected true or false");
  EXPECT_EQ(says(text, [](const ConfigFile& f) { return f.text("on"); }), "c: 'on' is true, expected a text");
  EXPECT_EQ(says(text, [](const ConfigFile& f) { f.only("word", "absolute"); }),
            "c: 'word' is \"x\", expected \"absolute\"");
  EXPECT_EQ(says(text, [](const ConfigFile& f) { f.only("on", false); }), "c: 'on' is true, expected false");
}

TEST(ConfigFile, WhatIsNoObjectIsRefused) {
  EXPECT_EQ(opening("{}"), "");
  EXPECT_EQ(opening(""), "c: it is not valid JSON");
  EXPECT_EQ(opening("{"), "c: it is not valid JSON");
  EXPECT_EQ(opening(std::string_view("{}\0", 3)), "c: it is not valid JSON");
  EXPECT_EQ(opening("\"\xff\""), "c: it is not valid JSON");
  EXPECT_EQ(opening("{\"x\":1e999}"), "c: it is not valid JSON");
  EXPECT_EQ(opening("[1]"), "c: it is JSON, but not an object");
  EXPECT_EQ(opening(R"({"a":1,"b":{"a":2},"a":1})"), "c: it has 'a' twice");
  EXPECT_EQ(opening(R"({"a":{"b":1,"c":{},"b":2}})"), "c: it has 'b' twice");
  EXPECT_EQ(opening(R"({"a":[{"b":1},{"c":{"d":1},"c":2}]})"), "c: it has 'c' twice");
  EXPECT_EQ(opening(R"({"a":[{"b":1},{"b":{"a":1}}],"b":{"b":1}})"), "");
  const auto nested = [](std::size_t levels) {
    return opening("{\"a\":" + std::string(levels, '[') + std::string(levels, ']') + "}");
  };
  EXPECT_EQ(nested(50), "");
  EXPECT_EQ(nested(65), "c: it is nested more than 64 levels deep");
  EXPECT_EQ(nested(1000000), "c: it is nested more than 64 levels deep");
  EXPECT_EQ(mha_test::message_of<mha::SafetensorsError>([] { ConfigFile("/no/such/config.json"); }),
            "cannot open '/no/such/config.json': No such file or directory");
  const mha_test::Scratch scratch;
  const auto large = scratch.write("config.json", "{}");
  std::filesystem::resize_file(large, 100'000'001);
  EXPECT_EQ(mha_test::message_of<mha::SafetensorsError>([&] { ConfigFile{large}; }),
            large.string() + ": the file has 100000001 bytes, the limit is 100000000");
}

}  // namespace
