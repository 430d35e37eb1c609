// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "../config.hpp"
#include "../core/check.hpp"

namespace mha::inline MHA_NAMESPACE {

/// A checkpoint that cannot be used, in one sentence that names the file and the tensor.
class SafetensorsError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the header says of one tensor.
struct SafetensorInfo {
  std::string dtype;                 ///< "F32", "BF16", …
  std::vector<std::uint64_t> shape;  ///< row-major
  std::uint64_t begin = 0;           ///< bytes, counted from the first byte after the header
  std::uint64_t end = 0;
};

namespace detail {

struct SafetensorsHeader {
  std::map<std::string, SafetensorInfo, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
  std::uint64_t data_begin = 0;  // position of the first byte after the header
};

/// Of the format: bytes of a header, and the name that is no tensor's.
inline constexpr std::uint64_t largest_safetensors_header = 100'000'000;
inline constexpr std::string_view safetensors_metadata = "__metadata__";

/// A text from a file, short enough for a message.
inline std::string safetensors_excerpt(std::string_view text) {
  constexpr std::size_t longest = 200;
  if (text.size() <= longest) return std::string(text);
  std::size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not amid a character
  return std::string(text.substr(0, end)) + "...";
}

inline std::string safetensors_excerpt(const std::vector<std::uint64_t>& shape) {
  constexpr std::size_t longest = 8;
  std::string all = "(";
  for (std::size_t axis = 0; axis < std::min(shape.size(), longest); ++axis)
    all += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
  return all + (shape.size() > longest ? ", ...)" : ")");
}

/// Bytes of the first character of a text, in UTF-8, if that ends a line, changes the direction of writing or is
/// another control; else 0.
inline std::size_t control_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto is_between = [](unsigned x, unsigned first, unsigned last) { return first <= x && x <= last; };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return 1;
  if (byte(0) == 0xc2) return is_between(byte(1), 0x80, 0x9f) ? 2 : 0;  // U+0080 to U+009F
  if (byte(0) != 0xe2) return 0;
  if (byte(1) == 0x80) return is_between(byte(2), 0xa8, 0xae) ? 3 : 0;              // U+2028 to U+202E
  return byte(1) == 0x81 && is_between(byte(2), 0xa6, 0xa9) ? std::size_t{3} : 0u;  // U+2066 to U+2069
}

/// Names come from the file, and a message is one printable line.
[[noreturn]] inline void fail_safetensors(const std::string& path, std::string_view fault) {
  std::string line = path + ": ";
  while (!fault.empty()) {
    const std::size_t control = control_bytes(fault);
    line += control > 0 ? '?' : fault.front();
    fault.remove_prefix(std::max<std::size_t>(control, 1));
  }
  throw_error(SafetensorsError(line));
}

[[noreturn]] inline void fail_safetensors(const std::string& path, std::string_view tensor, const std::string& fault) {
  fail_safetensors(path, "tensor '" + safetensors_excerpt(tensor) + "' " + fault);
}

/// What MappedFile does with a file that cannot be read.
[[noreturn]] inline void fail_file(const std::system_error& error) { throw_error(SafetensorsError(error.what())); }

/// What a file whose first 8 bytes are no header length seems to be, and what to do with it; empty if unknown.
inline std::string_view safetensors_lookalike(std::string_view file) {
  struct Format {
    std::string_view first, text;
  };
  constexpr Format formats[] = {
      {"PK\x03\x04",
       "a zip archive, as torch.save writes (.bin, .pt, .pth): convert it with safetensors.torch.save_file"},
      {"\x80", "a Python pickle, as old versions of torch.save write: convert it with safetensors.torch.save_file"},
      {"version https://git-lfs", "a Git LFS pointer, not the file itself: fetch that with git lfs pull"},
      {"{", "JSON, such as the index of a checkpoint in several files: open that with mha::Checkpoint"},
      {"<", "HTML or XML, such as the page of a failed download"},
      {"GGUF", "a GGUF file"},
      {"\x89HDF", "an HDF5 file"},
  };
  for (const Format& format : formats)
    if (file.starts_with(format.first)) return format.text;
  return {};
}

/// Checks a whole file's header; every fault is a SafetensorsError of one sentence.
///
/// A file is: header length (8 bytes, little-endian), header (JSON), data. The JSON is an object, from the first byte
/// of the header on, padded with spaces only. It maps each name to a dtype, a shape and the data offsets [begin, end),
/// which together cover the data without gap or overlap; __metadata__ maps names to texts. No name stands twice.
///
/// Cost      O(header bytes), and O(n log n) for n tensors: checked as it is parsed, with no tree of the JSON between
class SafetensorsHeaderReader {
 public:
  SafetensorsHeaderReader(std::string path, std::span<const std::byte> file) : path_(std::move(path)), file_(file) {}

  SafetensorsHeader read() {
    const std::string_view text = json_text();
    nlohmann::json::sax_parse(text.begin(), text.end(), this);
    check_offsets();
    return std::move(header_);
  }

  // What the parser tells, in the order of the text. Each returns true or throws.

  bool null() { refuse("of type null"); }
  bool boolean(bool) { refuse("of type boolean"); }
  bool number_integer(std::int64_t value) { refuse(value == 0 ? "-0" : std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (list_ == nullptr) refuse(number(value));
    list_->push_back(value);
    return true;
  }
  /// Any number with a point or an exponent, and those beyond 64 bits.
  bool number_float(double, const std::string& value) { refuse(value); }
  bool string(const std::string& value) {
    if (place_ == Place::metadata)
      header_.metadata.emplace(key_, value);
    else if (place_ == Place::tensor && member_ == dtype)
      tensor_.dtype = value;
    else
      refuse("of type string");
    return true;
  }
  bool binary(const nlohmann::json::binary_t&) { refuse("of type binary"); }
  bool start_object(std::size_t) {
    if (place_ == Place::outside)
      place_ = Place::root;
    else if (place_ == Place::root)
      place_ = name_ == safetensors_metadata ? Place::metadata : Place::tensor;
    else
      refuse("of type object");
    return true;
  }
  bool key(const std::string& key) {
    if (place_ == Place::root)
      begin_entry(key);
    else if (place_ == Place::metadata)
      begin_metadata(key);
    else
      begin_member(key);
    return true;
  }
  bool end_object() {
    if (place_ == Place::tensor) end_tensor();
    place_ = place_ == Place::root ? Place::outside : Place::root;
    return true;
  }
  bool start_array(std::size_t) {
    if (list_ != nullptr || place_ != Place::tensor || member_ == dtype) refuse("of type array");
    list_ = member_ == shape ? &tensor_.shape : &offsets_;
    return true;
  }
  bool end_array() {
    list_ = nullptr;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error) {
    constexpr int number_out_of_range = 406;
    if (error.id == number_out_of_range) refuse(token);
    fail_json(position);
  }

 private:
  static constexpr std::uint64_t prefix_bytes = 8;

  enum class Place : unsigned char { outside, root, metadata, tensor };
  enum Member : unsigned char { dtype, shape, data_offsets };
  static constexpr const char* members[] = {"dtype", "shape", "data_offsets"};

  std::string_view json_text() {
    if (file_.size() < prefix_bytes)
      fail("the file is truncated: it has " + number(file_.size()) + " bytes, fewer than the " + number(prefix_bytes) +
           " of the header length");
    std::uint64_t length = 0;
    for (std::size_t i = prefix_bytes; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(file_[i]);
    const std::string_view all(reinterpret_cast<const char*>(file_.data()), file_.size());
    if (length > largest_safetensors_header) {
      const std::string_view other = safetensors_lookalike(all);
      fail(other.empty() ? "the header length is " + number(length) + " bytes, more than the format's limit of " +
                               number(largest_safetensors_header)
                         : "this is not a safetensors file, it seems to be " + std::string(other));
    }
    if (length > file_.size() - prefix_bytes)
      fail("the header length is " + number(length) + " bytes, but only " + number(file_.size() - prefix_bytes) +
           " follow in the file (is it truncated?)");
    header_.data_begin = prefix_bytes + length;
    const std::string_view text = all.substr(prefix_bytes, static_cast<std::size_t>(length));
    if (!text.starts_with('{')) fail("the header does not begin with '{'");
    // The parser would take this byte for the end of the text.
    if (const std::size_t zero = text.find('\0'); zero != text.npos) fail_json(zero + 1);
    const std::size_t last = text.find_last_not_of(' ');
    if (text[last] == '\t' || text[last] == '\n' || text[last] == '\r')
      fail("the header is padded at its byte " + number(last + 1) + " with something else than spaces");
    return text;
  }

  void begin_entry(const std::string& name) {
    name_ = name;
    if (name == safetensors_metadata) {
      if (has_metadata_) fail("the header has __metadata__ twice");
      has_metadata_ = true;
    } else if (header_.tensors.contains(name)) {
      fail("the header names tensor '" + safetensors_excerpt(name) + "' twice");
    }
    tensor_ = {};
    offsets_.clear();
    for (bool& seen : seen_) seen = false;
  }

  void begin_metadata(const std::string& key) {
    key_ = key;
    if (header_.metadata.contains(key)) fail("__metadata__ has '" + safetensors_excerpt(key) + "' twice");
  }

  void begin_member(const std::string& key) {
    for (const Member member : {dtype, shape, data_offsets})
      if (key == members[member]) {
        if (std::exchange(seen_[member], true)) fail_tensor("has " + key + " twice");
        member_ = member;
        return;
      }
    fail_tensor("has '" + safetensors_excerpt(key) + "', expected dtype, shape and data_offsets only");
  }

  void end_tensor() {
    for (const Member member : {dtype, shape, data_offsets})
      if (!seen_[member]) fail_tensor(std::string("has no ") + members[member]);
    const std::uint64_t element = bytes_of(tensor_.dtype);
    if (element == 0) fail_tensor("has the unknown dtype '" + safetensors_excerpt(tensor_.dtype) + "'");
    if (offsets_.size() != 2) fail_tensor("has " + number(offsets_.size()) + " data_offsets, expected 2");
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];

    const std::uint64_t data = file_.size() - header_.data_begin;
    if (tensor_.begin > tensor_.end)
      fail_tensor("begins at byte " + number(tensor_.begin) + " of the data, after its end at " + number(tensor_.end));
    if (tensor_.end > data)
      fail_tensor("ends at byte " + number(tensor_.end) + " of the data, but the file holds only " + number(data) +
                  " (is it truncated?)");
    std::uint64_t size = element;
    bool overflow = false;
    for (const std::uint64_t extent : tensor_.shape) overflow |= __builtin_mul_overflow(size, extent, &size);
    // An extent of 0 makes the size 0, whatever the product of the others was.
    if (std::find(tensor_.shape.begin(), tensor_.shape.end(), 0u) != tensor_.shape.end()) {
      size = 0;
      overflow = false;
    }
    const std::string has_shape = "has shape " + safetensors_excerpt(tensor_.shape);
    if (overflow) fail_tensor(has_shape + ", more elements than 64 bits can count");
    if (size != tensor_.end - tensor_.begin)
      fail_tensor(has_shape + " and dtype " + tensor_.dtype + ", which is " + number(size) +
                  " bytes, but its data_offsets span " + number(tensor_.end - tensor_.begin));
    header_.tensors.emplace(name_, std::move(tensor_));
  }

  void check_offsets() const {
    using Entry = std::pair<const std::string, SafetensorInfo>;
    std::vector<const Entry*> order;
    order.reserve(header_.tensors.size());
    for (const Entry& entry : header_.tensors) order.push_back(&entry);
    std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
      return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
    });
    std::uint64_t covered = 0;
    const std::string* before = nullptr;
    for (const Entry* entry : order) {
      const auto& [name, tensor] = *entry;
      if (tensor.begin < covered)
        fail_safetensors(path_, name,
                         "begins at byte " + number(tensor.begin) + " of the data and overlaps tensor '" +
                             safetensors_excerpt(*before) + "', which ends at " + number(covered));
      if (tensor.begin > covered)
        fail_safetensors(path_, name,
                         "begins at byte " + number(tensor.begin) + " of the data, which leaves a gap after byte " +
                             number(covered));
      covered = tensor.end;
      before = &name;
    }
    if (const std::uint64_t data = file_.size() - header_.data_begin; covered != data)
      fail("the tensors cover " + number(covered) + " bytes of data, but the file holds " + number(data));
  }

  /// A value that may not stand where it does.
  [[noreturn]] void refuse(const std::string& value) const {
    if (place_ == Place::metadata) fail("__metadata__ '" + safetensors_excerpt(key_) + "' is not a string");
    if (place_ != Place::tensor) {
      if (name_ == safetensors_metadata) fail("__metadata__ is not an object");
      fail_tensor("is not described by an object");
    }
    if (member_ == dtype) fail_tensor("has a dtype that is not a string");
    const std::string member = members[member_];
    if (list_ == nullptr) fail_tensor("has a " + member + " that is not a list");
    fail_tensor("has the value " + safetensors_excerpt(value) + " in its " + member +
                ", expected an integer from 0 to 2^64 - 1");
  }

  /// Bytes of one element; 0 if the dtype is unknown or does not fill whole bytes.
  static std::uint64_t bytes_of(std::string_view dtype) {
    if (dtype == "F64" || dtype == "I64" || dtype == "U64" || dtype == "C64") return 8;
    if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
    if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
    if (dtype == "I8" || dtype == "U8" || dtype == "BOOL") return 1;
    for (const char* const form : {"E4M3", "E5M2", "E8M0", "E4M3FNUZ", "E5M2FNUZ"})
      if (dtype.starts_with("F8_") && dtype.substr(3) == form) return 1;
    return 0;
  }

  static std::string number(std::uint64_t n) { return std::to_string(n); }
  [[noreturn]] void fail(const std::string& fault) const { fail_safetensors(path_, fault); }
  [[noreturn]] void fail_tensor(const std::string& fault) const { fail_safetensors(path_, name_, fault); }
  [[noreturn]] void fail_json(std::size_t byte) const {
    fail("the header is not valid JSON at its byte " + number(byte));
  }

  std::string path_;
  std::span<const std::byte> file_;
  SafetensorsHeader header_;

  // Where the parser is.
  Place place_ = Place::outside;
  bool has_metadata_ = false;
  std::string name_, key_;  // of the entry, and of the text in __metadata__
  SafetensorInfo tensor_;   // as far as it is known
  std::vector<std::uint64_t> offsets_;
  bool seen_[3] = {};
  Member member_ = dtype;
  std::vector<std::uint64_t>* list_ = nullptr;  // the one being read
};

inline SafetensorsHeader read_safetensors_header(const std::string& path, std::span<const std::byte> file) {
  return SafetensorsHeaderReader(path, file).read();
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
