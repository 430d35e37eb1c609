// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include <utf8proc.h>

namespace generate {
namespace {

std::uint64_t pair_key(int left, int right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

/// Up to the next added token a text is a piece; the token itself is one id, the longest of those that begin there, and
/// the blanks beside it that it strips are no part of a piece.
template <class F>
void cut(std::string_view text, const TokenizerFile::Added& added, std::vector<int>& ids, const F& append_piece) {
  std::vector<std::size_t> places;  // where each is found next: none is looked for twice in the same bytes
  for (const auto& one : added) places.push_back(text.find(one.content));
  for (std::size_t from = 0; from < text.size();) {
    std::size_t begin = text.size();
    const TokenizerFile::AddedToken* token = nullptr;
    for (std::size_t i = 0; i < added.size(); ++i) {
      if (places[i] < from) places[i] = text.find(added[i].content, from);
      if (places[i] == text.npos) continue;
      const bool longer = token != nullptr && places[i] == begin && added[i].content.size() > token->content.size();
      if (places[i] < begin || longer) begin = places[i], token = &added[i];
    }
    std::string_view piece = text.substr(from, begin - from);
    if (token != nullptr && token->strips_left) piece.remove_suffix(spaces_behind(piece));
    if (!piece.empty()) append_piece(piece);
    if (token == nullptr) return;
    ids.push_back(token->id);
    from = begin + token->content.size();
    if (token->strips_right) from += spaces_in_front(text.substr(from));
  }
}

}  // namespace

Tokenizer::Tokenizer(const std::filesystem::path& tokenizer_json, int vocabulary) : file_(tokenizer_json, vocabulary) {
  for (const auto& [left, right, both] : file_.merges)
    merges_.emplace(pair_key(left, right), Merge{static_cast<int>(merges_.size()), both});
}

std::string_view Tokenizer::bytes(int id) const {
  if (id < 0 || id >= size()) return {};
  return file_.tokens[static_cast<std::size_t>(id)];
}

const Tokenizer::Merge* Tokenizer::merge_of(int left, int right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<int> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids = file_.prefix;
  cut(text, file_.added, ids, [&](std::string_view piece) {
    const std::string normal = normalized_by(file_, piece);
    cut(normal, file_.normalized, ids, [&](std::string_view part) {
      append_text(part, piece.data() == text.data() && part.data() == normal.data(), ids);
    });
  });
  ids.insert(ids.end(), file_.suffix.begin(), file_.suffix.end());
  return ids;
}

void Tokenizer::append_text(std::string_view text, bool first, std::vector<int>& ids) const {
  if (file_.blanks != Blanks::by_pre_tokenizer) {
    for (const std::string_view word : split_words(text, file_.split)) append_word(word, ids);
    return;
  }
  std::string word = replaced(text, " ", kBlank);
  const bool leads = file_.lead == Lead::pieces || (file_.lead == Lead::first_piece && first);
  if (leads && !word.starts_with(kBlank)) word.insert(0, kBlank);
  append_word(word, ids);
}

/// A character that is no token is the tokens of its bytes. Where one of those is missing it is unknown, and the tokens
/// of known bytes that follow come before it, as Hugging Face's do.
std::vector<int> Tokenizer::characters_of(std::string_view word) const {
  std::vector<int> ids;
  bool unknown = false;
  const auto byte_token = [&](char byte) { return file_.bytes[static_cast<unsigned char>(byte)]; };
  while (!word.empty()) {
    utf8proc_int32_t c = 0;
    const auto read = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(word.data()),
                                       static_cast<utf8proc_ssize_t>(word.size()), &c);
    const std::string_view character = word.substr(0, read > 0 ? static_cast<std::size_t>(read) : 1);
    word.remove_prefix(character.size());
    if (const auto found = file_.ids.find(character); found != file_.ids.end()) {
      if (std::exchange(unknown, false)) ids.push_back(file_.unknown);
      ids.push_back(found->second);
    } else if (std::all_of(character.begin(), character.end(), [&](char b) { return byte_token(b) >= 0; })) {
      for (const char byte : character) ids.push_back(byte_token(byte));
    } else if (std::exchange(unknown, true) && !file_.fuse_unknown) {
      ids.push_back(file_.unknown);
    }
  }
  if (unknown) ids.push_back(file_.unknown);
  return ids;
}

void Tokenizer::append_word(std::string_view word, std::vector<int>& ids) const {
  if (file_.whole_words)
    if (const auto whole = file_.ids.find(word); whole != file_.ids.end()) return ids.push_back(whole->second);

  // Tokens in a list; a merge lengthens the left one and takes the right one out.
  struct Symbol {
    int token, left, right;
  };
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  const auto append = [&](int token) {
    const int i = static_cast<int>(symbols.size());
    symbols.push_back({token, i - 1, i + 1});
  };
  if (file_.characters)
    for (const int token : characters_of(word)) append(token);
  else
    for (std::size_t i = 0; i < word.size(); ++i) append(file_.ids.find(word.substr(i, 1))->second);
  const int size = static_cast<int>(symbols.size());
  const auto at = [&](int i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };

  // Pairs that may merge: rank, place, and the token they were going to be, by which those that have changed are known.
  using Pair = std::tuple<int, int, int>;
  std::priority_queue<Pair, std::vector<Pair>, std::greater<>> pairs;
  const auto consider = [&](int i) {
    if (i < 0 || at(i).right >= size) return;
    if (const Merge* const merge = merge_of(at(i).token, at(at(i).right).token))
      pairs.emplace(merge->rank, i, merge->token);
  };
  for (int i = 0; i < size; ++i) consider(i);
  while (!pairs.empty()) {
    const auto [rank, i, token] = pairs.top();
    pairs.pop();
    if (at(i).token < 0 || at(i).right >= size) continue;
    const int next = at(i).right;
    const Merge* const merge = merge_of(at(i).token, at(next).token);
    if (merge == nullptr || merge->rank != rank) continue;
    at(i) = {token, at(i).left, at(next).right};
    at(next).token = -1;
    if (at(i).right < size) at(at(i).right).left = i;
    consider(i);
    consider(at(i).left);
  }
  for (int i = 0; i < size; i = at(i).right) ids.push_back(at(i).token);
}

}  // namespace generate
