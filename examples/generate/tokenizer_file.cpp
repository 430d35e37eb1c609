// SPDX-License-Identifier: Apache-2.0
#include "tokenizer_file.hpp"

#include <charconv>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

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

/// The byte that "<0x0A>" names; nothing for any other token.
std::optional<char> named_byte(std::string_view spelled) {
  if (spelled.size() != 6 || !spelled.starts_with("<0x") || !spelled.ends_with('>')) return {};
  unsigned char byte = 0;
  const auto [end, error] = std::from_chars(spelled.data() + 3, spelled.data() + 5, byte, 16);
  if (error != std::errc() || end != spelled.data() + 5) return {};
  return static_cast<char>(byte);
}

std::string name_of(int byte) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  const auto b = static_cast<std::size_t>(byte);
  return {'<', '0', 'x', digits[b / 16], digits[b % 16], '>'};
}

std::string composed(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(out, &std::free);
  if (size < 0) throw std::runtime_error("the text is not UTF-8, which this tokenizer needs to compose characters");
  return {reinterpret_cast<const char*>(out), static_cast<std::size_t>(size)};
}

/// Reads the members of the file into a TokenizerFile, one function each.
class Reader {
 public:
  Reader(const std::filesystem::path& path, int vocabulary, TokenizerFile& into)
      : file_(path), vocabulary_(vocabulary), into_(into) {}

  void read() {
    const Json& model = object(file_.find("model"), "model");
    read_model(model);
    if (into_.characters) {
      read_blanks();
      read_decoder();
    } else {
      read_normalizer();
      read_pre_tokenizer();
    }
    read_added();
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
  /// A member that is one of a kind, or a sequence of them.
  Json parts(const Json& outer, const char* inner) const {
    return text(outer, "type") == "Sequence" ? list(find(outer, inner), inner) : Json::array({outer});
  }
  bool flag(const Json& in, const char* key) const {
    const Json* const value = find(in, key);
    if (value != nullptr && !value->is_boolean()) file_.refuse(key, *value, "true or false");
    return value != nullptr && value->get<bool>();
  }
  int id_of(const Json& value, const std::string& token) const {
    const int id = file_.positive_of(value, token.c_str(), 0);
    if (id >= kMostTokens) file_.fail("token " + std::to_string(id) + " is beyond " + std::to_string(kMostTokens));
    return id;
  }

  void read_model(const Json& model) {
    const Json* const type = find(model, "type");  // files of 2020, such as GPT-2's, have none
    if (type != nullptr && *type != "BPE") file_.refuse("model.type", *type, "\"BPE\"");
    only(model, "continuing_subword_prefix", "");
    only(model, "end_of_word_suffix", "");
    only(model, "dropout", 0.0);
    into_.whole_words = flag(model, "ignore_merges");
    into_.characters = flag(model, "byte_fallback");

    for (const auto& [spelled, id] : object(find(model, "vocab"), "vocab").items())
      if (const auto found = found_as(spelled)) put(id_of(id, spelled), *found, written_as(*found));
    if (into_.characters) {
      read_fallback(model);
    } else {
      for (int byte = 0; byte < 256; ++byte)
        if (!into_.ids.contains(std::string(1, static_cast<char>(byte))))
          file_.fail("'vocab' has no token for byte " + std::to_string(byte) + ", so it is not a byte-level one");
    }
    for (const Json& merge : list(find(model, "merges"), "merges")) read_merge(merge);
  }

  /// Of a token of the vocabulary: as it is found in a text, and as it is written.
  std::optional<std::string> found_as(const std::string& spelled) const {
    return into_.characters ? std::optional(spelled) : bytes_of(spelled);
  }
  std::string written_as(const std::string& found) const {
    if (!into_.characters) return found;
    const auto byte = named_byte(found);
    return byte ? std::string(1, *byte) : replaced(found, kBlank, " ");
  }

  /// The tokens of characters that are none: of their bytes, or the unknown one.
  void read_fallback(const Json& model) {
    into_.fuse_unknown = flag(model, "fuse_unk");
    if (const Json* const name = find(model, "unk_token")) {
      const auto found = into_.ids.find(file_.text_of(*name, "unk_token"));
      if (found == into_.ids.end()) file_.refuse("unk_token", *name, "a token of 'vocab'");
      into_.unknown = found->second;
    }
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = into_.ids.find(name_of(byte));
      if (found == into_.ids.end() && into_.unknown < 0)
        file_.fail("'vocab' has no token '" + name_of(byte) + "' and there is no 'unk_token'");
      into_.bytes[static_cast<std::size_t>(byte)] = found == into_.ids.end() ? -1 : found->second;
    }
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
    const auto a = found_as(left), b = found_as(right);
    const auto id = [&](const std::string& found) {
      const auto at = into_.ids.find(found);
      return at == into_.ids.end() ? -1 : at->second;
    };
    const TokenizerFile::Merge ids =
        a && b ? TokenizerFile::Merge{id(*a), id(*b), id(*a + *b)} : TokenizerFile::Merge{-1, -1, -1};
    if (ids.left < 0 || ids.right < 0 || ids.both < 0)
      file_.refuse("merges", merge, "two tokens of 'vocab' that are one together");
    into_.merges.push_back(ids);
  }

  void read_added() {
    const Json* const all = file_.find("added_tokens");
    if (all == nullptr) return;
    for (const Json& token : list(all, "added_tokens")) {
      if (!token.is_object()) file_.refuse("added_tokens", token, "objects");
      const std::string content = text(token, "content");
      only(token, "single_word", false);
      const Json* const id = find(token, "id");
      if (id == nullptr) file_.fail("the added token '" + content + "' has no 'id'");
      if (content.empty()) file_.refuse("content", content, "a text that is not empty");
      const TokenizerFile::AddedToken added{content, id_of(*id, content), flag(token, "lstrip"), flag(token, "rstrip")};
      if (added.id < vocabulary_) add(added, flag(token, "normalized"));
    }
  }

  void add(TokenizerFile::AddedToken token, bool normalized) {
    const auto i = static_cast<std::size_t>(token.id);
    if (into_.tokens.size() <= i) into_.tokens.resize(i + 1);
    if (normalized) token.content = normalized_by(into_, token.content);
    into_.tokens[i] = written_as(token.content);
    (normalized ? into_.normalized : into_.added).push_back(std::move(token));
  }

  void read_normalizer() {
    const Json* const normalizer = file_.find("normalizer");
    if (normalizer == nullptr) return;
    if (const std::string type = text(object(normalizer, "normalizer"), "type"); type != "NFC")
      file_.refuse("normalizer", type, "\"NFC\" or none");
    into_.nfc = true;
  }

  /// What spells blanks as ▁: a normalizer, or in newer files the pre-tokenizer.
  void read_blanks() {
    const Json* const normalizer = file_.find("normalizer");
    const Json* const pre_tokenizer = file_.find("pre_tokenizer");
    const std::string type = pre_tokenizer == nullptr ? "" : text(object(pre_tokenizer, "pre_tokenizer"), "type");
    if (type == "Metaspace") {
      if (normalizer != nullptr)
        file_.refuse("normalizer", text(object(normalizer, "normalizer"), "type"), "none beside \"Metaspace\"");
      return read_metaspace(*pre_tokenizer);
    }
    if (type == "Split") {  // Gemma's cuts at blanks, of which the normalizer leaves none
      if (const Json& pattern = object(find(*pre_tokenizer, "pattern"), "pattern"); pattern != Json{{"String", " "}})
        file_.refuse("pattern", pattern, "{\"String\":\" \"}");
      only(*pre_tokenizer, "invert", false);
    } else if (pre_tokenizer != nullptr) {
      file_.refuse("pre_tokenizer", type, "\"Metaspace\", \"Split\" or none, as 'byte_fallback' is true");
    }

    into_.blanks = Blanks::by_normalizer;
    bool replaces = false;
    for (const Json& part : parts(object(normalizer, "normalizer"), "normalizers")) {
      const std::string does = text(object(&part, "normalizers"), "type");
      if (does == "Prepend" && into_.lead == Lead::none && !replaces) {
        only(part, "prepend", kBlank);
        into_.lead = Lead::pieces;
      } else if (does == "Replace" && !replaces) {
        read_replace(part, " ", kBlank);
        replaces = true;
      } else {
        file_.refuse("normalizer", does, "\"Prepend\" and \"Replace\", or \"Replace\" alone");
      }
    }
    if (!replaces) file_.fail("'normalizer' has no \"Replace\"");
  }

  void read_metaspace(const Json& metaspace) {
    into_.blanks = Blanks::by_pre_tokenizer;
    only(metaspace, "replacement", kBlank);
    if (const Json* const split = find(metaspace, "split"); split == nullptr || *split != false)
      file_.refuse("split", split == nullptr ? Json(true) : *split, "false");
    const Json* const scheme = find(metaspace, "prepend_scheme");
    if (scheme == nullptr || *scheme == "always")
      into_.lead = Lead::pieces;
    else if (*scheme == "first")
      into_.lead = Lead::first_piece;
    else if (*scheme != "never")
      file_.refuse("prepend_scheme", *scheme, "\"always\", \"first\" or \"never\"");
  }

  void read_replace(const Json& part, std::string_view a, std::string_view b) const {
    const Json wanted{{"String", a}};
    if (const Json& pattern = object(find(part, "pattern"), "pattern"); pattern != wanted)
      file_.refuse("pattern", pattern, wanted.dump());
    if (const std::string content = text(part, "content"); content != b)
      file_.refuse("content", content, Json(b).dump());
  }

  /// What a text is made of tokens by. Only whether it begins with a blank differs.
  void read_decoder() {
    static constexpr const char* types[]{"Replace", "ByteFallback", "Fuse", "Strip"};
    std::size_t next = 0;
    for (const Json& part : parts(object(file_.find("decoder"), "decoder"), "decoders")) {
      const std::string type = text(object(&part, "decoders"), "type");
      if (next == std::size(types)) file_.refuse("decoder", type, "nothing behind \"Strip\"");
      if (type != types[next]) file_.refuse("decoder", type, Json(types[next]).dump() + " in this place");
      if (next == 0) read_replace(part, kBlank, " ");
      if (next == 3) {
        only(part, "content", " ");
        only(part, "start", 1);
        only(part, "stop", 0);
        into_.strips_blank = true;
      }
      ++next;
    }
    if (next < 3) file_.fail("'decoder' has no " + Json(types[next]).dump());
  }

  /// GPT-2's ByteLevel cuts by its own pattern; later ones are a Split by a pattern and a ByteLevel that does not cut.
  void read_pre_tokenizer() {
    const Json& outer = object(file_.find("pre_tokenizer"), "pre_tokenizer");
    bool byte_level = false;
    for (const Json& part : parts(outer, "pretokenizers")) {
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

  void put(int id, const std::string& found, const std::string& written) {
    if (found.empty()) return;
    const auto i = static_cast<std::size_t>(id);
    if (into_.tokens.size() <= i) into_.tokens.resize(i + 1);
    if (!into_.tokens[i].empty()) file_.fail("'vocab' has two tokens with the id " + std::to_string(id));
    into_.tokens[i] = written;
    into_.ids.emplace(found, id);
  }

  mha::ConfigFile file_;
  int vocabulary_;
  TokenizerFile& into_;
};

}  // namespace

TokenizerFile::TokenizerFile() {
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
    ids.emplace(tokens.back(), byte);
  }
}

TokenizerFile::TokenizerFile(const std::filesystem::path& path, int vocabulary) {
  Reader(path, vocabulary, *this).read();
}

std::string normalized_by(const TokenizerFile& file, std::string_view text) {
  if (file.nfc) return composed(text);
  if (file.blanks != Blanks::by_normalizer) return std::string(text);
  return std::string(file.lead == Lead::none ? "" : kBlank) + replaced(text, " ", kBlank);
}

std::string replaced(std::string_view text, std::string_view a, std::string_view b) {
  std::string out;
  for (std::size_t at = text.find(a); at != text.npos; at = text.find(a)) {
    out.append(text.substr(0, at)).append(b);
    text.remove_prefix(at + a.size());
  }
  return out.append(text);
}

}  // namespace generate
