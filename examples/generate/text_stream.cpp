// SPDX-License-Identifier: Apache-2.0
#include "text_stream.hpp"

#include <cstddef>
#include <utility>

#include <utf8proc.h>

namespace generate {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Whether more bytes may make a character of these, which are none.
bool may_become_character(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const std::size_t length = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || bytes.size() >= length) return false;
  for (std::size_t i = 1; i < bytes.size(); ++i)
    if ((byte(i) & 0xC0) != 0x80) return false;
  if (bytes.size() == 1) return true;
  // Longer than it need be, half of a surrogate pair, or beyond U+10FFFF.
  return !(byte(0) == 0xE0 && byte(1) < 0xA0) && !(byte(0) == 0xED && byte(1) > 0x9F) &&
         !(byte(0) == 0xF0 && byte(1) < 0x90) && !(byte(0) == 0xF4 && byte(1) > 0x8F);
}

}  // namespace

void TextStream::write(std::string_view bytes) {
  waiting_ += bytes;
  std::string_view rest = waiting_;
  if (!rest.empty() && std::exchange(strips_blank_, false) && rest.front() == ' ') rest.remove_prefix(1);
  while (!rest.empty()) {
    utf8proc_int32_t c = 0;
    const auto read = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(rest.data()),
                                       static_cast<utf8proc_ssize_t>(rest.size()), &c);
    if (read <= 0 && may_become_character(rest)) break;
    const std::size_t size = read > 0 ? static_cast<std::size_t>(read) : 1;
    const bool control = utf8proc_category(c) == UTF8PROC_CATEGORY_CC && c != '\t' && c != '\n' && c != '\r';
    out_ << (read <= 0 || control ? kReplacement : rest.substr(0, size));
    rest.remove_prefix(size);
  }
  waiting_.erase(0, waiting_.size() - rest.size());
  out_ << std::flush;
}

void TextStream::finish() {
  for (; !waiting_.empty(); waiting_.pop_back()) out_ << kReplacement;
  out_ << std::flush;
}

}  // namespace generate
