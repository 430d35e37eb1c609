// SPDX-License-Identifier: Apache-2.0
#include "split.hpp"

#include <algorithm>
#include <cstddef>

#include <utf8proc.h>

namespace generate {
namespace {

enum class Kind { letter, digit, space, other };

struct Character {
  std::size_t end;  // in the text, behind it
  Kind kind;
  int code;  // −1 for a byte that is not UTF-8
};

Kind kind_of(utf8proc_int32_t c) {
  if ((c >= 0x09 && c <= 0x0D) || c == 0x85) return Kind::space;
  const auto category = utf8proc_category(c);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) return Kind::letter;
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return Kind::digit;
  if (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP) return Kind::space;
  return Kind::other;
}

/// The bytes of the space that a text begins with, 0 if it does not.
std::size_t space_at(std::string_view text) {
  utf8proc_int32_t c = 0;
  const auto read = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(text.size()), &c);
  return read > 0 && kind_of(c) == Kind::space ? static_cast<std::size_t>(read) : 0;
}

std::vector<Character> characters_of(std::string_view text) {
  std::vector<Character> all;
  for (std::size_t at = 0; at < text.size();) {
    utf8proc_int32_t c = 0;
    const auto read = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                                       static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    at += read > 0 ? static_cast<std::size_t>(read) : 1;
    all.push_back(read > 0 ? Character{at, kind_of(c), c} : Character{at, Kind::other, -1});
  }
  return all;
}

/// One word after another. Each function is a branch of the patterns: how many characters from `at` on it takes, 0 if
/// it does not match there.
class Splitter {
 public:
  Splitter(std::string_view text, Split how) : all_(characters_of(text)), how_(how) {}

  std::size_t next(std::size_t at) const {
    if (how_ == Split::gpt2) {
      for (const std::size_t n :
           {contraction(at), spaced(at, Kind::letter), spaced(at, Kind::digit), spaced(at, Kind::other), spaces(at)})
        if (n > 0) return n;
    } else {
      const std::size_t digits =
          std::min(run(at, Kind::digit), how_ == Split::llama3 ? std::size_t{3} : std::size_t{1});
      for (const std::size_t n :
           {contraction(at), led_letters(at), digits, other_and_breaks(at), spaces_to_break(at), spaces(at)})
        if (n > 0) return n;
    }
    return 1;
  }

  std::size_t size() const { return all_.size(); }
  std::size_t end(std::size_t character) const { return all_[character].end; }

 private:
  bool is(std::size_t i, Kind kind) const { return i < all_.size() && all_[i].kind == kind; }
  bool is_code(std::size_t i, int code) const { return i < all_.size() && all_[i].code == code; }
  bool is_break(std::size_t i) const { return is_code(i, '\r') || is_code(i, '\n'); }

  std::size_t run(std::size_t at, Kind kind) const {
    std::size_t n = 0;
    while (is(at + n, kind)) ++n;
    return n;
  }

  /// 's|'t|'re|'ve|'m|'ll|'d, by (?i: in capitals too.
  std::size_t contraction(std::size_t at) const {
    if (!is_code(at, '\'')) return 0;
    for (const std::string_view end : {"s", "t", "re", "ve", "m", "ll", "d"}) {
      bool all = true;
      for (std::size_t i = 0; i < end.size(); ++i)
        all = all && (is_code(at + 1 + i, end[i]) || (how_ != Split::gpt2 && is_code(at + 1 + i, end[i] - 'a' + 'A')));
      if (all) return 1 + end.size();
    }
    return 0;
  }

  /// ` ?` and a run of a kind.
  std::size_t spaced(std::size_t at, Kind kind) const {
    const std::size_t blank = is_code(at, ' ') ? 1 : 0, n = run(at + blank, kind);
    return n > 0 ? blank + n : 0;
  }

  /// [^\r\n\p{L}\p{N}]?\p{L}+
  std::size_t led_letters(std::size_t at) const {
    const std::size_t lead = (is(at, Kind::other) || is(at, Kind::space)) && !is_break(at) ? 1 : 0;
    const std::size_t n = run(at + lead, Kind::letter);
    return n > 0 ? lead + n : 0;
  }

  /// ` ?[^\s\p{L}\p{N}]+[\r\n]*`
  std::size_t other_and_breaks(std::size_t at) const {
    std::size_t n = spaced(at, Kind::other);
    while (n > 0 && is_break(at + n)) ++n;
    return n;
  }

  /// \s*[\r\n]+: up to the last line break of the spaces.
  std::size_t spaces_to_break(std::size_t at) const {
    std::size_t n = run(at, Kind::space);
    while (n > 0 && !is_break(at + n - 1)) --n;
    return n;
  }

  /// \s+(?!\S)|\s+: the last space belongs to the word that follows, unless it is alone.
  std::size_t spaces(std::size_t at) const {
    const std::size_t n = run(at, Kind::space);
    return n > 1 && at + n < all_.size() ? n - 1 : n;
  }

  std::vector<Character> all_;
  Split how_;
};

}  // namespace

std::optional<Split> split_of(std::string_view regular_expression) {
  constexpr std::string_view gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  constexpr std::string_view before = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
  constexpr std::string_view behind = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (regular_expression == gpt2) return Split::gpt2;
  if (!regular_expression.starts_with(before) || !regular_expression.ends_with(behind)) return {};
  const auto digits =
      regular_expression.substr(before.size(), regular_expression.size() - before.size() - behind.size());
  if (digits == R"(\p{N}{1,3})") return Split::llama3;
  if (digits == R"(\p{N})") return Split::qwen2;
  return {};
}

std::vector<std::string_view> split_words(std::string_view text, Split how) {
  if (text.empty()) return {};
  if (how == Split::none) return {text};
  const Splitter splitter(text, how);
  std::vector<std::string_view> words;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < splitter.size();) {
    at += splitter.next(at);
    words.push_back(text.substr(begin, splitter.end(at - 1) - begin));
    begin = splitter.end(at - 1);
  }
  return words;
}

std::size_t spaces_in_front(std::string_view text) {
  std::size_t end = 0;
  while (const std::size_t n = space_at(text.substr(end))) end += n;
  return end;
}

std::size_t spaces_behind(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    std::size_t at = begin - 1;
    while (at > 0 && (text[at] & 0xC0) == 0x80) --at;  // to the first byte of the character
    if (space_at(text.substr(at, begin - at)) != begin - at) break;
    begin = at;
  }
  return text.size() - begin;
}

}  // namespace generate
