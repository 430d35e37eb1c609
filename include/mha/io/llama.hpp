// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../policy/any_scaling.hpp"
#include "../policy/mask/positional.hpp"
#include "../policy/position.hpp"
#include "checkpoint.hpp"
#include "config_file.hpp"
#include "model_config.hpp"
#include "model_tensors.hpp"

namespace mha::inline MHA_NAMESPACE {

struct LlamaConfig : ModelConfig {
  Index positions = 0;         ///< the longest input
  bool tied = false;           ///< output() is the token embeddings
  bool qk_norm = false;        ///< QkNorm, as Qwen 3 has it; its eps is norm.eps
  std::vector<Index> windows;  ///< of each layer: how many keys a query sees, its own among them; 0 for all before it
  double rope_base = 10000;
  std::string rope_type = "default";  ///< or "linear", "llama3", "yarn"
  AnyScaling rope_scaling;            ///< of that type

  /// Errors    SafetensorsError if config.json asks for a scaling
  Rotary<> rotary() const {
    if (rope_type != "default")
      detail::fail_safetensors(path, "the rope_type is '" + rope_type + "', but the model is made without scaling");
    return {.base = rope_base};
  }
  /// The same with the scaling that config.json asks for, if any.
  Rotary<Halves, AnyScaling> scaled_rotary() const { return {.base = rope_base, .scaling = rope_scaling}; }
  /// The mask of a layer: as Causal where it has no window.
  SlidingWindow window(Index layer) const {
    detail::require(layer >= 0 && layer < layers, "window: there is no layer ", layer, " among the ", layers);
    const Index keys = windows[static_cast<std::size_t>(layer)];
    return {.left = keys == 0 ? std::numeric_limits<Index>::max() : keys - 1};
  }
};

/// The weights of LLaMA and its relatives Mistral, Qwen 2 and Qwen 3 by Hugging Face's names, from a folder with
/// config.json; with or without "model." in front.
///
///   const mha::Llama<mha::bfloat16> llama("Qwen3-8B");
///   attention.borrow(llama.block(0).attention, llama.mapping());
///
/// Scalar, Errors   as Bert
template <class T> class Llama {
 public:
  explicit Llama(const std::filesystem::path& folder) : Llama(Checkpoint(folder)) {}
  explicit Llama(const Checkpoint& checkpoint)
      : config_(read(ConfigFile(checkpoint.folder() / "config.json"))),
        tensors_(checkpoint, {"", "model."}, "embed_tokens.weight") {
    tensors_.require_blocks(names, config_.layers);
    for (Index i = 0; i < config_.layers; ++i) static_cast<void>(block(i));
    static_cast<void>(token_embeddings());
    static_cast<void>(final_norm());
    if (has_output()) static_cast<void>(output());
  }

  const LlamaConfig& config() const { return config_; }
  /// Keeps the memory of all weights alive.
  std::shared_ptr<const void> mapping() const { return tensors_.mapping(); }

  /// (vocabulary, E)
  TensorView<const T, 2> token_embeddings() const {
    return tensors_.matrix("embed_tokens.weight", config_.vocabulary, config_.norm.width);
  }
  BlockWeights<T> block(Index i) const {
    tensors_.require_block(i, config_.layers);
    return tensors_.block(names, config_, i, false, config_.qk_norm);
  }
  BorrowedNorm<T> final_norm() const { return tensors_.norm("norm", config_.norm.width, false); }
  /// The linear from rows to logits, (E, vocabulary) without a bias.
  bool has_output() const { return config_.tied || tensors_.has_head("lm_head"); }
  BorrowedLinear<T> output() const { return tensors_.head("lm_head", config_.tied, token_embeddings()); }

 private:
  static constexpr detail::BlockNames names{.block = "layers.",
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
                                            .gate = "mlp.gate_proj"};

  static LlamaConfig read(const ConfigFile& file) {
    LlamaConfig c;
    c.model_type = detail::model_type_of(file, {"llama", "mistral", "qwen2", "qwen3"});
    const bool llama = c.model_type == "llama", mistral = c.model_type == "mistral", qwen2 = c.model_type == "qwen2",
               qwen3 = c.model_type == "qwen3";
    const Index head_dim = qwen3 ? file.positive("head_dim") : file.find("head_dim") ? file.positive("head_dim") : 0;
    detail::read_sizes(file,
                       {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "rms_norm_eps"},
                       c, head_dim);
    mha::Config& a = c.attention;
    a.num_kv_heads = file.positive_or("num_key_value_heads", a.num_heads);
    if (a.num_heads % a.num_kv_heads != 0)
      file.fail("'num_key_value_heads' " + std::to_string(a.num_kv_heads) + " does not divide 'num_attention_heads' " +
                std::to_string(a.num_heads));
    if (llama || qwen3) a.bias = file.flag_or("attention_bias", false);
    if (qwen2) a.bias = true, a.output_bias = false;
    c.feed_forward.bias = llama && file.flag_or("mlp_bias", false);
    c.qk_norm = qwen3;
    c.vocabulary = file.positive("vocab_size");
    c.positions = file.positive("max_position_embeddings");
    c.activation = "gated " + detail::activation_of(file, "hidden_act", file.text_or("hidden_act", "silu"));
    c.tied = file.flag_or("tie_word_embeddings", false);
    read_rope(file, c);
    read_windows(file, c, mistral, qwen2 || qwen3);
    return c;
  }

  /// transformers 5 keeps all of it under rope_parameters; before, rope_theta and rope_scaling stood apart.
  static void read_rope(const ConfigFile& file, LlamaConfig& c) {
    const auto* const own = file.find("rope_parameters");
    const auto* const scaling = own != nullptr ? own : file.find("rope_scaling");
    const char* const key = own != nullptr ? "rope_parameters" : "rope_scaling";
    if (scaling != nullptr && !scaling->is_object()) file.refuse(key, *scaling, "an object");
    const auto member = [&](const char* name) { return scaling ? file.found_in(*scaling, name) : nullptr; };
    const auto number = [&](const char* name) {
      if (member(name) == nullptr) file.fail(std::string("'") + key + "' has no '" + name + "'");
      return file.number_of(*member(name), name);
    };
    const auto require_positive = [&](const char* name, double value) {
      if (!(value > 0)) file.fail("'" + std::string(name) + "' is " + std::to_string(value) + ", expected more than 0");
      return value;
    };
    const auto positive = [&](const char* name) { return require_positive(name, number(name)); };
    if (own != nullptr && member("rope_theta") != nullptr)
      c.rope_base = number("rope_theta");
    else if (file.find("rope_theta") != nullptr)
      c.rope_base = file.number("rope_theta");
    require_positive("rope_theta", c.rope_base);
    for (const auto* share : {file.find("partial_rotary_factor"), member("partial_rotary_factor")})
      if (share != nullptr && *share != 1.0) file.refuse("partial_rotary_factor", *share, "1.0");
    const auto* const type = member("rope_type") ? member("rope_type") : member("type");
    if (type == nullptr) return;
    c.rope_type = file.text_of(*type, "rope_type");
    if (c.rope_type == "default") return;
    if (c.rope_type == "linear") {
      c.rope_scaling = LinearScaling{.factor = positive("factor")};
    } else if (c.rope_type == "llama3") {
      c.rope_scaling = Llama3Scaling{.factor = positive("factor"),
                                     .low_frequency = number("low_freq_factor"),
                                     .high_frequency = number("high_freq_factor"),
                                     .original_length = positive("original_max_position_embeddings")};
    } else if (c.rope_type == "yarn") {
      // Files without a factor have both lengths.
      const bool lengths = member("factor") == nullptr && member("original_max_position_embeddings") != nullptr;
      c.rope_scaling = yarn_of(
          file, *scaling, lengths ? c.positions / positive("original_max_position_embeddings") : positive("factor"),
          c.positions);
    } else {
      file.refuse("rope_type", *type, "\"default\", \"linear\", \"llama3\" or \"yarn\"");
    }
  }

  template <class Json>
  static YarnScaling yarn_of(const ConfigFile& file, const Json& parameters, double factor, Index positions) {
    const auto number_or = [&](const char* name, double otherwise) {
      const auto* const found = file.found_in(parameters, name);
      return found == nullptr ? otherwise : file.number_of(*found, name);
    };
    const auto grown = [&](double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; };
    YarnScaling yarn{.factor = factor, .original_length = number_or("original_max_position_embeddings", positions)};
    yarn.fast = number_or("beta_fast", yarn.fast);
    yarn.slow = number_or("beta_slow", yarn.slow);
    const double scale = number_or("mscale", 0), scale_of_all = number_or("mscale_all_dim", 0);
    if (scale != 0 && scale_of_all != 0) yarn.attention_factor = grown(scale) / grown(scale_of_all);
    if (const auto* const own = file.found_in(parameters, "attention_factor"))
      yarn.attention_factor = file.number_of(*own, "attention_factor");
    if (const auto* const rounded = file.found_in(parameters, "truncate")) {
      if (!rounded->is_boolean()) file.refuse("truncate", *rounded, "true or false");
      yarn.rounded = rounded->template get<bool>();
    }
    return yarn;
  }

  static void read_windows(const ConfigFile& file, LlamaConfig& c, bool mistral, bool qwen) {
    c.windows.assign(static_cast<std::size_t>(c.layers), 0);
    const bool used = mistral || (qwen && file.flag_or("use_sliding_window", false));
    if (used && !file.has("sliding_window")) file.missing("sliding_window");
    const Index window = used ? file.positive_or("sliding_window", 0) : 0;
    const auto* const types = qwen ? file.find("layer_types") : nullptr;
    if (types == nullptr) {
      const Index first = qwen && window > 0 ? file.natural_or("max_window_layers", 28) : 0;
      for (Index i = first; i < c.layers; ++i) c.windows[static_cast<std::size_t>(i)] = window;
      return;
    }
    if (!types->is_array() || types->size() != c.windows.size())
      file.refuse("layer_types", *types, "a list of " + std::to_string(c.layers) + " texts, one a layer");
    for (std::size_t i = 0; i < c.windows.size(); ++i) {
      const std::string type = file.text_of((*types)[i], "layer_types");
      if (type != "full_attention" && type != "sliding_attention")
        file.refuse("layer_types", (*types)[i], "\"full_attention\" or \"sliding_attention\"");
      if (type == "full_attention") continue;
      if (window == 0) file.fail("'layer_types' has \"sliding_attention\", but there is no 'sliding_window' in use");
      c.windows[i] = window;
    }
  }

  LlamaConfig config_;
  detail::ModelTensors<T> tensors_;
};

}  // namespace mha::inline MHA_NAMESPACE
