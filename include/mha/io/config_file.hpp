// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "mapped_file.hpp"
#include "safetensors_header.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The members of a JSON object in a file, such as config.json, each checked as it is read.
///
/// Errors    SafetensorsError, one sentence that names the file, the key and its value
class ConfigFile {
 public:
  using Json = nlohmann::json;

  explicit ConfigFile(const std::filesystem::path& path) : path_(path.string()) {
    const MappedFile file(path_, detail::fail_file);
    if (file.size() > largest)
      fail("the file has " + std::to_string(file.size()) + " bytes, the limit is " + std::to_string(largest));
    read({reinterpret_cast<const char*>(file.data()), file.size()});
  }
  /// The text of such a file.
  ConfigFile(std::string path, std::string_view text) : path_(std::move(path)) { read(text); }

  [[nodiscard]] const std::string& path() const { return path_; }

  /// A member; null if there is none, or it is null.
  [[nodiscard]] const Json* find(const char* key) const { return found_in(object_, key); }

  /// Whether there is one, even null.
  [[nodiscard]] bool has(const char* key) const { return object_.contains(key); }

  [[nodiscard]] Index positive(const char* key) const { return positive_of(wanted(key), key); }
  /// What stands there, or `otherwise` where nothing does.
  [[nodiscard]] Index positive_or(const char* key, Index otherwise) const {
    const Json* const value = find(key);
    return value == nullptr ? otherwise : positive_of(*value, key);
  }
  [[nodiscard]] Index natural_or(const char* key, Index otherwise) const {
    const Json* const value = find(key);
    return value == nullptr ? otherwise : positive_of(*value, key, 0);
  }
  [[nodiscard]] double number(const char* key) const { return number_of(wanted(key), key); }
  [[nodiscard]] bool flag_or(const char* key, bool otherwise) const {
    const Json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(key, *value, "true or false");
    return value->get<bool>();
  }
  [[nodiscard]] std::string text(const char* key) const { return text_of(wanted(key), key); }
  [[nodiscard]] std::string text_or(const char* key, const char* otherwise) const {
    const Json* const value = find(key);
    return value == nullptr ? otherwise : text_of(*value, key);
  }
  /// A key that may be missing, but says nothing else than this.
  template <class Value> void only(const char* key, const Value& supported) const {
    const Json* const value = find(key);
    if (value != nullptr && *value != Json(supported)) refuse(key, *value, Json(supported).dump());
  }

  // The same of a value found elsewhere in the file, which messages call `key`.
  [[nodiscard]] Index positive_of(const Json& value, const char* key, Index least = 1) const {
    constexpr auto most = std::numeric_limits<Index>::max();
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < static_cast<std::uint64_t>(least) ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
      refuse(key, value, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return static_cast<Index>(value.get<std::uint64_t>());
  }
  [[nodiscard]] double number_of(const Json& value, const char* key) const {
    if (!value.is_number()) refuse(key, value, "a number");
    return value.get<double>();
  }
  [[nodiscard]] std::string text_of(const Json& value, const char* key) const {
    if (!value.is_string()) refuse(key, value, "a text");
    return value.get<std::string>();
  }
  static const Json* found_in(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(const char* key, const Json& value, const std::string& wanted) const {
    fail(std::string("'") + key + "' is " + detail::safetensors_excerpt(value.dump()) + ", expected " + wanted);
  }
  [[noreturn]] void missing(const char* key) const { fail(std::string("there is no '") + key + "'"); }
  [[noreturn]] void fail(const std::string& fault) const { detail::fail_safetensors(path_, fault); }

 private:
  static constexpr std::size_t largest = 100'000'000;
  static constexpr int deepest = 64;

  void read(std::string_view text) {
    if (text.find('\0') != text.npos) fail("it is not valid JSON");  // the parser would take it for the end of the text

    std::vector<std::set<std::string>> keys;  // of the objects that are open
    const auto notice = [&](int depth, Json::parse_event_t event, Json& key) {
      // Writing a value down, as messages do, takes the stack once for each level.
      if (depth > deepest) fail("it is nested more than " + std::to_string(deepest) + " levels deep");
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end) keys.pop_back();
      if (event == Json::parse_event_t::key && !keys.back().insert(key.get<std::string>()).second)
        fail("it has '" + detail::safetensors_excerpt(key.get<std::string>()) + "' twice");
      return true;
    };
    object_ = Json::parse(text.begin(), text.end(), notice, false);
    if (object_.is_discarded()) fail("it is not valid JSON");
    if (!object_.is_object()) fail("it is JSON, but not an object");
  }

  const Json& wanted(const char* key) const {
    const Json* const value = find(key);
    if (value == nullptr) missing(key);
    return *value;
  }

  std::string path_;
  Json object_;
};

}  // namespace mha::inline MHA_NAMESPACE
