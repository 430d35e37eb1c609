// SPDX-License-Identifier: Apache-2.0
#include "wordpiece.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <stdexcept>
#include <string>

#include <utf8proc.h>

namespace semantic_search {
namespace {

using Rune = utf8proc_int32_t;

struct Range {
  Rune first, last;
};

constexpr std::array<std::string_view, 5> kSpecials{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
constexpr int kLongestWord = 100;  // code points; a longer word is unknown
constexpr Rune kReplacement = 0xFFFD;
constexpr Rune kCapitalDottedI = 0x130;

// Ideographs are words of one character. The sixth range starts 256 late, as in the original.
constexpr Range kIdeographs[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                                 {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};

// The original's character classes are those of Unicode 8. Later versions, which utf8proc knows, gave these stretches
// accents, punctuation and format characters; here they are plain characters.
constexpr Range kNewer[] = {
    {0x5C8, 0x5C9},     {0x61D, 0x61D},     {0x7FD, 0x7FD},     {0x890, 0x8E2},     {0x9FD, 0x9FE},
    {0xA76, 0xA76},     {0xAFA, 0xAFF},     {0xB53, 0xB55},     {0xC04, 0xC3C},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0xD00, 0xD00},     {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xEBA, 0xEBA},
    {0xECE, 0xECE},     {0x180F, 0x1886},   {0x1ABF, 0x1AF0},   {0x1B4E, 0x1B4F},   {0x1B7D, 0x1B7F},
    {0x1DF6, 0x1DFB},   {0x2E43, 0x2E63},   {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},   {0xA8FF, 0xA8FF},
    {0xA9BD, 0xA9BD},   {0x10D24, 0x10F89}, {0x11070, 0x11074}, {0x110C2, 0x110CD}, {0x111CF, 0x111CF},
    {0x1123E, 0x11241}, {0x1133B, 0x1133B}, {0x113BB, 0x1145E}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1182F, 0x11FFF}, {0x12FF1, 0x1612F}, {0x16D6D, 0x16F4F}, {0x16FE2, 0x16FE4}, {0x1CF00, 0x1D128},
    {0x1D25B, 0x1D25C}, {0x1E000, 0x1E6F5}, {0x1E944, 0x1E95F}};

template <std::size_t N> bool contains(const Range (&sorted)[N], Rune c) {
  const Range* after = std::upper_bound(sorted, sorted + N, c, [](Rune value, Range r) { return value < r.first; });
  return after != sorted && c <= after[-1].last;
}

bool is_ascii_punctuation(Rune c) {
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
}

utf8proc_category_t category(Rune c) {
  if (c == 0x166D || c == 0x111C9) return UTF8PROC_CATEGORY_PO;  // these four changed class after Unicode 8
  if (c == 0x1734 || c == 0x1171E) return UTF8PROC_CATEGORY_MN;
  return contains(kNewer, c) ? UTF8PROC_CATEGORY_CN : utf8proc_category(c);
}

bool is_punctuation(Rune c) {
  if (c < 128) return is_ascii_punctuation(c);
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_space(Rune c) {
  if (c == ' ' || c == '\t' || c == '\n' || c == '\r') return true;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ZS || kind == UTF8PROC_CATEGORY_ZL || kind == UTF8PROC_CATEGORY_ZP;
}

bool is_dropped(Rune c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  if (c == kReplacement) return true;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_CO;
}

void append(std::string& text, Rune c) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(c, bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

/// Valid UTF-8 of the same text: controls dropped, every space a blank, blanks around ideographs.
std::string clean(std::string_view text) {
  std::string cleaned;
  cleaned.reserve(text.size());
  while (!text.empty()) {
    Rune c = kReplacement;
    const auto read = utf8proc_iterate(bytes_of(text), static_cast<utf8proc_ssize_t>(text.size()), &c);
    text.remove_prefix(read > 0 ? static_cast<std::size_t>(read) : 1);
    if (read <= 0 || is_dropped(c)) continue;
    if (is_space(c)) {
      cleaned += ' ';
    } else if (contains(kIdeographs, c)) {
      cleaned += ' ';
      append(cleaned, c);
      cleaned += ' ';
    } else {
      append(cleaned, c);
    }
  }
  return cleaned;
}

/// Canonical decomposition (NFD): accents become characters of their own.
std::vector<Rune> decompose(std::string_view text) {
  std::vector<Rune> runes(text.size() + 1);
  for (;;) {
    const auto count = utf8proc_decompose(bytes_of(text), static_cast<utf8proc_ssize_t>(text.size()), runes.data(),
                                          static_cast<utf8proc_ssize_t>(runes.size()), UTF8PROC_DECOMPOSE);
    if (count < 0) throw std::runtime_error(std::string("WordPiece: ") + utf8proc_errmsg(count));
    const bool complete = static_cast<std::size_t>(count) <= runes.size();
    runes.resize(static_cast<std::size_t>(count));
    if (complete) return runes;
  }
}

std::vector<Rune> runes_of(std::string_view valid) {
  std::vector<Rune> runes;
  for (Rune c = 0; !valid.empty();) {
    const auto read = utf8proc_iterate(bytes_of(valid), static_cast<utf8proc_ssize_t>(valid.size()), &c);
    valid.remove_prefix(static_cast<std::size_t>(read));
    runes.push_back(c);
  }
  return runes;
}

/// Words as the vocabulary spells them; every punctuation mark is one.
std::vector<std::string> split_words(std::string_view text, bool lower_case, bool strip_accents) {
  const std::string cleaned = clean(text);
  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (Rune c : strip_accents ? decompose(cleaned) : runes_of(cleaned)) {
    if (strip_accents && category(c) == UTF8PROC_CATEGORY_MN) continue;
    if (c == ' ') {
      finish();
    } else if (is_punctuation(c)) {
      finish();
      append(word, c);
      finish();
    } else {
      append(word, lower_case ? utf8proc_tolower(c) : c);
      if (lower_case && c == kCapitalDottedI) append(word, 0x307);  // the one letter that is two in lower case
    }
  }
  finish();
  return words;
}

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

void drop_last_character(std::string& text) {
  while (!text.empty() && continues_character(text.back())) text.pop_back();
  if (!text.empty()) text.pop_back();
}

}  // namespace

WordPiece::WordPiece(const std::filesystem::path& vocab_txt, bool lower_case, bool strip_accents)
    : lower_case_(lower_case), strip_accents_(strip_accents) {
  std::ifstream file(vocab_txt, std::ios::binary);
  if (!file || std::filesystem::is_directory(vocab_txt)) {
    throw std::runtime_error("vocabulary: cannot open " + vocab_txt.string());
  }
  for (std::string token; std::getline(file, token);) {
    if (!token.empty() && token.back() == '\r') token.pop_back();
    const std::string line = "line " + std::to_string(tokens_.size() + 1) + " of " + vocab_txt.string();
    if (token.empty()) throw std::runtime_error("vocabulary: " + line + " is empty");
    const auto [place, fresh] = ids_.emplace(token, size());
    if (!fresh) {
      throw std::runtime_error("vocabulary: " + line + " repeats the token '" + token + "' of line " +
                               std::to_string(place->second + 1));
    }
    longest_ = std::max(longest_, token.size());
    tokens_.push_back(std::move(token));
  }
  if (file.bad()) throw std::runtime_error("vocabulary: reading " + vocab_txt.string() + " failed");
  pad_id_ = special("[PAD]", vocab_txt);
  unknown_id_ = special("[UNK]", vocab_txt);
  first_id_ = special("[CLS]", vocab_txt);
  last_id_ = special("[SEP]", vocab_txt);
}

int WordPiece::special(std::string_view token, const std::filesystem::path& vocab_txt) const {
  const auto found = ids_.find(token);
  if (found != ids_.end()) return found->second;
  throw std::runtime_error("vocabulary: " + vocab_txt.string() + " has no token " + std::string(token));
}

void WordPiece::append_word(std::string_view word, std::vector<int>& ids) const {
  const auto unknown_from = static_cast<std::ptrdiff_t>(ids.size());
  const auto give_up = [&] {
    ids.erase(ids.begin() + unknown_from, ids.end());
    ids.push_back(unknown_id_);
  };
  const auto characters = std::count_if(word.begin(), word.end(), [](char c) { return !continues_character(c); });
  if (characters > kLongestWord) return give_up();

  std::string piece;
  while (!word.empty()) {
    const std::size_t prefix = piece.empty() ? 0 : 2;
    piece.assign("##", prefix).append(word.substr(0, longest_));
    if (word.size() > longest_ && continues_character(word[longest_])) drop_last_character(piece);
    auto found = ids_.find(piece);
    while (found == ids_.end() && piece.size() > prefix) {
      drop_last_character(piece);
      found = ids_.find(piece);
    }
    if (piece.size() <= prefix) return give_up();
    ids.push_back(found->second);
    word.remove_prefix(piece.size() - prefix);
  }
}

Encoding WordPiece::encode(std::string_view utf8_text, int max_tokens) const {
  if (max_tokens < 2) {
    throw std::invalid_argument("WordPiece::encode: max_tokens is " + std::to_string(max_tokens) +
                                ", which leaves no room for [CLS] and [SEP]");
  }
  const auto limit = static_cast<std::size_t>(max_tokens) - 1;
  Encoding encoding;
  auto& ids = encoding.ids;
  ids.push_back(first_id_);
  while (!utf8_text.empty() && ids.size() < limit) {
    // Up to the next special token the text is words; the token itself is one id.
    std::size_t begin = utf8_text.size(), length = 0;
    int token = 0;
    for (std::string_view name : kSpecials) {
      const auto at = utf8_text.find(name);
      const auto known = ids_.find(name);
      if (at < begin && known != ids_.end()) begin = at, length = name.size(), token = known->second;
    }
    for (const std::string& word : split_words(utf8_text.substr(0, begin), lower_case_, strip_accents_)) {
      if (ids.size() >= limit) break;
      append_word(word, ids);
    }
    if (length > 0) ids.push_back(token);
    utf8_text.remove_prefix(begin + length);
  }
  ids.resize(std::min(ids.size(), limit));
  ids.push_back(last_id_);
  for (int id : ids) encoding.tokens.push_back(tokens_[static_cast<std::size_t>(id)]);
  return encoding;
}

}  // namespace semantic_search
