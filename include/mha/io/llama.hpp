// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>

#include "../policy/any_scaling.hpp"
#include "../policy/position.hpp"
#include "checkpoint.hpp"
#include "config_file.hpp"
#include "decoder_config.hpp"
#include "decoder_weights.hpp"
#include "model_config.hpp"
#include "model_tensors.hpp"
#include "rotary_config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The config.json of LLaMA or of a relative.
struct LlamaConfig : DecoderConfig {
  RotaryConfig rope;  ///< of every layer

  /// The positions of a model without scaling.
  ///
  /// Errors    SafetensorsError if config.json asks for a scaling
  [[nodiscard]] Rotary<> rotary() const {
    if (rope.type != "default")
      detail::fail_safetensors(path, "the rope_type is '" + rope.type + "', but the model is made without scaling");
    return {.base = rope.base, .dims = rope.dims};
  }
  /// The positions with the scaling that config.json asks for, if any, for texts of at most `length` tokens; 0 is as
  /// many as there are positions. "dynamic" and "longrope" depend on it, as RotaryConfig says.
  [[nodiscard]] Rotary<Halves, AnyScaling> scaled_rotary(Index length = 0) const {
    return rope.rotary(length == 0 ? positions : length);
  }
};

/// The weights of LLaMA and its relatives Mistral, Qwen 2, Qwen 3 and Phi-3 by Hugging Face's names, from a folder with
/// config.json; with or without "model." in front.
///
///   const mha::Llama<mha::bfloat16> llama("Qwen3-8B");
///   attention.borrow(llama.block(0).attention, llama.mapping());
///
/// Scalar, Errors   as Bert
template <class T> class Llama : public DecoderWeights<T, LlamaConfig> {
 public:
  explicit Llama(const std::filesystem::path& folder) : Llama(Checkpoint(folder)) {}
  explicit Llama(const Checkpoint& checkpoint)
      : Llama(checkpoint, read(ConfigFile(checkpoint.folder() / "config.json"))) {}

 private:
  Llama(const Checkpoint& checkpoint, const LlamaConfig& config)
      : DecoderWeights<T, LlamaConfig>(checkpoint, config, names(config)) {}

  /// Phi-3 has queries, keys and values in one matrix, and the gate above the other half of the feed-forward.
  static detail::BlockNames names(const LlamaConfig& config) {
    detail::BlockNames n = detail::decoder_names();
    if (config.model_type == "phi3") {
      n.up = "mlp.gate_up_proj";
      n.gate = nullptr;
      n.gate_above_up = true;
      n.fused = "self_attn.qkv_proj";
    }
    return n;
  }

  static LlamaConfig read(const ConfigFile& file) {
    LlamaConfig c;
    c.model_type = detail::model_type_of(file, {"llama", "mistral", "qwen2", "qwen3", "phi3"});
    detail::require_causal(file);
    const bool llama = c.model_type == "llama", qwen2 = c.model_type == "qwen2", qwen3 = c.model_type == "qwen3",
               phi3 = c.model_type == "phi3";
    const Index head_dim = qwen3 ? file.positive("head_dim") : file.find("head_dim") ? file.positive("head_dim") : 0;
    detail::read_decoder_sizes(file, c, head_dim);
    mha::Config& a = c.attention;
    detail::read_kv_heads(file, a, file.positive_or("num_key_value_heads", a.num_heads));
    if (phi3) {
      detail::size_of(file, "self_attn.qkv_proj", {3, a.query_width()});
      detail::size_of(file, "mlp.gate_up_proj", {2, c.feed_forward.d_hidden});
    }
    if (llama || qwen3) a.bias = file.flag_or("attention_bias", false);
    if (qwen2) a.bias = true, a.output_bias = false;
    c.feed_forward.bias = llama && file.flag_or("mlp_bias", false);
    c.qk_norm = qwen3;
    c.vocabulary = file.positive("vocab_size");
    c.positions = file.positive("max_position_embeddings");
    c.activation = "gated " + detail::activation_of(file, "hidden_act", file.text_or("hidden_act", "silu"));
    c.tied = file.flag_or("tie_word_embeddings", false);
    c.rope = detail::read_rotary(file, a.head_dim, c.positions, phi3 ? detail::RotaryOf::phi3 : detail::RotaryOf::all);
    read_windows(file, c);
    return c;
  }

  static void read_windows(const ConfigFile& file, LlamaConfig& c) {
    const bool mistral = c.model_type == "mistral", phi3 = c.model_type == "phi3",
               qwen = c.model_type.starts_with("qwen");
    const bool used = mistral || phi3 || (qwen && file.flag_or("use_sliding_window", false));
    if (used && !phi3 && !file.has("sliding_window")) file.missing("sliding_window");
    const Index window = used ? file.positive_or("sliding_window", 0) : 0;
    if (const auto* const types = qwen || mistral ? file.find("layer_types") : nullptr) {
      c.windows = detail::windows_of_types(file, *types, c.layers, window);
      return;
    }
    c.windows.assign(static_cast<std::size_t>(c.layers), 0);
    const Index first = qwen && window > 0 ? file.natural_or("max_window_layers", 28) : 0;
    for (Index i = first; i < c.layers; ++i) c.windows[static_cast<std::size_t>(i)] = window;
  }
};

}  // namespace mha::inline MHA_NAMESPACE
