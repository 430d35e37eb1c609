// SPDX-License-Identifier: Apache-2.0
// The patterns in cases worked out by hand; tokenizer_test.cpp compares whole texts with Hugging Face's.
#include "split.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace {

using generate::Split;
using generate::split_words;
using Words = std::vector<std::string_view>;

TEST(Split, CutsAsGpt2) {
  EXPECT_EQ(split_words("Hello, it's  1234 x", Split::gpt2), (Words{"Hello", ",", " it", "'s", " ", " 1234", " x"}));
  EXPECT_EQ(split_words("IT'S\n\n a ", Split::gpt2), (Words{"IT", "'", "S", "\n\n", " a", " "}));
  EXPECT_EQ(split_words("\xC3\xA9t\xC3\xA9 !?", Split::gpt2), (Words{"\xC3\xA9t\xC3\xA9", " !?"}));
}

TEST(Split, CutsAsLlama3AndQwen2) {
  EXPECT_EQ(split_words("IT'S\n\n a", Split::llama3), (Words{"IT", "'S", "\n\n", " a"}));
  EXPECT_EQ(split_words("(abc) x=12345;\n\ny", Split::llama3),
            (Words{"(abc", ")", " x", "=", "123", "45", ";\n\n", "y"}));
  EXPECT_EQ(split_words("x 123", Split::qwen2), (Words{"x", " ", "1", "2", "3"}));
  EXPECT_EQ(split_words("\t\n \n  b", Split::llama3), (Words{"\t\n \n", " ", " b"}));
}

TEST(Split, TakesBytesThatAreNoTextForSigns) {
  EXPECT_EQ(split_words("a\xFF\xFE"
                        "b",
                        Split::gpt2),
            (Words{"a", "\xFF\xFE", "b"}));
}

TEST(Split, LosesNothing) {
  for (const Split how : {Split::none, Split::gpt2, Split::llama3, Split::qwen2})
    for (const char* text :
         {"", " ", "\r\n", " \r ", "'", "a'l b'll 'L", "1\xC2\xBD \xE2\x85\xA7", "\xE2\x80\xA8\xC2\x85."}) {
      std::string all;
      for (const std::string_view word : split_words(text, how)) {
        EXPECT_FALSE(word.empty());
        all += word;
      }
      EXPECT_EQ(all, text);
    }
}

TEST(Split, KnowsItsPatterns) {
  EXPECT_EQ(generate::split_of(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
            Split::gpt2);
  const std::string before = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
  const std::string behind = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(generate::split_of(before + R"(\p{N}{1,3})" + behind), Split::llama3);
  EXPECT_EQ(generate::split_of(before + R"(\p{N})" + behind), Split::qwen2);
  EXPECT_FALSE(generate::split_of(before + R"(\p{N}+)" + behind));
  EXPECT_FALSE(generate::split_of(before));
  EXPECT_FALSE(generate::split_of(""));
}

}  // namespace
