// SPDX-License-Identifier: Apache-2.0
// A model folder small enough to write in a test: 2 layers, 2 heads, 8 wide, 12 in the middle, random weights.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scratch.hpp"

namespace tiny {

inline constexpr int kLayers = 2, kHeads = 2, kHidden = 8, kMiddle = 12, kPositions = 16;
// No container of strings: where clang++ makes it once for many files, its order to their own variables is open.
inline constexpr std::array kVocabulary{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat",
                                        "on",    "a",     "mat",   ".",     "##s",    "dog", "ran"};

struct Tensor {
  std::vector<int> shape;
  std::vector<float> values;
};

/// Change a member, then write().
struct Model {
  mha_test::Scratch scratch;
  nlohmann::json config{{"model_type", "bert"},
                        {"hidden_act", "gelu"},
                        {"num_hidden_layers", kLayers},
                        {"num_attention_heads", kHeads},
                        {"hidden_size", kHidden},
                        {"intermediate_size", kMiddle},
                        {"vocab_size", 15},
                        {"max_position_embeddings", kPositions},
                        {"type_vocab_size", 2},
                        {"layer_norm_eps", 1e-12}};
  std::map<std::string, Tensor> tensors;
  std::mt19937 random;

  explicit Model(unsigned seed = 7) : random(seed) {
    const int words = static_cast<int>(kVocabulary.size());
    add("embeddings.word_embeddings.weight", {words, kHidden});
    add("embeddings.position_embeddings.weight", {kPositions, kHidden});
    add("embeddings.token_type_embeddings.weight", {2, kHidden});
    add_norm("embeddings.LayerNorm");
    for (int i = 0; i < kLayers; ++i) {
      const std::string layer = "encoder.layer." + std::to_string(i) + ".";
      for (const char* part : {"self.query", "self.key", "self.value", "output.dense"})
        add_dense(layer + "attention." + part, kHidden, kHidden);
      add_norm(layer + "attention.output.LayerNorm");
      add_dense(layer + "intermediate.dense", kMiddle, kHidden);
      add_dense(layer + "output.dense", kHidden, kMiddle);
      add_norm(layer + "output.LayerNorm");
    }
  }

  void add(const std::string& name, const std::vector<int>& shape) {
    std::size_t size = 1;
    for (const int extent : shape) size *= static_cast<std::size_t>(extent);
    Tensor t{shape, std::vector<float>(size)};
    for (float& v : t.values) v = std::normal_distribution<float>(0, 0.5f)(random);
    tensors[name] = std::move(t);
  }

  std::string weights(const std::string& prefix = "") const {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      const std::size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
      header[prefix + name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return mha_test::safetensors_bytes(text, data);
  }

  std::filesystem::path write() const {
    std::string words;
    for (const char* word : kVocabulary) words += std::string(word) + "\n";
    scratch.write("config.json", config.dump());
    scratch.write("vocab.txt", words);
    scratch.write("model.safetensors", weights());
    return scratch.root();
  }

 private:
  void add_dense(const std::string& name, int out, int in) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }
  void add_norm(const std::string& name) {
    add(name + ".weight", {kHidden});
    add(name + ".bias", {kHidden});
  }
};

}  // namespace tiny
