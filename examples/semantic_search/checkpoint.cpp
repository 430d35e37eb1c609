// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <stdexcept>

#include <nlohmann/json.hpp>

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

ModelConfig read_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const json object = read_object(path);
  only(path, object, "model_type", "bert");
  only(path, object, "position_embedding_type", "absolute");
  if (!object.contains("hidden_act")) fail(path, "the key 'hidden_act' is missing");
  only(path, object, "hidden_act", "gelu");

  ModelConfig c;
  c.layers = positive(path, object, "num_hidden_layers");
  c.heads = positive(path, object, "num_attention_heads");
  c.hidden = positive(path, object, "hidden_size");
  c.intermediate = positive(path, object, "intermediate_size");
  c.vocabulary = positive(path, object, "vocab_size");
  c.positions = positive(path, object, "max_position_embeddings");
  c.token_types = positive(path, object, "type_vocab_size");
  const auto eps = object.find("layer_norm_eps");
  if (eps == object.end()) fail(path, "the key 'layer_norm_eps' is missing");
  if (!eps->is_number() || !(eps->get<double>() >= 0))
    fail(path, "'layer_norm_eps' is " + eps->dump() + ", expected a number from 0");
  c.layer_norm_eps = eps->get<float>();
  if (c.hidden % c.heads != 0)
    fail(path, "'hidden_size' " + std::to_string(c.hidden) + " is not a multiple of 'num_attention_heads' " +
                   std::to_string(c.heads));

  if (const fs::path tokenizer = folder / "tokenizer_config.json"; fs::exists(tokenizer)) {
    const json settings = read_object(tokenizer);
    if (const auto lower = settings.find("do_lower_case"); lower != settings.end()) {
      if (!lower->is_boolean()) fail(tokenizer, "'do_lower_case' is " + lower->dump() + ", expected true or false");
      c.lower_case = lower->get<bool>();
    }
  }
  if (const fs::path sentence = folder / "sentence_bert_config.json"; fs::exists(sentence))
    c.max_tokens = positive(sentence, read_object(sentence), "max_seq_length");
  c.max_tokens = std::min(c.max_tokens, c.positions);
  if (const fs::path pooling = folder / "1_Pooling" / "config.json"; fs::exists(pooling)) {
    const json settings = read_object(pooling);
    only(pooling, settings, "pooling_mode_mean_tokens", true);
    for (const char* other : {"pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"})
      only(pooling, settings, other, false);
  }
  return c;
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder)
    : folder_(checked_folder(folder)), config_(read_config(folder)), tensors_(folder / "model.safetensors") {
  if (!tensors_.contains("embeddings.word_embeddings.weight") &&
      tensors_.contains("bert.embeddings.word_embeddings.weight"))
    prefix_ = "bert.";
}

mha::TensorView<const float, 2> Checkpoint::matrix(const std::string& name, int rows, int columns) const {
  const auto found = tensors_.view<float, 2>(prefix_ + name);
  if (found.extent[0] != rows || found.extent[1] != columns)
    fail(tensors_.path(), "tensor '" + prefix_ + name + "' has shape (" + std::to_string(found.extent[0]) + ", " +
                              std::to_string(found.extent[1]) + "), config.json asks for (" + std::to_string(rows) +
                              ", " + std::to_string(columns) + ")");
  return found;
}

mha::TensorView<const float, 1> Checkpoint::vector(const std::string& name, int size) const {
  const auto found = tensors_.view<float, 1>(prefix_ + name);
  if (found.extent[0] != size)
    fail(tensors_.path(), "tensor '" + prefix_ + name + "' has size " + std::to_string(found.extent[0]) +
                              ", config.json asks for " + std::to_string(size));
  return found;
}

}  // namespace semantic_search
