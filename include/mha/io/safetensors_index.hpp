// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "../config.hpp"
#include "safetensors_header.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Which shard, a file beside the index, has which tensor.
using SafetensorsIndex = std::map<std::string, std::string, std::less<>>;

/// Checks the index of a checkpoint in several files; every fault is a SafetensorsError of one sentence.
///
/// The index is a JSON object whose "weight_map" maps the name of each tensor to that of a file in the same folder.
/// What else it has ("metadata") is not read. No tensor is named twice.
///
/// Cost      O(bytes), O(n log n) for n tensors
class SafetensorsIndexReader {
 public:
  SafetensorsIndexReader(std::string path, std::string_view text) : path_(std::move(path)), text_(text) {}

  SafetensorsIndex read() {
    if (text_.size() > largest)
      fail("the index has " + std::to_string(text_.size()) + " bytes, the limit is " + std::to_string(largest));
    // The parser would take this byte for the end of the text.
    if (const std::size_t zero = text_.find('\0'); zero != text_.npos) fail_json(zero + 1);
    nlohmann::json::sax_parse(text_.begin(), text_.end(), this);
    if (!has_map_) fail("the index has no weight_map");
    return std::move(index_);
  }

  // What the parser tells, in the order of the text. Each returns true or throws.

  bool null() { return value(); }
  bool boolean(bool) { return value(); }
  bool number_integer(std::int64_t) { return value(); }
  bool number_unsigned(std::uint64_t) { return value(); }
  bool number_float(double, const std::string&) { return value(); }
  bool binary(const nlohmann::json::binary_t&) { return value(); }
  bool string(const std::string& shard) {
    if (!in_map()) return value();
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != shard.npos)
      fail_safetensors(path_, name_, "is in '" + safetensors_excerpt(shard) + "', expected a file beside the index");
    index_.emplace(name_, shard);
    return true;
  }
  bool start_object(std::size_t) { return open(true); }
  bool start_array(std::size_t) { return open(false); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(const std::string& key) {
    if (depth_ == 1) {
      at_map_ = key == "weight_map";
      if (at_map_ && std::exchange(has_map_, true)) fail("the index has weight_map twice");
    } else if (in_map()) {
      if (index_.contains(key)) fail("the index names tensor '" + safetensors_excerpt(key) + "' twice");
      name_ = key;
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) { fail_json(position); }

 private:
  static constexpr std::size_t largest = 100'000'000;

  bool in_map() const { return at_map_ && depth_ == 2; }
  /// A value that names no shard.
  bool value() const {
    if (depth_ == 0) fail("the index is no JSON object");
    if (in_map()) fail_safetensors(path_, name_, "is in a file whose name is not a string");
    if (at_map_ && depth_ == 1) fail("the weight_map of the index is not an object");
    return true;
  }
  bool open(bool object) {
    if (!object || in_map()) value();
    ++depth_;
    return true;
  }
  bool close() {
    if (--depth_ == 1) at_map_ = false;
    return true;
  }

  [[noreturn]] void fail(const std::string& fault) const { fail_safetensors(path_, fault); }
  [[noreturn]] void fail_json(std::size_t byte) const {
    fail("the index is not valid JSON at its byte " + std::to_string(byte));
  }

  std::string path_;
  std::string_view text_;
  SafetensorsIndex index_;

  // Where the parser is.
  std::size_t depth_ = 0;
  bool at_map_ = false, has_map_ = false;
  std::string name_;
};

inline SafetensorsIndex read_safetensors_index(const std::string& path, std::string_view text) {
  return SafetensorsIndexReader(path, text).read();
}

}  // namespace mha::inline MHA_NAMESPACE::detail
