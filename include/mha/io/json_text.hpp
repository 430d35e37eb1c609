// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Bytes of the first character of a text that is not empty, in UTF-8; 0 if it is none.
constexpr std::size_t utf8_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;  // amid a character, longer than it need be, or beyond U+10FFFF
  for (std::size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool longer_than_needed = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool beyond = first == 0xf4 && byte(1) >= 0x90;
  return longer_than_needed || surrogate || beyond ? 0 : size;
}

/// How many bytes from the first on are UTF-8.
constexpr std::size_t utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t bytes = utf8_bytes(text.substr(at));
    if (bytes == 0) break;
    at += bytes;
  }
  return at;
}

/// A text in UTF-8 as a string of JSON.
inline std::string json_text(std::string_view text) {
  constexpr const char* digits = "0123456789abcdef";
  constexpr std::string_view named = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
  std::string json = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && c != '"' && c != '\\')
      json += c;
    else if (const std::size_t at = named.find(c); at != named.npos)
      (json += '\\') += letters[at];
    else
      ((json += "\\u00") += digits[byte >> 4]) += digits[byte & 15];
  }
  return json += '"';
}

}  // namespace mha::inline MHA_NAMESPACE::detail
