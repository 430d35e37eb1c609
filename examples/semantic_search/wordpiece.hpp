// SPDX-License-Identifier: Apache-2.0
// The tokeniser of uncased BERT models: text to the token numbers that a checkpoint was trained on.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace semantic_search {

/// A tokenised text: row i of the model's input is token ids[i], spelled tokens[i].
struct Encoding {
  std::vector<int> ids;             // (L), [CLS] first, [SEP] last
  std::vector<std::string> tokens;  // (L), as in vocab.txt
};

/// WordPiece tokenisation as BERT's checkpoints expect it.
///
/// Formula   clean, space out CJK, strip accents and lower-case where asked, split at spaces and punctuation; then per
///           word the longest vocabulary entry from the left, its continuations spelled "##…"; [UNK] for a word that
///           has none
/// Errors    std::runtime_error, one sentence, if the vocabulary cannot be used
/// Source    Devlin et al. 2018, §3 and the reference tokeniser released with it
class WordPiece {
 public:
  /// Reads a vocabulary: one token per line, its number is the line's, counted from 0.
  explicit WordPiece(const std::filesystem::path& vocab_txt, bool lower_case = true)
      : WordPiece(vocab_txt, lower_case, lower_case) {}
  WordPiece(const std::filesystem::path& vocab_txt, bool lower_case, bool strip_accents);

  /// Tokenises UTF-8 text, where a byte that is not valid UTF-8 counts as U+FFFD, which BERT drops. As in the original,
  /// [MASK] and its like written in the text stand for themselves. The result is cut to max_tokens, [CLS] and [SEP]
  /// included; std::invalid_argument if max_tokens < 2.
  Encoding encode(std::string_view utf8_text, int max_tokens = 256) const;

  int pad_id() const { return pad_id_; }
  int unknown_id() const { return unknown_id_; }
  int size() const { return static_cast<int>(tokens_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
  };

  int special(std::string_view token, const std::filesystem::path& vocab_txt) const;
  void append_word(std::string_view word, std::vector<int>& ids) const;

  std::vector<std::string> tokens_;  // by id
  std::unordered_map<std::string, int, Hash, std::equal_to<>> ids_;
  std::size_t longest_ = 0;  // bytes of the longest entry
  bool lower_case_, strip_accents_;
  int pad_id_ = 0;
  int unknown_id_ = 0;
  int first_id_ = 0;  // [CLS]
  int last_id_ = 0;   // [SEP]
};

}  // namespace semantic_search
