// SPDX-License-Identifier: Apache-2.0
// tokenizer.json, as Hugging Face's tokenizers write it, of a BPE: over bytes, as those of GPT-2, LLaMA 3 and Qwen, or
// over characters, as those that come from SentencePiece: of LLaMA 2, TinyLlama, Mistral 7B and Gemma.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "split.hpp"

namespace generate {

struct TokenHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};
using TokenIds = std::unordered_map<std::string, int, TokenHash, std::equal_to<>>;

/// Who replaces the blanks of a text by U+2581, "▁", as tokens over characters spell them. Added tokens are found in a
/// text before a pre-tokenizer sees it; the normalizer sees it before those with `normalized` are found.
enum class Blanks { kept, by_normalizer, by_pre_tokenizer };

/// Where ▁ is put before a text, which added tokens cut into pieces. A pre-tokenizer puts none before another ▁.
enum class Lead { none, pieces, first_piece };

/// What the file says. Tokens over bytes are as the bytes they stand for, which the file spells as a character each, a
/// blank as Ġ.
///
/// Errors    mha::SafetensorsError, one sentence that names the file, if it is of another kind or contradicts itself
struct TokenizerFile {
  struct Merge {
    int left, right, both;
  };
  struct AddedToken {
    std::string content;
    int id;
    bool strips_left = false, strips_right = false;  // the blanks beside it are a part of it
  };
  using Added = std::vector<AddedToken>;

  /// Every byte is a token, and nothing merges.
  TokenizerFile();
  /// Added tokens from `vocabulary` on, which a model has no rows for, are not found in a text.
  explicit TokenizerFile(const std::filesystem::path& path, int vocabulary = std::numeric_limits<int>::max());

  std::vector<std::string> tokens;  // as they are written, by id; empty where there is none
  TokenIds ids;                     // of the vocabulary, as it is found in a text
  std::vector<Merge> merges;        // the first before the others
  Added added;                      // found in a text before anything else, such as <|endoftext|>
  Added normalized;                 // found in what the normalizer makes of the text between those
  std::vector<int> prefix, suffix;  // around every text
  Split split = Split::none;
  bool nfc = false;          // texts are composed first, e + ´ to é
  bool whole_words = false;  // a word that is a token is that token, whatever the merges would make of it

  // Of a BPE over characters:
  bool characters = false;
  Blanks blanks = Blanks::kept;
  Lead lead = Lead::none;
  bool strips_blank = false;     // a decoded text is written without the first of its blanks
  std::array<int, 256> bytes{};  // of a character that is no token; −1 where there is none
  int unknown = -1;              // for a character with such a byte
  bool fuse_unknown = false;     // one for several in a row
};

/// What the normalizer makes of a text.
///
/// Errors    std::runtime_error, one sentence, if the text has to be composed (NFC) and is not UTF-8
std::string normalized_by(const TokenizerFile& file, std::string_view text);
/// Writes b for every a.
std::string replaced(std::string_view text, std::string_view a, std::string_view b);
inline constexpr std::string_view kBlank = "\xE2\x96\x81";  // U+2581, "▁"

}  // namespace generate
