// SPDX-License-Identifier: Apache-2.0
// A model folder on disk: the encoder's weights, and what stands beside them for texts.
#pragma once

#include <filesystem>

#include <mha/io.hpp>

namespace semantic_search {

/// A folder with config.json, vocab.txt and model.safetensors.
///
/// Errors    std::runtime_error, one sentence that names the file: the folder or a file of it is missing, config.json
///           asks for something else than an absolute-position GELU BERT with mean pooling, or a tensor does not fit it
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);

  /// The encoder's sizes and weights, in the mapped file.
  const mha::Bert<float>& bert() const { return bert_; }
  const mha::BertConfig& config() const { return bert_.config(); }

  std::filesystem::path vocabulary() const { return folder_ / "vocab.txt"; }
  bool lower_case() const { return lower_case_; }
  bool strip_accents() const { return strip_accents_; }
  int max_tokens() const { return max_tokens_; }

 private:
  std::filesystem::path folder_;
  mha::Bert<float> bert_;
  bool lower_case_ = true;     // tokenizer_config.json, if there is one
  bool strip_accents_ = true;  // likewise; as lower_case_ where nothing is said
  int max_tokens_ = 256;  // sentence_bert_config.json, if there is one, or else its tokenizer's; at most the positions
};

}  // namespace semantic_search
