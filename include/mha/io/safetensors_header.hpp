// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "../config.hpp"

namespace mha::inline v0 {

/// A checkpoint that cannot be used, in one sentence that names the file and the tensor.
class SafetensorsError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the header says of one tensor.
struct SafetensorInfo {
  std::string dtype;                 // "F32", "BF16", …
  std::vector<std::uint64_t> shape;  // row-major
  std::uint64_t begin = 0;           // bytes, counted from the first byte after the header
  std::uint64_t end = 0;
};

namespace detail {

struct SafetensorsHeader {
  std::map<std::string, SafetensorInfo, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
  std::uint64_t data_begin = 0;  // position of the first byte after the header
};

/// Checks a whole file's header; every fault is a SafetensorsError of one sentence.
///
/// A file is: header length (8 bytes, little-endian), header (JSON), data. The JSON maps each name to a dtype, a shape
/// and the data offsets [begin, end), which together cover the data without gap or overlap.
class SafetensorsHeaderReader {
 public:
  SafetensorsHeaderReader(std::string path, std::span<const std::byte> file) : path_(std::move(path)), file_(file) {}

  SafetensorsHeader read() {
    const nlohmann::json root = parse(json_text());
    for (const auto& [name, entry] : root.items()) {
      if (name == "__metadata__")
        read_metadata(entry);
      else
        header_.tensors.emplace(name, read_tensor(name, entry));
    }
    check_offsets();
    return std::move(header_);
  }

 private:
  static constexpr std::uint64_t prefix_bytes = 8;
  static constexpr std::uint64_t largest_header = 100'000'000;

  std::string_view json_text() {
    if (file_.size() < prefix_bytes)
      fail("the file is truncated: it has " + number(file_.size()) + " bytes, fewer than the " + number(prefix_bytes) +
           " of the header length");
    std::uint64_t length = 0;
    for (std::size_t i = prefix_bytes; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(file_[i]);
    if (length > largest_header)
      fail("the header length is " + number(length) + " bytes, more than the format's limit of " +
           number(largest_header));
    if (length > file_.size() - prefix_bytes)
      fail("the header length is " + number(length) + " bytes, but only " + number(file_.size() - prefix_bytes) +
           " follow in the file (is it truncated?)");
    header_.data_begin = prefix_bytes + length;
    return {reinterpret_cast<const char*>(file_.data()) + prefix_bytes, static_cast<std::size_t>(length)};
  }

  nlohmann::json parse(std::string_view text) const {
    using Json = nlohmann::json;
    std::set<std::string> seen;
    std::string repeated;
    // The parser would keep the last of two equal names in silence.
    const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
      if (depth == 1 && event == Json::parse_event_t::key && !seen.insert(value.get<std::string>()).second)
        repeated = value.get<std::string>();
      return true;
    };
    Json root;
    try {
      root = Json::parse(text.begin(), text.end(), watch);
    } catch (const Json::parse_error& error) {
      fail("the header is not valid JSON at its byte " + number(error.byte));
    }
    if (!root.is_object()) fail("the header is JSON, but of type " + std::string(root.type_name()) + ", not an object");
    if (!repeated.empty()) fail("the header names tensor '" + repeated + "' twice");
    return root;
  }

  void read_metadata(const nlohmann::json& entry) {
    if (!entry.is_object()) fail("__metadata__ is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail("__metadata__ '" + key + "' is not a string");
      header_.metadata.emplace(key, value.get<std::string>());
    }
  }

  SafetensorInfo read_tensor(const std::string& name, const nlohmann::json& entry) const {
    if (!entry.is_object()) fail(name, "is not described by an object");
    SafetensorInfo tensor;
    const auto& dtype = member(name, entry, "dtype");
    if (!dtype.is_string()) fail(name, "has a dtype that is not a string");
    tensor.dtype = dtype.get<std::string>();
    const std::uint64_t element = bytes_of(tensor.dtype);
    if (element == 0) fail(name, "has the unknown dtype '" + tensor.dtype + "'");
    tensor.shape = integers(name, entry, "shape");
    const std::vector<std::uint64_t> offsets = integers(name, entry, "data_offsets");
    if (offsets.size() != 2) fail(name, "has " + number(offsets.size()) + " data_offsets, expected 2");
    tensor.begin = offsets[0];
    tensor.end = offsets[1];

    const std::uint64_t data = file_.size() - header_.data_begin;
    if (tensor.begin > tensor.end)
      fail(name, "begins at byte " + number(tensor.begin) + " of the data, after its end at " + number(tensor.end));
    if (tensor.end > data)
      fail(name, "ends at byte " + number(tensor.end) + " of the data, but the file holds only " + number(data) +
                     " (is it truncated?)");
    std::uint64_t size = element;
    bool overflow = false;
    for (const std::uint64_t extent : tensor.shape) overflow |= __builtin_mul_overflow(size, extent, &size);
    // An extent of 0 makes the size 0, whatever the product of the others was.
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0u) != tensor.shape.end()) {
      size = 0;
      overflow = false;
    }
    if (overflow) fail(name, "has shape " + text(tensor.shape) + ", more elements than 64 bits can count");
    if (size != tensor.end - tensor.begin)
      fail(name, "has shape " + text(tensor.shape) + " and dtype " + tensor.dtype + ", which is " + number(size) +
                     " bytes, but its data_offsets span " + number(tensor.end - tensor.begin));
    return tensor;
  }

  void check_offsets() const {
    using Entry = std::pair<const std::string, SafetensorInfo>;
    std::vector<const Entry*> order;
    for (const Entry& entry : header_.tensors) order.push_back(&entry);
    std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
      return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
    });
    std::uint64_t covered = 0;
    const std::string* before = nullptr;
    for (const Entry* entry : order) {
      const auto& [name, tensor] = *entry;
      if (tensor.begin < covered)
        fail(name, "begins at byte " + number(tensor.begin) + " of the data and overlaps tensor '" + *before +
                       "', which ends at " + number(covered));
      if (tensor.begin > covered)
        fail(name, "begins at byte " + number(tensor.begin) + " of the data, which leaves a gap after byte " +
                       number(covered));
      covered = tensor.end;
      before = &name;
    }
    if (const std::uint64_t data = file_.size() - header_.data_begin; covered != data)
      fail("the tensors cover " + number(covered) + " bytes of data, but the file holds " + number(data));
  }

  const nlohmann::json& member(const std::string& name, const nlohmann::json& entry, const char* key) const {
    const auto found = entry.find(key);
    if (found == entry.end()) fail(name, std::string("has no ") + key);
    return *found;
  }

  std::vector<std::uint64_t> integers(const std::string& name, const nlohmann::json& entry, const char* key) const {
    const auto& list = member(name, entry, key);
    if (!list.is_array()) fail(name, std::string("has a ") + key + " that is not a list");
    std::vector<std::uint64_t> values;
    for (const auto& value : list) {
      // A number beyond 64 bits arrives as a floating one.
      if (!value.is_number_unsigned())
        fail(name, std::string("has the value ") + excerpt(value) + " in its " + key +
                       ", expected an integer from 0 to 2^64 - 1");
      values.push_back(value.get<std::uint64_t>());
    }
    return values;
  }

  /// Bytes of one element; 0 if the dtype is unknown or does not fill whole bytes.
  static std::uint64_t bytes_of(std::string_view dtype) {
    if (dtype == "F64" || dtype == "I64" || dtype == "U64" || dtype == "C64") return 8;
    if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
    if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
    if (dtype == "I8" || dtype == "U8" || dtype == "BOOL" || dtype == "F8_E4M3" || dtype == "F8_E5M2") return 1;
    return 0;
  }

  static std::string number(std::uint64_t n) { return std::to_string(n); }
  static std::string excerpt(const nlohmann::json& value) {
    return value.is_number() ? value.dump() : std::string("of type ") + value.type_name();
  }
  static std::string text(const std::vector<std::uint64_t>& shape) {
    std::string all = "(";
    for (const std::uint64_t extent : shape) all += (all.size() > 1 ? ", " : "") + number(extent);
    return all + ")";
  }
  [[noreturn]] void fail(std::string fault) const {
    // Names come from the file, and a message is one printable line.
    for (char& c : fault)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    throw SafetensorsError(path_ + ": " + fault);
  }
  [[noreturn]] void fail(const std::string& name, const std::string& fault) const {
    fail("tensor '" + name + "' " + fault);
  }

  std::string path_;
  std::span<const std::byte> file_;
  SafetensorsHeader header_;
};

inline SafetensorsHeader read_safetensors_header(const std::string& path, std::span<const std::byte> file) {
  return SafetensorsHeaderReader(path, file).read();
}

}  // namespace detail

}  // namespace mha::inline v0
