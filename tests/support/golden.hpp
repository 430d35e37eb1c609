// SPDX-License-Identifier: Apache-2.0
// Reads the golden files of tests/golden: values that another implementation computed (format: tests/golden/README.md).
#pragma once

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace golden {

/// A row-major array; rank 0 is one number.
struct Tensor {
  std::vector<int> extent;
  std::vector<double> values;
};

/// One case: its named numbers, texts and tensors. Asking for one that it lacks throws, naming both.
struct Case {
  std::string name;
  std::map<std::string, long long, std::less<>> integers;
  std::map<std::string, double, std::less<>> reals;
  std::map<std::string, std::string, std::less<>> texts;
  std::map<std::string, Tensor, std::less<>> tensors;

  bool has(std::string_view key) const {
    return integers.contains(key) || reals.contains(key) || texts.contains(key) || tensors.contains(key);
  }
  long long integer(std::string_view key) const { return find(integers, "int", key); }
  long long integer(std::string_view key, long long otherwise) const {
    return integers.contains(key) ? integer(key) : otherwise;
  }
  double real(std::string_view key) const { return find(reals, "real", key); }
  double real(std::string_view key, double otherwise) const { return reals.contains(key) ? real(key) : otherwise; }
  const std::string& text(std::string_view key) const { return find(texts, "text", key); }
  const Tensor& tensor(std::string_view key) const { return find(tensors, "tensor", key); }

 private:
  template <class Map>
  const typename Map::mapped_type& find(const Map& map, std::string_view kind, std::string_view key) const {
    const auto found = map.find(key);
    if (found != map.end()) return found->second;
    throw std::runtime_error("golden: case " + name + " has no " + std::string(kind) + " '" + std::string(key) + "'");
  }
};

namespace detail {

/// The words of one line, and where it stands for the error messages.
class Line {
 public:
  Line(std::string text, std::string place) : text_(std::move(text)), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error("golden: " + place_ + ": " + what); }
  bool empty() const { return text_.empty() || text_[0] == '#'; }
  bool at_end() const { return next_ >= text_.size(); }

  std::string word(const char* what) {
    if (at_end()) fail(std::string("expected ") + what);
    const auto blank = std::min(text_.find(' ', next_), text_.size());
    std::string found = text_.substr(next_, blank - next_);
    next_ = blank + 1;
    if (found.empty()) fail(std::string("expected ") + what + ", found two blanks");
    return found;
  }
  long long integer(const char* what) {
    const std::string found = word(what);
    char* end = nullptr;
    errno = 0;
    const long long value = std::strtoll(found.c_str(), &end, 10);
    if (*end != '\0' || errno != 0) fail("'" + found + "' is not a whole number");
    return value;
  }
  double real(const char* what) {
    const std::string found = word(what);
    char* end = nullptr;
    const double value = std::strtod(found.c_str(), &end);
    if (*end != '\0') fail("'" + found + "' is not a number");
    return value;
  }
  /// The rest of the line, where \\ is a backslash and \xHH a byte.
  std::string rest() {
    std::string bytes;
    for (; next_ < text_.size(); ++next_) {
      if (text_[next_] != '\\') {
        bytes += text_[next_];
      } else if (text_.substr(next_, 2) == "\\\\") {
        bytes += '\\';
        next_ += 1;
      } else {
        const std::string digits = text_.substr(std::min(next_ + 2, text_.size()), 2);
        char* end = nullptr;
        const long byte = std::strtol(digits.c_str(), &end, 16);
        if (text_[std::min(next_ + 1, text_.size() - 1)] != 'x' || digits.size() != 2 || *end != '\0') {
          fail("a backslash stands before another, or before x and two hexadecimal digits");
        }
        bytes += static_cast<char>(byte);
        next_ += 3;
      }
    }
    return bytes;
  }
  Tensor tensor() {
    Tensor tensor;
    std::size_t size = 1;
    for (long long axes = integer("a rank"); axes > 0; --axes) {
      const long long extent = integer("an extent");
      if (extent < 0 || extent > INT_MAX) fail("extent " + std::to_string(extent) + " is out of range");
      tensor.extent.push_back(static_cast<int>(extent));
      size *= static_cast<std::size_t>(extent);
    }
    while (!at_end()) tensor.values.push_back(real("a value"));
    if (tensor.values.size() != size) {
      fail("the extents ask for " + std::to_string(size) + " values and the line has " +
           std::to_string(tensor.values.size()));
    }
    return tensor;
  }

 private:
  std::string text_;
  std::string place_;
  std::size_t next_ = 0;
};

}  // namespace detail

/// All cases of a file, in its order. Throws std::runtime_error with file and line if it is missing or malformed.
inline std::vector<Case> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("golden: cannot open " + path.string());
  std::vector<Case> cases;
  bool open = false;
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    detail::Line line(std::move(text), path.string() + ":" + std::to_string(++number));
    if (line.empty()) continue;
    const std::string kind = line.word("a keyword");
    if (kind == "case") {
      if (open) line.fail("case " + cases.back().name + " has no end");
      cases.emplace_back().name = line.word("a name");
      open = true;
      continue;
    }
    if (!open) line.fail("'" + kind + "' stands outside a case");
    Case& current = cases.back();
    if (kind == "end") {
      open = false;
      continue;
    }
    const std::string key = line.word("a key");
    if (current.has(key)) line.fail("case " + current.name + " already has '" + key + "'");
    if (kind == "int") {
      current.integers[key] = line.integer("a value");
    } else if (kind == "real") {
      current.reals[key] = line.real("a value");
    } else if (kind == "text") {
      current.texts[key] = line.rest();
    } else if (kind == "tensor") {
      current.tensors[key] = line.tensor();
    } else {
      line.fail("'" + kind + "' is none of case, int, real, text, tensor, end");
    }
    if (kind != "text" && !line.at_end()) line.fail("more follows the value of '" + key + "'");
  }
  if (open) throw std::runtime_error("golden: " + path.string() + " ends inside case " + cases.back().name);
  if (cases.empty()) throw std::runtime_error("golden: " + path.string() + " holds no case");
  return cases;
}

}  // namespace golden
