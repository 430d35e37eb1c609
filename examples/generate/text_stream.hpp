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
  /// The text may begin with a blank that is not written.
  explicit TextStream(std::ostream& out, bool strips_blank = false) : out_(out), strips_blank_(strips_blank) {}

  /// Writes the characters that these bytes complete.
  void write(std::string_view bytes);
  /// Nothing more comes: bytes that wait are no character, and each is written as U+FFFD.
  void finish();

 private:
  std::ostream& out_;
  bool strips_blank_;
  std::string waiting_;
};

}  // namespace generate
