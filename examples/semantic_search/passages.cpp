// SPDX-License-Identifier: Apache-2.0
#include "passages.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace semantic_search {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Bytes above ASCII belong to letters of some script often enough.
bool has_words(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string squeezed(std::string_view text) {
  std::string result;
  for (const char c : trimmed(text)) {
    const bool blank = is_blank(c);
    if (!blank || result.back() != ' ') result += blank ? ' ' : c;
  }
  return result;
}

/// "# Title" to "######  Title ##" → the title; anything else → nothing. A # that is not behind a blank is the title's.
std::string_view heading_of(std::string_view line) {
  const std::size_t level = std::min(line.find_first_not_of('#'), line.size());
  if (level < 1 || level > 6 || level == line.size() || !is_blank(line[level])) return {};
  line = trimmed(line.substr(level));
  const std::size_t end = line.find_last_not_of('#') + 1;
  return end == 0 || is_blank(line[end - 1]) ? trimmed(line.substr(0, end)) : line;
}

bool starts_item(std::string_view line) {
  if (line.size() > 2 && (line[0] == '-' || line[0] == '*' || line[0] == '+') && is_blank(line[1])) return true;
  std::size_t digits = 0;
  while (digits < line.size() && is_digit(line[digits])) ++digits;
  return digits > 0 && digits <= 3 && digits + 1 < line.size() && (line[digits] == '.' || line[digits] == ')') &&
         is_blank(line[digits + 1]);
}

bool starts_row(std::string_view line) { return line.size() > 1 && line[0] == '|'; }

/// The run of ``` or ~~~ that begins a fenced block; empty if the line begins none, as one with ``` on both sides.
std::string_view fence_of(std::string_view line) {
  if (line.empty() || (line[0] != '`' && line[0] != '~')) return {};
  const std::size_t run = std::min(line.find_first_not_of(line[0]), line.size());
  if (line[0] == '`' && line.find('`', run) != line.npos) return {};
  return run >= 3 ? line.substr(0, run) : std::string_view();
}

class Paragraphs {
 public:
  explicit Paragraphs(const std::string& file) : file_(file) {}

  void add(std::string_view raw, int number) {
    const std::string_view line = trimmed(raw);
    const std::string_view fence = fence_of(line);
    if (!fence_.empty()) {
      const bool closes = fence.starts_with(fence_) && trimmed(line.substr(fence.size())).empty();
      if (!closes) return append(line, number);
      finish();
      fence_.clear();
    } else if (!fence.empty()) {
      finish();
      fence_ = fence;
    } else if (line.empty()) {
      finish();
    } else if (const std::string_view heading = heading_of(raw); !heading.empty()) {
      finish();
      finish_heading();
      heading_ = squeezed(heading);
      heading_line_ = number;
    } else {
      if (starts_item(line) || starts_row(line)) finish();
      append(line, number);
    }
  }

  std::vector<Passage> result() {
    finish();
    finish_heading();
    return std::move(passages_);
  }

 private:
  void append(std::string_view line, int number) {
    if (line.empty()) return;
    if (text_.empty())
      line_ = number;
    else
      text_ += ' ';
    text_ += squeezed(line);
  }

  void finish() {
    if (has_words(text_)) {
      passages_.push_back({file_, line_, heading_, std::move(text_)});
      heading_line_ = 0;
    }
    text_.clear();
  }

  // A heading with nothing below it is still something to find.
  void finish_heading() {
    if (heading_line_ != 0 && has_words(heading_)) passages_.push_back({file_, heading_line_, {}, heading_});
    heading_line_ = 0;
  }

  const std::string& file_;
  std::vector<Passage> passages_;
  std::string fence_, heading_, text_;
  int line_ = 0;
  int heading_line_ = 0;  // 0 once a passage stands below the heading
};

}  // namespace

std::vector<Passage> split_text(std::string_view text, Split by, const std::string& file) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte order mark
  Paragraphs paragraphs(file);
  std::vector<Passage> lines;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (by == Split::paragraph)
      paragraphs.add(line, number);
    else if (has_words(line))
      lines.push_back({file, number, {}, squeezed(line)});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return by == Split::paragraph ? paragraphs.result() : lines;
}

std::vector<Passage> read_passages(const std::filesystem::path& path, Split by) {
  if (!std::filesystem::exists(path)) throw std::runtime_error("there is no file '" + path.string() + "'");
  if (std::filesystem::is_directory(path))
    throw std::runtime_error("'" + path.string() + "' is a folder, expected a text file");
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error("cannot read '" + path.string() + "'");
  if (text.find('\0') != std::string::npos)
    throw std::runtime_error("'" + path.string() + "' is not a text file: it holds a zero byte");
  return split_text(text, by, path.string());
}

}  // namespace semantic_search
