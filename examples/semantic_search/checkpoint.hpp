// SPDX-License-Identifier: Apache-2.0
// A model folder on disk: what its config.json says, and its tensors with the shapes that this implies.
#pragma once

#include <filesystem>
#include <string>

#include <mha/io.hpp>
#include <mha/mha.hpp>

namespace semantic_search {

/// The numbers of a BERT encoder.
struct ModelConfig {
  int layers = 0;
  int heads = 0;
  int hidden = 0;        // E, the width of a token
  int intermediate = 0;  // F, the width between the two dense steps of a layer
  int vocabulary = 0;
  int positions = 0;  // the longest input that the checkpoint has position embeddings for
  int token_types = 0;
  float layer_norm_eps = 0;
  bool lower_case = true;  // tokenizer_config.json, if there is one
  int max_tokens = 256;    // sentence_bert_config.json, if there is one
};

/// A folder with config.json, vocab.txt and model.safetensors.
///
/// Errors    std::runtime_error, one sentence that names the file: the folder or a file of it is missing, config.json
///           lacks a key or asks for something else than an absolute-position GELU BERT with mean pooling
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);

  const ModelConfig& config() const { return config_; }
  std::filesystem::path vocabulary() const { return folder_ / "vocab.txt"; }

  /// A (rows, columns) weight in the mapped file; checkpoints keep dense weights as (out, in).
  mha::TensorView<const float, 2> matrix(const std::string& name, int rows, int columns) const;
  mha::TensorView<const float, 1> vector(const std::string& name, int size) const;

  /// Keeps the memory of matrix() and vector() alive.
  std::shared_ptr<const void> mapping() const { return tensors_.mapping(); }

 private:
  std::filesystem::path folder_;
  ModelConfig config_;
  mha::Safetensors tensors_;
  std::string prefix_;  // "bert." in checkpoints that were saved with a head on top
};

}  // namespace semantic_search
