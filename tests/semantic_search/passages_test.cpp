// SPDX-License-Identifier: Apache-2.0
#include "passages.hpp"

#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scratch.hpp"

namespace semantic_search {

bool operator==(const Passage& a, const Passage& b) {
  return a.file == b.file && a.line == b.line && a.heading == b.heading && a.text == b.text;
}
std::ostream& operator<<(std::ostream& out, const Passage& p) {
  return out << p.file << ':' << p.line << " [" << p.heading << "] " << p.text;
}

namespace {

using Passages = std::vector<Passage>;

Passages paragraphs(const std::string& text) { return split_text(text, Split::paragraph, "f"); }

TEST(Passages, LinesAreTrimmedAndNumbered) {
  EXPECT_EQ(split_text("one\n\n  two\t three  \r\n---\nfour", Split::line, "f"),
            (Passages{{"f", 1, "", "one"}, {"f", 3, "", "two three"}, {"f", 5, "", "four"}}));
}

TEST(Passages, BlankLinesSeparateParagraphs) {
  EXPECT_EQ(paragraphs("one\ntwo\n\n \t\nthree\n"), (Passages{{"f", 1, "", "one two"}, {"f", 5, "", "three"}}));
  EXPECT_EQ(paragraphs("one\r\ntwo\r\n\r\nthree"), (Passages{{"f", 1, "", "one two"}, {"f", 4, "", "three"}}));
}

TEST(Passages, HeadingsBelongToWhatFollows) {
  EXPECT_EQ(
      paragraphs("# Title\n## Masks ##\nfirst\n\nsecond\n### Empty\n"),
      (Passages{
          {"f", 1, "", "Title"}, {"f", 3, "Masks", "first"}, {"f", 5, "Masks", "second"}, {"f", 6, "", "Empty"}}));
  EXPECT_EQ(paragraphs("#hashtag is text\n####### seven too"),
            (Passages{{"f", 1, "", "#hashtag is text ####### seven too"}}));
  EXPECT_EQ(paragraphs("# In C#\n## ##\ntext\n# F# ###"),
            (Passages{{"f", 2, "In C#", "## ## text"}, {"f", 4, "", "F#"}}));
  EXPECT_EQ((Passage{"f", 3, "Masks", "first"}.searchable()), "Masks: first");
  EXPECT_EQ((Passage{"f", 3, "", "first"}.searchable()), "first");
}

TEST(Passages, ListItemsAndTableRowsStandAlone) {
  EXPECT_EQ(paragraphs("intro:\n- one\n  goes on\n* two\n10. ten\n-not an item\n2026 is a year"),
            (Passages{{"f", 1, "", "intro:"},
                      {"f", 2, "", "- one goes on"},
                      {"f", 4, "", "* two"},
                      {"f", 5, "", "10. ten -not an item 2026 is a year"}}));
  EXPECT_EQ(paragraphs("| a | b |\n|---|---|\n| 1 | 2 |"),
            (Passages{{"f", 1, "", "| a | b |"}, {"f", 3, "", "| 1 | 2 |"}}));
}

TEST(Passages, FencedCodeStaysWhole) {
  EXPECT_EQ(paragraphs("text\n```cpp\n# not a heading\n\n- not an item\n~~~\n```\nafter"),
            (Passages{{"f", 1, "", "text"}, {"f", 3, "", "# not a heading - not an item ~~~"}, {"f", 8, "", "after"}}));
  EXPECT_EQ(paragraphs("````\na\n```\nb\n````\nc"), (Passages{{"f", 2, "", "a ``` b"}, {"f", 6, "", "c"}}));
  EXPECT_EQ(paragraphs("```\nnever closed\n\n# still code"), (Passages{{"f", 2, "", "never closed # still code"}}));
  EXPECT_EQ(paragraphs("```a ``` in a line\n\nb"), (Passages{{"f", 1, "", "```a ``` in a line"}, {"f", 3, "", "b"}}));
}

TEST(Passages, WordsOfAnyScriptCount) {
  EXPECT_EQ(split_text("注意\n***\n42\n— !\n", Split::line, "f"),
            (Passages{{"f", 1, "", "注意"}, {"f", 3, "", "42"}, {"f", 4, "", "— !"}}));
  EXPECT_TRUE(split_text("", Split::line).empty());
  EXPECT_TRUE(paragraphs("\n\n***\n").empty());
  EXPECT_EQ(paragraphs("\xEF\xBB\xBF# Title"), (Passages{{"f", 1, "", "Title"}}));
}

TEST(Passages, FilesThatCannotBeReadSayWhy) {
  const mha_test::Scratch scratch;
  const auto says = [](const std::filesystem::path& path) {
    return mha_test::message_of<std::runtime_error>([&] { read_passages(path, Split::line); });
  };
  const auto path = scratch.write("a.md", "hello\n");
  EXPECT_EQ(read_passages(path, Split::line), (Passages{{path.string(), 1, "", "hello"}}));
  EXPECT_TRUE(read_passages(scratch.write("empty.md", ""), Split::paragraph).empty());
  EXPECT_EQ(says("/no/such.md"), "there is no file '/no/such.md'");
  EXPECT_EQ(says(scratch.root()), "'" + scratch.root().string() + "' is a folder, expected a text file");
  const auto binary = scratch.write("b", std::string("a\0b", 3));
  EXPECT_EQ(says(binary), "'" + binary.string() + "' is not a text file: it holds a zero byte");
}

}  // namespace
}  // namespace semantic_search
