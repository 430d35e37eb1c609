// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint.hpp"
#include "config_file.hpp"
#include "model_config.hpp"
#include "model_tensors.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The config.json of GPT-2.
struct Gpt2Config : ModelConfig {
  Index positions = 0;  ///< the longest input
  bool tied = true;     ///< output() is the token embeddings, unless the file has an lm_head with other numbers
};

/// The weights of GPT-2 by Hugging Face's names, from a folder with config.json; with or without "transformer." in
/// front. Its Conv1D stores matrices as (in, out), and query, key and value side by side in c_attn.
///
///   const mha::Gpt2<float> gpt2("gpt2");
///   attention.borrow(gpt2.block(0).attention, gpt2.mapping());
///
/// Scalar, Errors   as Bert
template <class T> class Gpt2 {
 public:
  explicit Gpt2(const std::filesystem::path& folder) : Gpt2(Checkpoint(folder)) {}
  explicit Gpt2(const Checkpoint& checkpoint)
      : config_(read(ConfigFile(checkpoint.folder() / "config.json"))),
        tensors_(checkpoint, {"", "transformer."}, "wte.weight") {
    tensors_.require_blocks(names, config_.layers);
    for (Index i = 0; i < config_.layers; ++i) static_cast<void>(block(i));
    static_cast<void>(token_embeddings());
    static_cast<void>(position_embeddings());
    static_cast<void>(final_norm());
    if (has_output()) static_cast<void>(output());
  }

  [[nodiscard]] const Gpt2Config& config() const { return config_; }
  /// Keeps the memory of all weights alive.
  [[nodiscard]] std::shared_ptr<const void> mapping() const { return tensors_.mapping(); }

  /// (vocabulary, E)
  [[nodiscard]] TensorView<const T, 2> token_embeddings() const {
    return tensors_.matrix("wte.weight", config_.vocabulary, config_.norm.width);
  }
  /// (positions, E)
  [[nodiscard]] TensorView<const T, 2> position_embeddings() const {
    return tensors_.matrix("wpe.weight", config_.positions, config_.norm.width);
  }
  [[nodiscard]] BlockWeights<T> block(Index i) const {
    tensors_.require_block(i, config_.layers);
    return tensors_.block(names, config_, i, true, false);
  }
  [[nodiscard]] BorrowedNorm<T> final_norm() const { return tensors_.norm("ln_f", config_.norm.width, true); }
  /// The linear from rows to logits, (E, vocabulary) without a bias.
  [[nodiscard]] bool has_output() const { return config_.tied || tensors_.has_head("lm_head"); }
  [[nodiscard]] BorrowedLinear<T> output() const {
    return tensors_.head("lm_head", config_.tied, "wte.weight", token_embeddings());
  }

 private:
  static constexpr detail::BlockNames names{.block = "h.",
                                            .attention_norm = "ln_1",
                                            .query = nullptr,
                                            .key = nullptr,
                                            .value = nullptr,
                                            .output = "attn.c_proj",
                                            .feed_forward_norm = "ln_2",
                                            .up = "mlp.c_fc",
                                            .down = "mlp.c_proj",
                                            .fused = "attn.c_attn",
                                            .in_out = true,
                                            .unread = {"attn.bias", "attn.masked_bias"}};

  static Gpt2Config read(const ConfigFile& file) {
    Gpt2Config c;
    c.model_type = detail::model_type_of(file, {"gpt2"});
    file.only("scale_attn_weights", true);
    file.only("scale_attn_by_inverse_layer_idx", false);
    file.only("add_cross_attention", false);
    detail::require_causal(file);
    const bool four_times = file.find("n_inner") == nullptr;
    detail::read_sizes(file, {"n_layer", "n_embd", "n_head", four_times ? "n_embd" : "n_inner", "layer_norm_epsilon"},
                       c);
    if (four_times) c.feed_forward.d_hidden = detail::size_of(file, "mlp.c_fc", {4, c.norm.width});
    detail::size_of(file, "c_attn", {3, c.norm.width});
    c.vocabulary = file.positive("vocab_size");
    c.positions = file.positive("n_positions");
    detail::require_same_size(file, "num_hidden_layers", "n_layer", c.layers);
    detail::require_same_size(file, "hidden_size", "n_embd", c.norm.width);
    detail::require_same_size(file, "num_attention_heads", "n_head", c.attention.num_heads);
    detail::require_same_size(file, "max_position_embeddings", "n_positions", c.positions);
    c.activation = detail::activation_of(file, "activation_function", file.text("activation_function"));
    c.attention.bias = c.feed_forward.bias = true;
    c.tied = file.flag_or("tie_word_embeddings", true);
    return c;
  }

  Gpt2Config config_;
  detail::ModelTensors<T> tensors_;
};

}  // namespace mha::inline MHA_NAMESPACE
