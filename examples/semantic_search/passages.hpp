// SPDX-License-Identifier: Apache-2.0
// Text files cut into the pieces that a search returns.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace semantic_search {

enum class Split { line, paragraph };

struct Passage {
  std::string file;
  int line = 0;         // where it begins, counted from 1
  std::string heading;  // the Markdown heading above it (paragraphs only)
  std::string text;     // one line, blanks squeezed

  /// What is embedded: a paragraph means more under its heading.
  std::string searchable() const { return heading.empty() ? text : heading + ": " + text; }
};

/// Cuts text into lines, or into paragraphs: blocks between blank lines, where each Markdown list item and table row
/// stands alone, a fenced block of code stays whole, and a heading belongs to what follows it.
/// A piece without a letter or digit is left out.
std::vector<Passage> split_text(std::string_view text, Split by, const std::string& file = {});

/// split_text of a file. Errors: std::runtime_error, one sentence, if it cannot be read or is no text.
std::vector<Passage> read_passages(const std::filesystem::path& file, Split by);

}  // namespace semantic_search
