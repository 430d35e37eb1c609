// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint.hpp"
#include "config_file.hpp"
#include "model_config.hpp"
#include "model_tensors.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The config.json of BERT.
struct BertConfig : ModelConfig {
  Index positions = 0;    ///< the longest input
  Index token_types = 0;  ///< segments
};

/// The weights of a BERT encoder by Hugging Face's names, from a folder with config.json; with or without "bert." in
/// front. LayerNorm's weight and bias may be called gamma and beta.
///
///   const mha::Bert<float> bert("bert-base-uncased");   // or of a Checkpoint
///   attention.borrow(bert.block(0).attention, bert.mapping());
///
/// Scalar    T, float for most; a float or double reader widens what is stored in 16 bits, once; mapping() keeps it.
///           What does not lie in the file at a multiple of the scalar's bytes is copied in the same way
/// Errors    SafetensorsError before anything is computed, one sentence with both values: config.json is of another
///           family or lacks a key; a tensor is missing, has another shape or scalar, or is there against config.json
template <class T> class Bert {
 public:
  explicit Bert(const std::filesystem::path& folder) : Bert(Checkpoint(folder)) {}
  explicit Bert(const Checkpoint& checkpoint)
      : config_(read(ConfigFile(checkpoint.folder() / "config.json"))),
        tensors_(checkpoint, {"", "bert."}, "embeddings.word_embeddings.weight") {
    tensors_.require_blocks(names, config_.layers);
    for (Index i = 0; i < config_.layers; ++i) static_cast<void>(block(i));
    static_cast<void>(word_embeddings());
    static_cast<void>(position_embeddings());
    static_cast<void>(token_type_embeddings());
    static_cast<void>(embedding_norm());
    if (has_pooler()) static_cast<void>(pooler());
  }

  [[nodiscard]] const BertConfig& config() const { return config_; }
  /// Keeps the memory of all weights alive.
  [[nodiscard]] std::shared_ptr<const void> mapping() const { return tensors_.mapping(); }

  /// (vocabulary, E)
  [[nodiscard]] TensorView<const T, 2> word_embeddings() const {
    return tensors_.matrix("embeddings.word_embeddings.weight", config_.vocabulary, config_.norm.width);
  }
  /// (positions, E)
  [[nodiscard]] TensorView<const T, 2> position_embeddings() const {
    return tensors_.matrix("embeddings.position_embeddings.weight", config_.positions, config_.norm.width);
  }
  /// (token_types, E)
  [[nodiscard]] TensorView<const T, 2> token_type_embeddings() const {
    return tensors_.matrix("embeddings.token_type_embeddings.weight", config_.token_types, config_.norm.width);
  }
  [[nodiscard]] BorrowedNorm<T> embedding_norm() const {
    return tensors_.norm("embeddings.LayerNorm", config_.norm.width, true);
  }
  [[nodiscard]] BlockWeights<T> block(Index i) const {
    tensors_.require_block(i, config_.layers);
    return tensors_.block(names, config_, i, true, false);
  }
  /// The linear of the first token, whose results go through tanh.
  [[nodiscard]] bool has_pooler() const { return tensors_.contains("pooler.dense.weight"); }
  [[nodiscard]] BorrowedLinear<T> pooler() const {
    return tensors_.linear("pooler.dense", config_.norm.width, config_.norm.width, true);
  }

 private:
  static constexpr detail::BlockNames names{.block = "encoder.layer.",
                                            .attention_norm = "attention.output.LayerNorm",
                                            .query = "attention.self.query",
                                            .key = "attention.self.key",
                                            .value = "attention.self.value",
                                            .output = "attention.output.dense",
                                            .feed_forward_norm = "output.LayerNorm",
                                            .up = "intermediate.dense",
                                            .down = "output.dense"};

  static BertConfig read(const ConfigFile& file) {
    BertConfig c;
    c.model_type = detail::model_type_of(file, {"bert"});
    file.only("position_embedding_type", "absolute");
    file.only("is_decoder", false);
    detail::read_sizes(
        file, {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps"}, c);
    c.vocabulary = file.positive("vocab_size");
    c.positions = file.positive("max_position_embeddings");
    c.token_types = file.positive("type_vocab_size");
    c.activation = detail::activation_of(file, "hidden_act", file.text("hidden_act"));
    c.attention.bias = c.feed_forward.bias = true;
    return c;
  }

  BertConfig config_;
  detail::ModelTensors<T> tensors_;
};

}  // namespace mha::inline MHA_NAMESPACE
