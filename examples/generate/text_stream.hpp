// SPDX-License-Identifier: Apache-2.0
// Text that comes in pieces of bytes, written one whole character after another.
#pragma once

#include <ostream>
#include <string>
#include <string_view>

namespace generate {

/// A token may end in the middle of a character: its bytes wait for the rest. What is not UTF-8, and control characters
/// but for tabs and line breaks, are written as U+FFFD, so that no model can command a terminal.
class TextStream {
 public:
  explicit TextStream(std::ostream& out) : out_(out) {}

  /// Writes the characters that these bytes complete.
  void write(std::string_view bytes);
  /// Nothing more comes: bytes that wait are no character.
  void finish();

 private:
  std::ostream& out_;
  std::string waiting_;
};

}  // namespace generate
