// SPDX-License-Identifier: Apache-2.0
// How byte-level tokenisers cut a text into words before they look for tokens: no token spans two words.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace generate {

/// Which of the known patterns cuts. tokenizer.json has them as regular expressions; here they are written by hand.
enum class Split {
  none,    ///< the text is one word
  gpt2,    ///< 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  llama3,  ///< (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|…
  qwen2,   ///< as llama3, with \p{N} for \p{N}{1,3}
};

/// The pattern of this regular expression, if it is a known one.
std::optional<Split> split_of(std::string_view regular_expression);

/// The words of a text, which are all of it. A byte that is not UTF-8 is neither letter nor digit nor space.
std::vector<std::string_view> split_words(std::string_view text, Split how);

/// How many bytes at the front, or at the back, of a text are spaces: \s of the patterns.
std::size_t spaces_in_front(std::string_view text);
std::size_t spaces_behind(std::string_view text);

}  // namespace generate
