// SPDX-License-Identifier: Apache-2.0
// Text to tokens and tokens to bytes: byte-level byte-pair encoding, or every byte a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "split.hpp"

namespace generate {

/// Formula   words as the split cuts them; in each, bytes, of which the pair whose merge is first in the list becomes
///           one token, the leftmost of equal ones, until no merge is left
/// Errors    std::runtime_error, one sentence, if a text has to be composed (NFC) and is not UTF-8
/// Source    Sennrich et al. 2016, Neural machine translation of rare words with subword units, §3.2; over bytes:
/// Radford
///           et al. 2019, §2.2
class Tokenizer {
 public:
  /// Token b is byte b.
  Tokenizer();
  /// Errors    as TokenizerFile
  explicit Tokenizer(const std::filesystem::path& tokenizer_json);

  std::vector<int> encode(std::string_view text) const;
  /// The bytes of a token, maybe only a part of a character; none if there is no such token.
  std::string_view bytes(int id) const;
  /// One more than the largest token.
  int size() const { return static_cast<int>(tokens_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
  };
  struct Merge {
    int rank, token;
  };

  const Merge* merge_of(int left, int right) const;
  void append_text(std::string_view text, std::vector<int>& ids) const;
  void append_word(std::string_view word, std::vector<int>& ids) const;

  std::vector<std::string> tokens_;  // by id
  std::unordered_map<std::string, int, Hash, std::equal_to<>> ids_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by both tokens
  std::vector<std::pair<std::string, int>> added_;
  std::vector<int> prefix_, suffix_;
  Split split_ = Split::none;
  bool nfc_ = false, whole_words_ = false;
};

}  // namespace generate
