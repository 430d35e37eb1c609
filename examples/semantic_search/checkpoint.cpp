// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include <mha/block.hpp>

namespace semantic_search {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

[[noreturn]] void fail(const fs::path& file, const std::string& fault) {
  throw std::runtime_error(file.string() + ": " + fault);
}

fs::path checked_folder(const fs::path& folder) {
  if (!fs::is_directory(folder))
    throw std::runtime_error("there is no model folder '" + folder.string() +
                             "': run cmake/fetch_minilm.sh to download all-MiniLM-L6-v2 (84 MB), or name a folder with "
                             "--model");
  for (const char* file : {"config.json", "vocab.txt", "model.safetensors"})
    if (!fs::is_regular_file(folder / file))
      throw std::runtime_error("the model folder '" + folder.string() + "' has no " + file +
                               ": it should hold config.json, vocab.txt and model.safetensors, as "
                               "cmake/fetch_minilm.sh makes it");
  return folder;
}

json read_object(const fs::path& path) {
  std::ifstream file(path);
  if (!file) fail(path, "cannot be read");
  json object;
  try {
    object = json::parse(file);
  } catch (const json::parse_error& error) {
    fail(path, "is not valid JSON at its byte " + std::to_string(error.byte));
  }
  if (!object.is_object()) fail(path, "is JSON, but not an object");
  return object;
}

int positive(const fs::path& path, const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) fail(path, std::string("the key '") + key + "' is missing");
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() == 0 ||
      found->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
    fail(path, std::string("'") + key + "' is " + found->dump() + ", expected a positive integer");
  return found->get<int>();
}

/// A key that may be absent, but must not say anything else than what this program does.
void only(const fs::path& path, const json& object, const char* key, const json& supported) {
  const auto found = object.find(key);
  if (found != object.end() && *found != supported)
    fail(path, std::string("'") + key + "' is " + found->dump() + ", only " + supported.dump() + " is supported");
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder) : folder_(checked_folder(folder)), bert_(mha::Checkpoint(folder)) {
  config().require_activation<mha::Gelu>();
  if (const fs::path tokenizer = folder / "tokenizer_config.json"; fs::exists(tokenizer)) {
    const json settings = read_object(tokenizer);
    if (const auto lower = settings.find("do_lower_case"); lower != settings.end()) {
      if (!lower->is_boolean()) fail(tokenizer, "'do_lower_case' is " + lower->dump() + ", expected true or false");
      lower_case_ = lower->get<bool>();
    }
  }
  if (const fs::path sentence = folder / "sentence_bert_config.json"; fs::exists(sentence))
    max_tokens_ = positive(sentence, read_object(sentence), "max_seq_length");
  max_tokens_ = std::min(max_tokens_, config().positions);
  if (const fs::path pooling = folder / "1_Pooling" / "config.json"; fs::exists(pooling)) {
    const json settings = read_object(pooling);
    only(pooling, settings, "pooling_mode_mean_tokens", true);
    for (const char* other : {"pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"})
      only(pooling, settings, other, false);
  }
}

}  // namespace semantic_search
