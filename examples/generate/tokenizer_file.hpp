// SPDX-License-Identifier: Apache-2.0
// tokenizer.json, as Hugging Face's tokenizers write it, of a byte-level BPE: GPT-2's, LLaMA 3's and Qwen's kind.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "split.hpp"

namespace generate {

/// What the file says, with tokens as the bytes they stand for. The file spells every byte as a character of its own, a
/// blank as Ġ.
///
/// Errors    mha::SafetensorsError, one sentence that names the file, if it is of another kind or contradicts itself
struct TokenizerFile {
  explicit TokenizerFile(const std::filesystem::path& path);

  std::vector<std::string> tokens;                 // of the vocabulary, by id; empty where there is none
  std::vector<std::pair<int, int>> merges;         // tokens that become one, the first before the others
  std::vector<std::pair<std::string, int>> added;  // found in a text before anything else, such as <|endoftext|>
  std::vector<int> prefix, suffix;                 // around every text
  Split split = Split::none;
  bool nfc = false;          // texts are composed first, e + ´ to é
  bool whole_words = false;  // a word that is a token is that token, whatever the merges would make of it
};

}  // namespace generate
