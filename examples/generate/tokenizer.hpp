// SPDX-License-Identifier: Apache-2.0
// Text to tokens and tokens to bytes: byte-pair encoding over bytes or characters, or every byte a token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer_file.hpp"

namespace generate {

/// Formula   words as the split cuts them; in each, bytes or characters, of which the pair whose merge is first in the
///           list becomes one token, the leftmost of equal ones, until no merge is left
/// Errors    std::runtime_error, one sentence, if a text has to be composed (NFC) and is not UTF-8
/// Source    Sennrich et al. 2016, Neural machine translation of rare words with subword units, §3.2; over bytes:
///           Radford et al. 2019, §2.2; bytes for the other characters: Kudo and Richardson 2018, SentencePiece
class Tokenizer {
 public:
  /// Token b is byte b.
  Tokenizer() = default;
  /// `vocabulary`, Errors   as TokenizerFile
  explicit Tokenizer(const std::filesystem::path& tokenizer_json, int vocabulary = std::numeric_limits<int>::max());

  std::vector<int> encode(std::string_view text) const;
  /// The bytes of a token, maybe only a part of a character; none if there is no such token.
  std::string_view bytes(int id) const;
  /// One more than the largest token.
  int size() const { return static_cast<int>(file_.tokens.size()); }
  /// Whether a text of tokens is written without the first of its blanks, which encode() put there.
  bool strips_blank() const { return file_.strips_blank; }

 private:
  struct Merge {
    int rank, token;
  };

  const Merge* merge_of(int left, int right) const;
  void append_text(std::string_view text, bool first, std::vector<int>& ids) const;
  void append_word(std::string_view word, std::vector<int>& ids) const;
  std::vector<int> characters_of(std::string_view word) const;

  TokenizerFile file_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by both tokens
};

}  // namespace generate
