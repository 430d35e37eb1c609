// SPDX-License-Identifier: Apache-2.0
#include "text_stream.hpp"

#include <sstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace {

using namespace std::string_literals;
constexpr const char* kNone = "\xEF\xBF\xBD";  // U+FFFD

/// What is written of bytes that come one after another.
std::string written(std::string_view bytes) {
  std::ostringstream out;
  generate::TextStream stream(out);
  for (std::size_t i = 0; i < bytes.size(); ++i) stream.write(bytes.substr(i, 1));
  stream.finish();
  return out.str();
}

TEST(TextStream, WritesWholeCharacters) {
  std::ostringstream out;
  generate::TextStream stream(out);
  stream.write("a\xF0\x9F");
  EXPECT_EQ(out.str(), "a");
  stream.write("\x91");
  EXPECT_EQ(out.str(), "a");
  stream.write("\x8D\xC3");
  EXPECT_EQ(out.str(), "a\xF0\x9F\x91\x8D");
  stream.write("\xA9!");
  EXPECT_EQ(out.str(), "a\xF0\x9F\x91\x8D\xC3\xA9!");
  stream.finish();
  EXPECT_EQ(out.str(), "a\xF0\x9F\x91\x8D\xC3\xA9!");
}

TEST(TextStream, HasTheSameTextForAnyPieces) {
  const std::string text =
      "z\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC \xF4\x8F\xBF\xBD\xED\x9F\xBF\xE0\xA0\x80\xF0\x90\x80\x80\t\r\n";
  EXPECT_EQ(written(text), text);
}

TEST(TextStream, ReplacesWhatIsNoText) {
  EXPECT_EQ(written("a\xFF"
                    "b"),
            "a"s + kNone + "b");
  EXPECT_EQ(written("\x80"), kNone);
  EXPECT_EQ(written("\xE2\x82"), ""s + kNone + kNone);  // cut short
  EXPECT_EQ(written("\xE2\x82"
                    "a"),
            ""s + kNone + kNone + "a");
  EXPECT_EQ(written("\xC0\xAF"), ""s + kNone + kNone);                          // longer than it need be
  EXPECT_EQ(written("\xED\xA0\x80"), ""s + kNone + kNone + kNone);              // half of a surrogate pair
  EXPECT_EQ(written("\xF4\x90\x80\x80"), ""s + kNone + kNone + kNone + kNone);  // beyond U+10FFFF
}

TEST(TextStream, StripsOneBlankAtTheBeginning) {
  const auto stripped = [](std::string_view first, std::string_view second) {
    std::ostringstream out;
    generate::TextStream stream(out, true);
    for (const std::string_view bytes : {first, std::string_view(), second}) stream.write(bytes);
    stream.finish();
    return out.str();
  };
  EXPECT_EQ(stripped(" ", " a"), " a");
  EXPECT_EQ(stripped("", " a b"), "a b");
  EXPECT_EQ(stripped("a", " b"), "a b");
  EXPECT_EQ(stripped("\xC3", " b"), ""s + kNone + " b");
}

TEST(TextStream, LetsNoControlCharacterThrough) {
  EXPECT_EQ(written("\x1B[31m\x07\x7F\xC2\x9B"), ""s + kNone + "[31m" + kNone + kNone + kNone);
  EXPECT_EQ(written("\0"s), kNone);
}

}  // namespace
