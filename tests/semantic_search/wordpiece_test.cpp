// SPDX-License-Identifier: Apache-2.0
#include "wordpiece.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "golden.hpp"

namespace {

using semantic_search::Encoding;
using semantic_search::WordPiece;
using Tokens = std::vector<std::string>;

/// A folder of its own that goes with the test.
class Folder {
 public:
  Folder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) / (std::string("mha_wordpiece_") + test->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path vocabulary(const std::string& text) const {
    const auto file = path_ / "vocab.txt";
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

const char* const kSpecials = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";

/// Tokens between [CLS] and [SEP] under the special tokens and these entries.
Tokens inner_tokens(const std::string& entries, std::string_view text, bool lower_case = true) {
  const Folder folder;
  Tokens tokens = WordPiece(folder.vocabulary(kSpecials + entries), lower_case).encode(text).tokens;
  EXPECT_GE(tokens.size(), 2u);
  EXPECT_EQ(tokens.front(), "[CLS]");
  EXPECT_EQ(tokens.back(), "[SEP]");
  return Tokens(tokens.begin() + 1, tokens.end() - 1);
}

/// The same, of one word and with accents kept or stripped.
std::string one_word(const std::string& word, std::string_view text, bool lower_case, bool strip_accents) {
  const Folder folder;
  return WordPiece(folder.vocabulary(kSpecials + word + "\n"), lower_case, strip_accents).encode(text).tokens.at(1);
}

std::string error_of(const std::filesystem::path& vocabulary) {
  try {
    WordPiece{vocabulary};
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(WordPiece, NumbersTokensByTheirLine) {
  const Folder folder;
  const WordPiece wordpiece(folder.vocabulary(std::string(kSpecials) + "sea\n##side\n"));
  const Encoding encoding = wordpiece.encode("seaside sea");
  EXPECT_EQ(encoding.ids, (std::vector<int>{2, 5, 6, 5, 3}));
  EXPECT_EQ(encoding.tokens, (Tokens{"[CLS]", "sea", "##side", "sea", "[SEP]"}));
  EXPECT_EQ(wordpiece.pad_id(), 0);
  EXPECT_EQ(wordpiece.unknown_id(), 1);
  EXPECT_EQ(wordpiece.size(), 7);
}

TEST(WordPiece, TakesTheLongestEntryFromTheLeft) {
  const std::string entries = "a\nab\nabc\n##c\n##d\n##cd\n##bcd\n";
  EXPECT_EQ(inner_tokens(entries, "abcd"), (Tokens{"abc", "##d"}));
  EXPECT_EQ(inner_tokens(entries, "abd acd"), (Tokens{"ab", "##d", "a", "##cd"}));
}

TEST(WordPiece, AWordThatCannotBeSpelledIsUnknownAsAWhole) {
  EXPECT_EQ(inner_tokens("sea\n##s\n", "seas seasick sick"), (Tokens{"sea", "##s", "[UNK]", "[UNK]"}));
}

TEST(WordPiece, AContinuationNeedsItsMarks) {
  EXPECT_EQ(inner_tokens("sea\nside\n", "seaside"), (Tokens{"[UNK]"}));
  EXPECT_EQ(inner_tokens("##side\n", "side"), (Tokens{"[UNK]"}));
}

TEST(WordPiece, AWordOfMoreThanAHundredCharactersIsUnknown) {
  const std::string entries = "\u03b2\n##\u03b2\n";
  std::string word;
  for (int i = 0; i < 100; ++i) word += "\u03b2";
  EXPECT_EQ(inner_tokens(entries, word).size(), 100u);
  EXPECT_EQ(inner_tokens(entries, word + "\u03b2"), (Tokens{"[UNK]"}));
}

TEST(WordPiece, LongestEntryMayEndInsideACharacter) {
  // The longest entry has three bytes, so the search starts in the middle of the second β.
  EXPECT_EQ(inner_tokens("abc\n\u03b2\n##\u03b2\n", "\u03b2\u03b2"), (Tokens{"\u03b2", "##\u03b2"}));
}

TEST(WordPiece, LowersCaseAndStripsAccents) {
  EXPECT_EQ(inner_tokens("cafe\nelan\n", "CAFÉ Cafe\u0301 élan"), (Tokens{"cafe", "cafe", "elan"}));
  EXPECT_EQ(inner_tokens("stra\u00dfe\n\u03bf\u03b4\u03bf\u03c3\n", "STRA\u1e9eE \u039f\u0394\u039f\u03a3"),
            (Tokens{"stra\u00dfe", "\u03bf\u03b4\u03bf\u03c3"}));
}

TEST(WordPiece, KeepsCaseAndAccentsWhenAsked) {
  EXPECT_EQ(inner_tokens("Caf\u00e9\ncafe\n", "Caf\u00e9 cafe Cafe", false), (Tokens{"Caf\u00e9", "cafe", "[UNK]"}));
}

TEST(WordPiece, CaseAndAccentsAreOneChoiceEach) {
  EXPECT_EQ(one_word("caf\xC3\xA9", "CAF\xC3\x89", true, false), "caf\xC3\xA9");
  EXPECT_EQ(one_word("cafe", "CAF\xC3\x89", true, false), "[UNK]");
  EXPECT_EQ(one_word("CAFE", "CAF\xC3\x89", false, true), "CAFE");
  EXPECT_EQ(one_word("cafe\xCC\x81", "CAFE\xCC\x81", true, false), "cafe\xCC\x81");  // an accent of its own
  EXPECT_EQ(one_word("i\xCC\x87z", "\xC4\xB0Z", true, false), "i\xCC\x87z");         // I with a dot
  EXPECT_EQ(one_word("iz", "\xC4\xB0Z", true, true), "iz");
}

TEST(WordPiece, EveryPunctuationMarkIsAWord) {
  const std::string entries = "a\nb\n-\n$\n.\n\u2014\n\u00bf\n";
  EXPECT_EQ(inner_tokens(entries, "a-b$..\u2014\u00bfa"),
            (Tokens{"a", "-", "b", "$", ".", ".", "\u2014", "\u00bf", "a"}));
}

TEST(WordPiece, EveryIdeographIsAWord) {
  EXPECT_EQ(inner_tokens("a\n\u4eca\n\u5929\n", "a\u4eca\u5929a"), (Tokens{"a", "\u4eca", "\u5929", "a"}));
}

TEST(WordPiece, DropsControlsAndSplitsAtSpaces) {
  using namespace std::string_view_literals;
  EXPECT_EQ(inner_tokens("ab\n", "a\0b a\u00adb a\u200bb\x7f"sv), (Tokens{"ab", "ab", "ab"}));
  EXPECT_EQ(inner_tokens("ab\n", "ab\tab\r\nab\u00a0ab\u3000ab\u2028ab"), Tokens(6, "ab"));
}

TEST(WordPiece, DropsBytesThatAreNotUtf8) {
  EXPECT_EQ(inner_tokens("ab\n",
                         "a\xff"
                         "b \xe2\x82 a\xc3"
                         "b a\xed\xa0\x80"
                         "b a\ufffd"
                         "b"),
            Tokens(4, "ab"));
  EXPECT_EQ(inner_tokens("ab\n", "ab\xf0\x9f\x8d"), (Tokens{"ab"}));
}

TEST(WordPiece, NothingGivesTheTwoMarks) {
  EXPECT_EQ(inner_tokens("a\n", ""), Tokens{});
  EXPECT_EQ(inner_tokens("a\n", " \n\t"), Tokens{});
}

TEST(WordPiece, SpecialTokensInTheTextStandForThemselves) {
  EXPECT_EQ(inner_tokens("a\nmask\n[\n]\n", "a[MASK]a [SEP][mask]"),
            (Tokens{"a", "[MASK]", "a", "[SEP]", "[", "mask", "]"}));
}

TEST(WordPiece, CutsAtTheLimitAndKeepsTheMarks) {
  const Folder folder;
  const WordPiece wordpiece(folder.vocabulary(std::string(kSpecials) + "a\n##b\n"));
  EXPECT_EQ(wordpiece.encode("ab ab ab", 5).tokens, (Tokens{"[CLS]", "a", "##b", "a", "[SEP]"}));
  EXPECT_EQ(wordpiece.encode("ab ab ab", 8).tokens.size(), 8u);
  EXPECT_EQ(wordpiece.encode("[MASK][MASK][MASK]", 4).tokens, (Tokens{"[CLS]", "[MASK]", "[MASK]", "[SEP]"}));
  EXPECT_EQ(wordpiece.encode("ab", 2).ids, (std::vector<int>{2, 3}));
  std::string text;
  for (int i = 0; i < 400; ++i) text += "a ";
  EXPECT_EQ(wordpiece.encode(text).ids.size(), 256u);
  EXPECT_THROW(wordpiece.encode("ab", 1), std::invalid_argument);
  EXPECT_THROW(wordpiece.encode("ab", -3), std::invalid_argument);
}

TEST(WordPieceVocabulary, MayHaveWindowsLinesAndNoLastLineEnd) {
  const Folder folder;
  const WordPiece wordpiece(folder.vocabulary("[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\nsea"));
  EXPECT_EQ(wordpiece.encode("sea").ids, (std::vector<int>{2, 4, 3}));
}

TEST(WordPieceVocabulary, SaysWhatIsMissing) {
  const Folder folder;
  EXPECT_EQ(error_of(folder.path() / "absent.txt"),
            "vocabulary: cannot open " + (folder.path() / "absent.txt").string());
  EXPECT_EQ(error_of(folder.path()), "vocabulary: cannot open " + folder.path().string());
  const std::string place = (folder.path() / "vocab.txt").string();
  EXPECT_EQ(error_of(folder.vocabulary("")), "vocabulary: " + place + " has no token [PAD]");
  EXPECT_EQ(error_of(folder.vocabulary("[PAD]\n[CLS]\n[SEP]\n")), "vocabulary: " + place + " has no token [UNK]");
  EXPECT_EQ(error_of(folder.vocabulary("[PAD]\n[UNK]\n[SEP]\n")), "vocabulary: " + place + " has no token [CLS]");
  EXPECT_EQ(error_of(folder.vocabulary("[PAD]\n[UNK]\n[CLS]\n")), "vocabulary: " + place + " has no token [SEP]");
}

TEST(WordPieceVocabulary, NamesTheFaultyLine) {
  const Folder folder;
  const std::string place = (folder.path() / "vocab.txt").string();
  EXPECT_EQ(error_of(folder.vocabulary(std::string(kSpecials) + "sea\nlake\nsea\n")),
            "vocabulary: line 8 of " + place + " repeats the token 'sea' of line 6");
  EXPECT_EQ(error_of(folder.vocabulary(std::string(kSpecials) + "sea\n\nlake\n")),
            "vocabulary: line 7 of " + place + " is empty");
}

/// The real vocabulary, which the tests below need.
class OriginalWordPiece : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("MHA_MINILM_DIR");
    vocabulary_ = std::filesystem::path(folder == nullptr ? "" : folder) / "vocab.txt";
    if (folder != nullptr && std::filesystem::is_regular_file(vocabulary_)) return;
    const std::string reason = folder == nullptr ? "MHA_MINILM_DIR does not name MiniLM's folder"
                                                 : "MHA_MINILM_DIR has no " + vocabulary_.string();
    const char* ci = std::getenv("CI");
    if (ci != nullptr && std::string_view(ci) == "true") FAIL() << reason;
    GTEST_SKIP() << reason;
  }

  std::filesystem::path vocabulary_;
};

std::filesystem::path golden_file(const char* name) { return std::filesystem::path(MHA_GOLDEN_DIR) / name; }

void expect_ids(const WordPiece& wordpiece, const golden::Case& text) {
  const auto& values = text.tensor("ids").values;
  EXPECT_EQ(wordpiece.encode(text.text("text")).ids, std::vector<int>(values.begin(), values.end())) << text.name;
}

TEST_F(OriginalWordPiece, GivesTheSameIdsForSentencesOfManyScripts) {
  const WordPiece wordpiece(vocabulary_);
  const auto sentences = golden::read(golden_file("minilm_sentences.txt"));
  EXPECT_GE(sentences.size(), 60u);
  for (const auto& sentence : sentences) expect_ids(wordpiece, sentence);
}

TEST_F(OriginalWordPiece, GivesTheSameIdsForRandomAndBrokenText) {
  const WordPiece wordpiece(vocabulary_);
  int texts = 0;
  for (const auto& text : golden::read(golden_file("wordpiece.txt"))) {
    if (!text.has("ids")) continue;
    expect_ids(wordpiece, text);
    ++texts;
  }
  EXPECT_GE(texts, 300);
}

std::string utf8(std::uint32_t c) {
  std::string bytes;
  const auto add = [&](std::uint32_t byte) { bytes += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | (c >> 6)), add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | (c >> 12)), add(0x80 | ((c >> 6) & 0x3F)), add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | (c >> 18)), add(0x80 | ((c >> 12) & 0x3F)), add(0x80 | ((c >> 6) & 0x3F)), add(0x80 | (c & 0x3F));
  }
  return bytes;
}

/// FNV-1a over the ids of "a" + c + "a" for the 4096 characters of a block.
std::string hash_of_block(const WordPiece& wordpiece, std::uint32_t block) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (std::uint32_t c = block << 12; c < (block + 1) << 12; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    for (int id : wordpiece.encode("a" + utf8(c) + "a").ids) {
      for (int shift = 0; shift < 32; shift += 8) {
        hash = (hash ^ ((static_cast<std::uint32_t>(id) >> shift) & 0xFF)) * 0x100000001B3u;
      }
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

TEST_F(OriginalWordPiece, TreatsEveryCharacterOfUnicodeAlike) {
  const WordPiece wordpiece(vocabulary_);
  std::uint32_t block = 0;
  for (const auto& golden : golden::read(golden_file("wordpiece.txt"))) {
    if (!golden.has("hash")) continue;
    EXPECT_EQ(hash_of_block(wordpiece, block), golden.text("hash"))
        << "characters from " << std::hex << (block << 12) << "; if utf8proc knows a newer Unicode, extend kNewer";
    ++block;
  }
  EXPECT_EQ(block, 0x110u);
}

}  // namespace
