// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "../core/view.hpp"
#include "checkpoint.hpp"
#include "model_tensors.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// Hugging Face's names in a block of LLaMA, from which those of other decoders differ.
inline BlockNames decoder_names() {
  return {.block = "layers.",
          .attention_norm = "input_layernorm",
          .query = "self_attn.q_proj",
          .key = "self_attn.k_proj",
          .value = "self_attn.v_proj",
          .output = "self_attn.o_proj",
          .query_norm = "self_attn.q_norm",
          .key_norm = "self_attn.k_norm",
          .feed_forward_norm = "post_attention_layernorm",
          .up = "mlp.up_proj",
          .down = "mlp.down_proj",
          .gate = "mlp.gate_proj",
          .unread = {"self_attn.rotary_emb.inv_freq"}};
}

}  // namespace detail

/// What Llama and Gemma have alike: the weights of a decoder without biases in its norms, each block by the same names.
/// Config is a DecoderConfig.
template <class T, class Config> class DecoderWeights {
 public:
  [[nodiscard]] const Config& config() const { return config_; }
  /// Keeps the memory of all weights alive.
  [[nodiscard]] std::shared_ptr<const void> mapping() const { return tensors_.mapping(); }

  /// (vocabulary, E)
  [[nodiscard]] TensorView<const T, 2> token_embeddings() const {
    return tensors_.matrix("embed_tokens.weight", config_.vocabulary, config_.norm.width);
  }
  [[nodiscard]] BlockWeights<T> block(Index i) const {
    tensors_.require_block(i, config_.layers);
    return tensors_.block(names_, config_, i, false, config_.qk_norm);
  }
  [[nodiscard]] BorrowedNorm<T> final_norm() const { return tensors_.norm("norm", config_.norm.width, false); }
  /// The linear from rows to logits, (E, vocabulary) without a bias.
  [[nodiscard]] bool has_output() const { return config_.tied || tensors_.has_head("lm_head"); }
  [[nodiscard]] BorrowedLinear<T> output() const {
    return tensors_.head("lm_head", config_.tied, "embed_tokens.weight", token_embeddings());
  }

 protected:
  /// Errors    as Bert
  DecoderWeights(const Checkpoint& checkpoint, Config config, const detail::BlockNames& names)
      : config_(std::move(config)), names_(names), tensors_(checkpoint, {"", "model."}, "embed_tokens.weight") {
    tensors_.require_blocks(names_, config_.layers);
    for (Index i = 0; i < config_.layers; ++i) static_cast<void>(block(i));
    static_cast<void>(token_embeddings());
    static_cast<void>(final_norm());
    if (has_output()) static_cast<void>(output());
  }

 private:
  Config config_;
  detail::BlockNames names_;
  detail::ModelTensors<T> tensors_;
};

}  // namespace mha::inline MHA_NAMESPACE
