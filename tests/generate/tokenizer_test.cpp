// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "golden.hpp"
#include "scratch.hpp"
#include "text_stream.hpp"

namespace {

using generate::Tokenizer;
namespace fs = std::filesystem;

fs::path file_of(const std::string& name) { return fs::path(MHA_GOLDEN_DIR) / "bpe" / (name + ".json"); }

std::string decoded(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  std::string text;
  for (const int id : ids) text += tokenizer.bytes(id);
  return text;
}

TEST(Tokenizer, MakesTheIdsOfHuggingFaces) {
  std::map<std::string, Tokenizer> tokenizers;
  std::map<std::string, int> cases;
  for (const golden::Case& c : golden::read(fs::path(MHA_GOLDEN_DIR) / "bpe.txt")) {
    if (!tokenizers.contains(c.name)) tokenizers.emplace(c.name, Tokenizer(file_of(c.name)));
    const auto& stored = c.tensor("ids").values;
    const std::vector<int> ids = tokenizers.at(c.name).encode(c.text("text"));
    EXPECT_EQ(ids, std::vector<int>(stored.begin(), stored.end())) << c.name << ": '" << c.text("text") << "'";
    ++cases[c.name];
  }
  for (const char* name : {"gpt2", "llama3", "qwen2"}) EXPECT_GT(cases[name], 70) << name;
}

/// What a stream writes of tokens.
std::string streamed(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  std::ostringstream out;
  generate::TextStream stream(out, tokenizer.strips_blank());
  for (const int id : ids) stream.write(tokenizer.bytes(id));
  stream.finish();
  return out.str();
}

TEST(TokenizerOverCharacters, MakesTheIdsAndTextsOfHuggingFaces) {
  const mha_test::Scratch scratch;
  std::map<std::string, Tokenizer> variants;
  std::map<std::string, int> texts, streams;
  for (const golden::Case& c : golden::read(fs::path(MHA_GOLDEN_DIR) / "bpe_characters.txt")) {
    if (c.name == "variant") {
      nlohmann::json file;
      std::ifstream(file_of("llama2")) >> file;
      file.merge_patch(nlohmann::json::parse(c.text("change")));
      variants.emplace(c.text("name"), Tokenizer(scratch.write("tokenizer.json", file.dump())));
      continue;
    }
    const auto& stored = c.tensor("ids").values;
    const std::vector<int> ids(stored.begin(), stored.end());
    if (c.has("text")) {
      EXPECT_EQ(variants.at(c.name).encode(c.text("text")), ids) << c.name << ": '" << c.text("text") << "'";
      ++texts[c.name];
    } else {
      EXPECT_EQ(streamed(variants.at(c.name), ids), c.text("decoded")) << c.name;
      ++streams[c.name];
    }
  }
  EXPECT_EQ(texts.size(), 11u);
  for (const auto& [name, count] : texts) EXPECT_GT(count, 20) << name;
  EXPECT_EQ(streams, (std::map<std::string, int>{{"llama2", 40}, {"gemma", 40}, {"normalized", 1}}));
}

// Hugging Face's tokenizers writes U+FFFD for all bytes of a row that is no text as a whole; here the character is
// written before it is known that the row ends badly.
TEST(TokenizerOverCharacters, StreamsCharactersOfBytesAsTheyAreComplete) {
  const Tokenizer tokenizer(file_of("llama2"));
  std::ostringstream out;
  generate::TextStream stream(out);
  const auto write = [&](int byte) { stream.write(tokenizer.bytes(3 + byte)); };
  for (const int byte : {0xE6, 0x97}) write(byte);
  EXPECT_EQ(out.str(), "");
  write(0xA5);
  EXPECT_EQ(out.str(), "\xE6\x97\xA5");
  write(0xFF);
  EXPECT_EQ(out.str(), "\xE6\x97\xA5\xEF\xBF\xBD");
}

// Bytes that are not UTF-8 too; <s> goes before the text, and the blank of the first word.
TEST(TokenizerOverCharacters, TokensAreTheBytesOfTheText) {
  const Tokenizer tokenizer(file_of("llama2"));
  std::mt19937 draw(2);
  for (int n = 0; n < 50; ++n) {
    std::string text(1 + draw() % 40, ' ');
    for (char& c : text) c = static_cast<char>(draw() % 3 == 0 ? draw() % 256 : 'a' + draw() % 5);
    EXPECT_EQ(decoded(tokenizer, tokenizer.encode(text)), "<s> " + text);
  }
}

// The whole text is one word.
TEST(TokenizerOverCharacters, MergesLongTexts) {
  const Tokenizer tokenizer(file_of("llama2"));
  std::string text;
  while (text.size() < 100'000) text += "the attention of derivative works, \xE6\x97\xA5 ";
  const std::vector<int> ids = tokenizer.encode(text);
  EXPECT_LT(ids.size(), text.size() / 2);
  EXPECT_EQ(decoded(tokenizer, ids), "<s> " + text);
}

// Whatever bytes they are: no text is lost, but that Qwen's are composed first.
TEST(Tokenizer, TokensAreTheBytesOfTheText) {
  std::mt19937 draw(1);
  for (const Tokenizer& tokenizer : {Tokenizer(), Tokenizer(file_of("gpt2"))}) {
    for (int n = 0; n < 50; ++n) {
      std::string text(draw() % 40, ' ');
      for (char& c : text) c = static_cast<char>(draw() % 3 == 0 ? draw() % 256 : 'a' + draw() % 5);
      EXPECT_EQ(decoded(tokenizer, tokenizer.encode(text)), text);
    }
  }
  EXPECT_EQ(decoded(Tokenizer(file_of("qwen2")), Tokenizer(file_of("qwen2")).encode("cafe\xCC\x81")), "caf\xC3\xA9");
}

// The normalizer sees a text before added tokens with `normalized` are found, and those without are found before it:
// the ids are those of Hugging Face's tokenizers.
TEST(Tokenizer, FindsAddedTokensBeforeAndBehindTheNormalizer) {
  const mha_test::Scratch scratch;
  nlohmann::json file;
  std::ifstream(file_of("qwen2")) >> file;
  const auto add = [&](int id, const char* content, bool normalized) {
    file["added_tokens"].push_back({{"id", id}, {"content", content}, {"normalized", normalized}});
  };
  add(503, "qj", false);
  add(504, "xqj", true);
  add(505, "cafe\xCC\x81", true);
  add(506, "e\xCC\x81x", false);
  const Tokenizer tokenizer(scratch.write("tokenizer.json", file.dump()));
  const std::vector<int> x = tokenizer.encode("x");
  ASSERT_EQ(x.size(), 1u);
  EXPECT_EQ(tokenizer.encode("xqj"), (std::vector<int>{x[0], 503}));
  for (const char* cafe : {"cafe\xCC\x81", "caf\xC3\xA9"}) EXPECT_EQ(tokenizer.encode(cafe), std::vector<int>{505});
  EXPECT_EQ(tokenizer.encode("xe\xCC\x81x"), (std::vector<int>{x[0], 506}));
  EXPECT_EQ(tokenizer.encode("\xC3\xA9x"), (std::vector<int>{127, 102, x[0]}));
}

// Gemma has thousands of added tokens, two line breaks among them: for each the text is searched once, not once for
// each paragraph.
TEST(Tokenizer, FindsManyAddedTokensInALongText) {
  const mha_test::Scratch scratch;
  nlohmann::json file;
  std::ifstream(file_of("gpt2")) >> file;
  for (int id = 503; id < 1503; ++id)
    file["added_tokens"].push_back({{"id", id}, {"content", "the unused " + std::to_string(id)}});
  file["added_tokens"].push_back({{"id", 1503}, {"content", "\n\n"}});
  const Tokenizer tokenizer(scratch.write("tokenizer.json", file.dump()));
  std::string text;
  for (int i = 0; i < 500; ++i) text += "the attention of the unused derivative work\n\n";
  const std::vector<int> ids = tokenizer.encode(text);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1503), 500);
  EXPECT_EQ(decoded(tokenizer, ids), text);
}

TEST(Tokenizer, OfBytesHasThem) {
  const Tokenizer bytes;
  EXPECT_EQ(bytes.size(), 256);
  EXPECT_EQ(bytes.encode("a\xFF "), (std::vector<int>{97, 255, 32}));
  EXPECT_EQ(bytes.bytes(256), "");
  EXPECT_EQ(bytes.bytes(-1), "");
}

// A word of n letters is merged in n log n steps; a plain search for each merge would take minutes here.
TEST(Tokenizer, MergesLongWords) {
  const Tokenizer tokenizer(file_of("gpt2"));
  std::string word;
  for (int i = 0; i < 200'000; ++i) word += "atention"[i % 8];
  EXPECT_EQ(decoded(tokenizer, tokenizer.encode(word)), word);
}

TEST(Tokenizer, RefusesTextThatItCannotCompose) {
  EXPECT_EQ(
      mha_test::message_of<std::exception>([] { static_cast<void>(Tokenizer(file_of("qwen2")).encode("a\xFF")); }),
      "the text is not UTF-8, which this tokenizer needs to compose characters");
}

// GPT-2's own file has merges as texts with a blank between, and does not say that it is a BPE.
TEST(TokenizerFile, ReadsOlderFiles) {
  nlohmann::json file;
  std::ifstream(file_of("gpt2")) >> file;
  for (auto& merge : file["model"]["merges"]) merge = merge[0].get<std::string>() + ' ' + merge[1].get<std::string>();
  file["model"].erase("type");
  const mha_test::Scratch scratch;
  const Tokenizer older(scratch.write("tokenizer.json", file.dump())), newer(file_of("gpt2"));
  const std::string text = "the rights of the Licensor, 2004 Apache";
  EXPECT_EQ(older.encode(text), newer.encode(text));
  EXPECT_LT(older.encode(text).size(), text.size() / 2);
}

// A model without rows for them could not read them.
TEST(TokenizerFile, KnowsNoAddedTokensBeyondTheVocabulary) {
  const Tokenizer all(file_of("gpt2")), fewer(file_of("gpt2"), 501);
  EXPECT_EQ(all.encode("a<|begin|>").back(), 502);
  EXPECT_EQ(all.size(), 503);
  EXPECT_GT(fewer.encode("a<|begin|>").size(), 2u);
  EXPECT_EQ(decoded(fewer, fewer.encode("a<|begin|>")), "a<|begin|>");
  EXPECT_EQ(fewer.encode("<|end|>"), std::vector<int>{500});
  EXPECT_EQ(fewer.size(), 501);
}

// Each change of a file that can be read makes one that is refused, by a sentence with these words.
TEST(TokenizerFile, RefusesOtherKinds) {
  struct Change {
    const char* name;
    const char* pointer;
    nlohmann::json value;
    const char* words;
  };
  const Change changes[]{
      {"gpt2", "/model/type", "Unigram", "'model.type' is \"Unigram\", expected \"BPE\""},
      {"gpt2", "/model/byte_fallback", true, "'vocab' has no token '<0x00>' and there is no 'unk_token'"},
      {"gpt2", "/model/byte_fallback", 1, "'byte_fallback' is 1, expected true or false"},
      {"gpt2", "/model/end_of_word_suffix", "</w>", "'end_of_word_suffix' is \"</w>\", expected \"\""},
      {"gpt2", "/model/dropout", 0.1, "'dropout' is 0.1, expected 0.0"},
      {"gpt2", "/model/vocab", {{"a", 0}}, "'vocab' has no token for byte 0, so it is not a byte-level one"},
      {"gpt2", "/model/vocab/b", 64, "'vocab' has two tokens with the id 64"},
      {"gpt2", "/model/vocab/b", -1, "'b' is -1, expected an integer from 0 to 2147483647"},
      {"gpt2", "/model/vocab/b", 2147483647, "token 2147483647 is beyond 10000000"},
      {"gpt2", "/model/merges/0", "a", "expected two tokens of 'vocab' that are one together"},
      {"gpt2", "/model/merges/0", "a qqq", "expected two tokens of 'vocab' that are one together"},
      {"gpt2", "/model/merges", 3, "'merges' is 3, expected a list"},
      {"gpt2", "/model", nullptr, "there is no 'model'"},
      {"gpt2", "/normalizer", {{"type", "Lowercase"}}, "'normalizer' is \"Lowercase\", expected \"NFC\" or none"},
      {"gpt2", "/pre_tokenizer/add_prefix_space", true, "'add_prefix_space' is true, expected false"},
      {"gpt2", "/pre_tokenizer/type", "Metaspace", "'pre_tokenizer' is \"Metaspace\", expected \"ByteLevel\""},
      {"gpt2", "/pre_tokenizer", nullptr, "there is no 'pre_tokenizer'"},
      {"llama3", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+",
       "expected the one of GPT-2, LLaMA 3 or Qwen 2"},
      {"llama2", "/model/byte_fallback", false, "'vocab' has no token for byte 0, so it is not a byte-level one"},
      {"llama2", "/model/unk_token", "<none>", "'unk_token' is \"<none>\", expected a token of 'vocab'"},
      {"llama2", "/model/merges/0", "t qqq", "expected two tokens of 'vocab' that are one together"},
      {"llama2",
       "/pre_tokenizer",
       {{"type", "ByteLevel"}},
       "'pre_tokenizer' is \"ByteLevel\", expected \"Metaspace\", \"Split\" or none, as 'byte_fallback' is true"},
      {"llama2",
       "/pre_tokenizer",
       {{"type", "Metaspace"}, {"split", false}},
       "'normalizer' is \"Sequence\", expected none beside \"Metaspace\""},
      {"llama2",
       "/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", " "}}}},
       "'pattern' is {\"Regex\":\" \"}, expected {\"String\":\" \"}"},
      {"llama2",
       "/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"invert", true}},
       "'invert' is true, expected false"},
      {"first", "/pre_tokenizer/split", true, "'split' is true, expected false"},
      {"first", "/pre_tokenizer/split", nullptr, "'split' is true, expected false"},
      {"first", "/pre_tokenizer/replacement", "_", "'replacement' is \"_\", expected \"\xE2\x96\x81\""},
      {"first", "/pre_tokenizer/prepend_scheme", "last",
       "'prepend_scheme' is \"last\", expected \"always\", \"first\" or \"never\""},
      {"llama2", "/normalizer", nullptr, "there is no 'normalizer'"},
      {"llama2",
       "/normalizer",
       {{"type", "NFC"}},
       "'normalizer' is \"NFC\", expected \"Prepend\" and \"Replace\", or \"Replace\" alone"},
      {"llama2", "/normalizer/normalizers/0/prepend", "_", "'prepend' is \"_\", expected \"\xE2\x96\x81\""},
      {"llama2", "/normalizer/normalizers/1/type", "Prepend", "'normalizer' is \"Prepend\", expected"},
      {"llama2", "/normalizer/normalizers/1/content", "_", "'content' is \"_\", expected \"\xE2\x96\x81\""},
      {"llama2", "/normalizer/normalizers", nlohmann::json::array(), "'normalizer' has no \"Replace\""},
      {"llama2", "/decoder", nullptr, "there is no 'decoder'"},
      {"llama2", "/decoder/decoders", nlohmann::json::array(), "'decoder' has no \"Replace\""},
      {"llama2", "/decoder/decoders/1/type", "Fuse", "'decoder' is \"Fuse\", expected \"ByteFallback\" in this place"},
      {"llama2", "/decoder/decoders/3/start", 2, "'start' is 2, expected 1"},
      {"llama2", "/decoder/decoders/3/stop", 1, "'stop' is 1, expected 0"},
      {"llama2", "/decoder/decoders/4", {{"type", "Fuse"}}, "'decoder' is \"Fuse\", expected nothing behind \"Strip\""},
      {"llama3", "/pre_tokenizer/pretokenizers/0/behavior", "Removed",
       "'behavior' is \"Removed\", expected \"Isolated\""},
      {"llama3", "/pre_tokenizer/pretokenizers/1/use_regex", true, "'pre_tokenizer' cuts the text twice"},
      {"llama3", "/post_processor/processors/1/type", "RobertaProcessing", "'post_processor' is \"RobertaProcessing\""},
      {"llama3", "/added_tokens/0/lstrip", 1, "'lstrip' is 1, expected true or false"},
      {"llama3", "/added_tokens/0/single_word", true, "'single_word' is true, expected false"},
      {"llama3", "/added_tokens/0/content", "", "'content' is \"\", expected a text that is not empty"},
  };
  const mha_test::Scratch scratch;
  for (const Change& change : changes) {
    nlohmann::json file;
    const std::string name = change.name;
    std::ifstream(file_of(name == "first" ? "llama2" : name)) >> file;
    if (name == "first") {
      file["normalizer"] = nullptr;
      file["pre_tokenizer"] = {{"type", "Metaspace"}, {"split", false}};
    }
    file[nlohmann::json::json_pointer(change.pointer)] = change.value;
    const auto path = scratch.write("tokenizer.json", file.dump());
    const std::string said = mha_test::message_of<std::exception>([&] { Tokenizer{path}; });
    EXPECT_NE(said.find(change.words), std::string::npos) << change.pointer << ": " << said;
    EXPECT_EQ(said.find(path.string()), 0u) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
}

}  // namespace
