// SPDX-License-Identifier: Apache-2.0
#include "tokenizer_file.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>

#include <utf8proc.h>

#include <mha/io.hpp>

namespace generate {
namespace {

using Json = mha::ConfigFile::Json;

constexpr int kMostTokens = 10'000'000;

/// The character that spells each byte: itself where it can be seen, and the others from U+0100 on.
std::array<int, 256> spelling() {
  std::array<int, 256> of{};
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    of[static_cast<std::size_t>(byte)] = visible ? byte : next++;
  }
  return of;
}

/// The bytes that a token is spelled as; nothing if a character spells none.
std::optional<std::string> bytes_of(std::string_view spelled) {
  static const auto byte_of = [] {
    std::unordered_map<int, char> all;
    const auto of = spelling();
    for (std::size_t byte = 0; byte < of.size(); ++byte) all.emplace(of[byte], static_cast<char>(byte));
    return all;
  }();
  std::string bytes;
  while (!spelled.empty()) {
    utf8proc_int32_t c = 0;
    const auto read = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(spelled.data()),
                                       static_cast<utf8proc_ssize_t>(spelled.size()), &c);
    const auto found = byte_of.find(c);
    if (read <= 0 || found == byte_of.end()) return {};
    bytes += found->second;
    spelled.remove_prefix(static_cast<std::size_t>(read));
  }
  return bytes;
}

/// Reads the members of the file into a TokenizerFile, one function each.
class Reader {
 public:
  Reader(const std::filesystem::path& path, TokenizerFile& into) : file_(path), into_(into) {}

  void read() {
    const Json& model = object(file_.find("model"), "model");
    read_model(model);
    read_added();
    read_normalizer();
    read_pre_tokenizer();
    if (const Json* const processor = file_.find("post_processor")) read_post_processor(*processor);
  }

 private:
  const Json& object(const Json* value, const char* key) const {
    if (value == nullptr) file_.missing(key);
    if (!value->is_object()) file_.refuse(key, *value, "an object");
    return *value;
  }
  const Json& list(const Json* value, const char* key) const {
    if (value == nullptr) file_.missing(key);
    if (!value->is_array()) file_.refuse(key, *value, "a list");
    return *value;
  }
  const Json* find(const Json& in, const char* key) const { return mha::ConfigFile::found_in(in, key); }
  std::string text(const Json& in, const char* key) const {
    const Json* const value = find(in, key);
    if (value == nullptr) file_.missing(key);
    return file_.text_of(*value, key);
  }
  /// Refuses a member that is there and says something else.
  void only(const Json& in, const char* key, const Json& supported) const {
    const Json* const value = find(in, key);
    if (value != nullptr && *value != supported) file_.refuse(key, *value, supported.dump());
  }
  int id_of(const Json& value, const std::string& token) const {
    const int id = file_.positive_of(value, token.c_str(), 0);
    if (id >= kMostTokens) file_.fail("token " + std::to_string(id) + " is beyond " + std::to_string(kMostTokens));
    return id;
  }

  void read_model(const Json& model) {
    const Json* const type = find(model, "type");  // files of 2020, such as GPT-2's, have none
    if (type != nullptr && *type != "BPE") file_.refuse("model.type", *type, "\"BPE\"");
    only(model, "byte_fallback", false);
    only(model, "continuing_subword_prefix", "");
    only(model, "end_of_word_suffix", "");
    only(model, "dropout", 0.0);
    const Json* const whole = find(model, "ignore_merges");
    into_.whole_words = whole != nullptr && *whole == true;

    for (const auto& [spelled, id] : object(find(model, "vocab"), "vocab").items()) {
      const auto bytes = bytes_of(spelled);
      if (bytes) put(id_of(id, spelled), *bytes);
    }
    for (int byte = 0; byte < 256; ++byte)
      if (!ids_.contains(std::string(1, static_cast<char>(byte))))
        file_.fail("'vocab' has no token for byte " + std::to_string(byte) + ", so it is not a byte-level one");
    for (const Json& merge : list(find(model, "merges"), "merges")) read_merge(merge);
  }

  /// "Ġ t", or ["Ġ", "t"] in newer files.
  void read_merge(const Json& merge) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2) {
      left = file_.text_of(merge[0], "merges");
      right = file_.text_of(merge[1], "merges");
    } else {
      const std::string both = file_.text_of(merge, "merges");
      const std::size_t blank = both.find(' ');
      left = both.substr(0, blank);
      right = blank == both.npos ? "" : both.substr(blank + 1);
    }
    const auto a = bytes_of(left), b = bytes_of(right);
    if (!a || !b || !ids_.contains(*a) || !ids_.contains(*b) || !ids_.contains(*a + *b))
      file_.refuse("merges", merge, "two tokens of 'vocab' that are one together");
    into_.merges.emplace_back(ids_.at(*a), ids_.at(*b));
  }

  void read_added() {
    const Json* const all = file_.find("added_tokens");
    if (all == nullptr) return;
    for (const Json& token : list(all, "added_tokens")) {
      if (!token.is_object()) file_.refuse("added_tokens", token, "objects");
      const std::string content = text(token, "content");
      for (const char* key : {"single_word", "lstrip", "rstrip"}) only(token, key, false);
      const Json* const id = find(token, "id");
      if (id == nullptr) file_.fail("the added token '" + content + "' has no 'id'");
      if (content.empty()) file_.refuse("content", content, "a text that is not empty");
      into_.added.emplace_back(content, id_of(*id, content));
    }
  }

  void read_normalizer() {
    const Json* const normalizer = file_.find("normalizer");
    if (normalizer == nullptr) return;
    if (const std::string type = text(object(normalizer, "normalizer"), "type"); type != "NFC")
      file_.refuse("normalizer", type, "\"NFC\" or none");
    into_.nfc = true;
  }

  /// GPT-2's ByteLevel cuts by its own pattern; later ones are a Split by a pattern and a ByteLevel that does not cut.
  void read_pre_tokenizer() {
    const Json& outer = object(file_.find("pre_tokenizer"), "pre_tokenizer");
    const bool sequence = text(outer, "type") == "Sequence";
    const Json parts = sequence ? list(find(outer, "pretokenizers"), "pretokenizers") : Json::array({outer});
    bool byte_level = false;
    for (const Json& part : parts) {
      const std::string type = text(object(&part, "pretokenizers"), "type");
      if (byte_level) file_.refuse("pre_tokenizer", type, "nothing behind \"ByteLevel\"");
      if (type == "ByteLevel") {
        byte_level = true;
        only(part, "add_prefix_space", false);
        const Json* const cuts = find(part, "use_regex");
        if (cuts == nullptr || *cuts == true) set_split(Split::gpt2);
      } else if (type == "Split") {
        only(part, "behavior", "Isolated");
        only(part, "invert", false);
        const Json& pattern = object(find(part, "pattern"), "pattern");
        const auto split = split_of(text(pattern, "Regex"));
        if (!split) file_.refuse("pattern", pattern, "the one of GPT-2, LLaMA 3 or Qwen 2");
        set_split(*split);
      } else {
        file_.refuse("pre_tokenizer", type, "\"ByteLevel\", or \"Split\" and \"ByteLevel\"");
      }
    }
    if (!byte_level) file_.fail("'pre_tokenizer' has no \"ByteLevel\"");
  }
  void set_split(Split split) {
    if (into_.split != Split::none) file_.fail("'pre_tokenizer' cuts the text twice");
    into_.split = split;
  }

  /// Only a template adds tokens, such as LLaMA 3's <|begin_of_text|>.
  void read_post_processor(const Json& processor) {
    const std::string type = text(object(&processor, "post_processor"), "type");
    if (type == "Sequence") {
      for (const Json& part : list(find(processor, "processors"), "processors")) read_post_processor(part);
    } else if (type == "TemplateProcessing") {
      const Json& known = object(find(processor, "special_tokens"), "special_tokens");
      auto* into = &into_.prefix;
      for (const Json& part : list(find(processor, "single"), "single")) {
        if (!part.is_object()) file_.refuse("single", part, "objects");
        const Json* const special = find(part, "SpecialToken");
        if (special == nullptr) {
          into = &into_.suffix;  // behind the text itself
          continue;
        }
        const std::string name = text(object(special, "SpecialToken"), "id");
        const Json& token = object(find(known, name.c_str()), name.c_str());
        for (const Json& id : list(find(token, "ids"), "ids")) into->push_back(id_of(id, name));
      }
    } else if (type != "ByteLevel") {
      file_.refuse("post_processor", type, "\"TemplateProcessing\" or \"ByteLevel\"");
    }
  }

  void put(int id, const std::string& bytes) {
    if (bytes.empty()) return;
    const auto i = static_cast<std::size_t>(id);
    if (into_.tokens.size() <= i) into_.tokens.resize(i + 1);
    if (!into_.tokens[i].empty()) file_.fail("'vocab' has two tokens with the id " + std::to_string(id));
    into_.tokens[i] = bytes;
    ids_.emplace(bytes, id);
  }

  mha::ConfigFile file_;
  TokenizerFile& into_;
  std::unordered_map<std::string, int> ids_;  // by bytes
};

}  // namespace

TokenizerFile::TokenizerFile(const std::filesystem::path& path) { Reader(path, *this).read(); }

}  // namespace generate
