// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.hpp"

#include <cstdlib>
#include <memory>
#include <queue>
#include <stdexcept>
#include <tuple>

#include <utf8proc.h>

#include "tokenizer_file.hpp"

namespace generate {
namespace {

std::uint64_t pair_key(int left, int right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

std::string composed(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(out, &std::free);
  if (size < 0) throw std::runtime_error("the text is not UTF-8, which this tokenizer needs to compose characters");
  return {reinterpret_cast<const char*>(out), static_cast<std::size_t>(size)};
}

}  // namespace

Tokenizer::Tokenizer() {
  for (int byte = 0; byte < 256; ++byte) {
    tokens_.emplace_back(1, static_cast<char>(byte));
    ids_.emplace(tokens_.back(), byte);
  }
}

Tokenizer::Tokenizer(const std::filesystem::path& tokenizer_json) {
  TokenizerFile file(tokenizer_json);
  tokens_ = std::move(file.tokens);
  added_ = std::move(file.added);
  prefix_ = std::move(file.prefix);
  suffix_ = std::move(file.suffix);
  split_ = file.split;
  nfc_ = file.nfc;
  whole_words_ = file.whole_words;

  for (std::size_t id = 0; id < tokens_.size(); ++id)
    if (!tokens_[id].empty()) ids_.emplace(tokens_[id], static_cast<int>(id));
  for (const auto& [left, right] : file.merges) {
    const int rank = static_cast<int>(merges_.size());
    const std::string both = tokens_[static_cast<std::size_t>(left)] + tokens_[static_cast<std::size_t>(right)];
    merges_.emplace(pair_key(left, right), Merge{rank, ids_.find(both)->second});
  }
  for (const auto& [content, id] : added_) {
    const auto i = static_cast<std::size_t>(id);
    if (tokens_.size() <= i) tokens_.resize(i + 1);
    tokens_[i] = content;
  }
}

std::string_view Tokenizer::bytes(int id) const {
  if (id < 0 || id >= size()) return {};
  return tokens_[static_cast<std::size_t>(id)];
}

const Tokenizer::Merge* Tokenizer::merge_of(int left, int right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<int> Tokenizer::encode(std::string_view text) const {
  std::vector<int> ids = prefix_;
  while (!text.empty()) {
    // Up to the next added token the text is words; the token itself is one id, the longest of those that begin there.
    std::size_t begin = text.size(), length = 0;
    int token = 0;
    for (const auto& [content, id] : added_) {
      const std::size_t at = text.find(content);
      if (at < begin || (at == begin && content.size() > length && at < text.size()))
        begin = at, length = content.size(), token = id;
    }
    append_text(text.substr(0, begin), ids);
    if (length > 0) ids.push_back(token);
    text.remove_prefix(begin + length);
  }
  ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

void Tokenizer::append_text(std::string_view text, std::vector<int>& ids) const {
  const std::string in_nfc = nfc_ ? composed(text) : std::string();
  for (const std::string_view word : split_words(nfc_ ? in_nfc : text, split_)) append_word(word, ids);
}

void Tokenizer::append_word(std::string_view word, std::vector<int>& ids) const {
  if (whole_words_)
    if (const auto whole = ids_.find(word); whole != ids_.end()) return ids.push_back(whole->second);

  // Tokens in a list; a merge lengthens the left one and takes the right one out.
  struct Symbol {
    int token, left, right;
  };
  const int size = static_cast<int>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (int i = 0; i < size; ++i)
    symbols.push_back({ids_.find(word.substr(static_cast<std::size_t>(i), 1))->second, i - 1, i + 1});
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
