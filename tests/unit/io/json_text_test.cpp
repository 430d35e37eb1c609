// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <mha/io/json_text.hpp>

#include "random.hpp"

namespace {

using mha::detail::json_text;
using mha::detail::utf8_bytes;
using mha::detail::utf8_prefix;

std::string encoded(std::uint32_t c) {
  const auto byte = [](std::uint32_t b) { return static_cast<char>(b); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 | c >> 6), byte(0x80 | (c & 0x3f))};
  if (c < 0x10000) return {byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f))};
  return {byte(0xf0 | c >> 18), byte(0x80 | (c >> 12 & 0x3f)), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f))};
}

TEST(Utf8, HasEveryCharacter) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    const std::string text = encoded(c);
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    ASSERT_EQ(utf8_bytes(text), surrogate ? 0 : text.size()) << c;
    ASSERT_EQ(utf8_prefix(text + "a"), surrogate ? 0 : text.size() + 1) << c;
  }
}

TEST(Utf8, RefusesOtherBytes) {
  EXPECT_EQ(utf8_prefix(""), 0u);
  using namespace std::string_view_literals;
  for (const std::string_view text :
       {"\x80"sv, "\xbf"sv, "\xc0\x80"sv, "\xc1\xbf"sv, "\xc2"sv, "\xc2g"sv, "\xe0\x9f\xbf"sv, "\xe1\x80"sv,
        "\xf0\x8f\xbf\xbf"sv, "\xf1\x80\x80"sv, "\xf4\x90\x80\x80"sv, "\xf5\x80\x80\x80"sv, "\xff"sv}) {
    EXPECT_EQ(utf8_bytes(text), 0u) << testing::PrintToString(text);
    EXPECT_EQ(utf8_prefix("ok" + std::string(text)), 2u) << testing::PrintToString(text);
  }
}

TEST(JsonText, IsEscaped) {
  using namespace std::string_literals;
  EXPECT_EQ(json_text(""), R"("")");
  EXPECT_EQ(json_text("a.b/c"), R"("a.b/c")");
  EXPECT_EQ(json_text("\"\\\b\f\n\r\t"), R"("\"\\\b\f\n\r\t")");
  EXPECT_EQ(json_text("\0\x01\x1f\x7f"s), "\"\\u0000\\u0001\\u001f\x7f\"");
  EXPECT_EQ(json_text("é中😀"), "\"é中😀\"");
}

/// Random bytes, most of them near what begins or ends something, beside a library's text of them.
TEST(JsonText, IsThatOfALibrary) {
  support::Random random("json text");
  constexpr std::string_view bytes =
      "\"\\/\b\n\x1f\x20\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5";
  int valid = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int n = random.below(7); n > 0; --n) text += bytes[static_cast<std::size_t>(random.below(int(bytes.size())))];
    std::string expected;
    try {
      expected = nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
      EXPECT_LT(utf8_prefix(text), text.size()) << testing::PrintToString(text);
      continue;
    }
    ++valid;
    EXPECT_EQ(utf8_prefix(text), text.size()) << expected;
    EXPECT_EQ(json_text(text), expected);
  }
  EXPECT_GT(valid, 1000);
  EXPECT_LT(valid, 19000);
}

}  // namespace
