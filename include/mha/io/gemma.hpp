// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>

#include "../core/check.hpp"
#include "../policy/any_scaling.hpp"
#include "../policy/position.hpp"
#include "../policy/qk_norm.hpp"
#include "checkpoint.hpp"
#include "config_file.hpp"
#include "decoder_config.hpp"
#include "decoder_weights.hpp"
#include "model_config.hpp"
#include "model_tensors.hpp"
#include "rotary_config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The config.json of Gemma, Gemma 2 or Gemma 3.
struct GemmaConfig : DecoderConfig {
  bool post_norms = false;               ///< Gemma 2 and 3: block(i) has attention_post_norm and feed_forward_post_norm
  double embedding_scale = 1;            ///< times the rows of token_embeddings(): √E
  std::optional<float> attention_cap{};  ///< SoftCap of attention's logits, Gemma 2
  std::optional<float> logit_cap{};      ///< the same of output()'s
  RotaryConfig rope;                     ///< of layers without a window
  RotaryConfig rope_of_windows;          ///< of the others, which Gemma 3 turns by another base

  /// What Gemma 3's layers do to queries and keys.
  [[nodiscard]] QkNorm query_key_norm() const { return {.eps = *norm.eps, .zero_centered = norm.zero_centered}; }
  /// The positions of a layer, for texts of at most `length` tokens; 0 is as many as there are positions.
  ///
  /// Errors    ShapeError if there is no such layer
  [[nodiscard]] Rotary<Halves, AnyScaling> scaled_rotary(Index layer, Index length = 0) const {
    detail::require(layer >= 0 && layer < layers, "scaled_rotary: there is no layer ", layer, " among the ", layers);
    const RotaryConfig& of = windows[static_cast<std::size_t>(layer)] == 0 ? rope : rope_of_windows;
    return of.rotary(length == 0 ? positions : length);
  }
};

/// The weights of Gemma, Gemma 2 and the text model of Gemma 3 (model_type gemma3_text) by Hugging Face's names, from a
/// folder with config.json; with or without "model." in front. All norms are zero-centred: norm.zero_centered is true.
///
///   const mha::Gemma<mha::bfloat16> gemma("gemma-2-2b");
///   attention.borrow(gemma.block(0).attention, gemma.mapping());
///
/// Scalar, Errors   as Bert
template <class T> class Gemma : public DecoderWeights<T, GemmaConfig> {
 public:
  explicit Gemma(const std::filesystem::path& folder) : Gemma(Checkpoint(folder)) {}
  explicit Gemma(const Checkpoint& checkpoint)
      : Gemma(checkpoint, read(ConfigFile(checkpoint.folder() / "config.json"))) {}

 private:
  Gemma(const Checkpoint& checkpoint, const GemmaConfig& config)
      : DecoderWeights<T, GemmaConfig>(checkpoint, config, names(config)) {}

  /// What Gemma calls the norm after attention is, in Gemma 1, the one before the feed-forward.
  static detail::BlockNames names(const GemmaConfig& config) {
    detail::BlockNames n = detail::decoder_names();
    if (config.post_norms) {
      n.attention_post_norm = n.feed_forward_norm;
      n.feed_forward_norm = "pre_feedforward_layernorm";
      n.feed_forward_post_norm = "post_feedforward_layernorm";
    }
    return n;
  }

  static GemmaConfig read(const ConfigFile& file) {
    GemmaConfig c;
    c.model_type = detail::model_type_of(file, {"gemma", "gemma2", "gemma3_text"});
    const bool gemma1 = c.model_type == "gemma", gemma2 = c.model_type == "gemma2",
               gemma3 = c.model_type == "gemma3_text";
    detail::read_decoder_sizes(file, c, file.positive_or("head_dim", 256));
    detail::read_kv_heads(file, c.attention, file.positive("num_key_value_heads"));
    c.attention.bias = file.flag_or("attention_bias", false);
    file.only("use_bidirectional_attention", false);
    detail::require_causal(file);
    if (!gemma1) c.attention.scale = 1 / std::sqrt(positive_or(file, "query_pre_attn_scalar", 256));
    c.feed_forward.bias = false;
    c.norm.zero_centered = true;
    c.post_norms = !gemma1;
    c.qk_norm = gemma3;
    c.vocabulary = file.positive("vocab_size");
    c.positions = file.positive("max_position_embeddings");
    c.embedding_scale = std::sqrt(double(c.norm.width));
    c.tied = file.flag_or("tie_word_embeddings", true);
    const char* const key = gemma1 ? "hidden_act" : "hidden_activation";
    const std::string activation = file.text_or(key, "gelu_pytorch_tanh");
    // The first Gemma's files say gelu, and mean the one by way of tanh.
    c.activation =
        "gated " + detail::activation_of(file, key, gemma1 && activation == "gelu" ? "gelu_new" : activation);
    // transformers computes no cap in the families that read none.
    if (gemma2)
      c.attention_cap = cap(file, "attn_logit_softcapping", 50);
    else
      file.only("attn_logit_softcapping", nullptr);
    if (gemma1)
      file.only("final_logit_softcapping", nullptr);
    else
      c.logit_cap = cap(file, "final_logit_softcapping", gemma2 ? std::optional<float>(30) : std::nullopt);
    read_rope(file, c, gemma3);
    read_windows(file, c, gemma2, gemma3);
    return c;
  }

  static double positive_or(const ConfigFile& file, const char* key, double otherwise) {
    const double value = file.find(key) != nullptr ? file.number(key) : otherwise;
    if (!(value > 0))
      file.fail(std::string("'") + key + "' is " + detail::number_text(value) + ", expected more than 0");
    return value;
  }
  /// What stands there, nothing if that is null, `otherwise` where nothing does.
  static std::optional<float> cap(const ConfigFile& file, const char* key, std::optional<float> otherwise) {
    if (!file.has(key)) return otherwise;
    if (file.find(key) == nullptr) return std::nullopt;
    const double value = positive_or(file, key, 0);
    constexpr double most = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
    if (value < least || value > most)
      file.fail(std::string("'") + key + "' is " + detail::number_text(value) + ", expected a float, from " +
                detail::number_text(least) + " to " + detail::number_text(most));
    return static_cast<float>(value);
  }

  static void read_rope(const ConfigFile& file, GemmaConfig& c, bool gemma3) {
    const Index head_dim = c.attention.head_dim;
    if (!gemma3) {
      c.rope = c.rope_of_windows = detail::read_rotary(file, head_dim, c.positions);
      return;
    }
    detail::refuse_two_scalings(file);
    // transformers 5 overlooks a type by its older name here.
    const auto* const scaling = file.find("rope_scaling");
    if (scaling != nullptr && scaling->is_object() && ConfigFile::found_in(*scaling, "type") != nullptr &&
        ConfigFile::found_in(*scaling, "rope_type") == nullptr)
      file.fail("'rope_scaling' has 'type', expected 'rope_type'");
    // One set for each type of layer; before transformers 5 the scaling was of the layers without a window.
    constexpr const char *full = "full_attention", *sliding = "sliding_attention";
    const auto* const both = file.find("rope_parameters");
    const auto read = [&](const char* type, const char* old_base, double base) {
      const auto* const own = both != nullptr ? ConfigFile::found_in(*both, type) : nullptr;
      const auto* const old = both == nullptr && type == full ? file.find("rope_scaling") : nullptr;
      const std::string key = own != nullptr ? std::string("rope_parameters.") + type : "rope_scaling";
      return detail::RotaryReader(file, own != nullptr ? own : old, key, head_dim, c.positions, detail::RotaryOf::kind)
          .read(positive_or(file, old_base, base));
    };
    if (both != nullptr && !both->is_object()) file.refuse("rope_parameters", *both, "an object");
    if (both != nullptr && !both->contains(full) && !both->contains(sliding))
      file.refuse("rope_parameters", *both, "an object with 'full_attention' and 'sliding_attention'");
    c.rope = read(full, "rope_theta", 1e6);
    c.rope_of_windows = read(sliding, "rope_local_base_freq", 1e4);
  }

  /// Without layer_types the last layer of every `pattern` has no window.
  static void read_windows(const ConfigFile& file, GemmaConfig& c, bool gemma2, bool gemma3) {
    c.windows.assign(static_cast<std::size_t>(c.layers), 0);
    if (!gemma2 && !gemma3) return;
    const bool null = file.has("sliding_window") && file.find("sliding_window") == nullptr;
    const Index window = null ? 0 : file.positive_or("sliding_window", 4096);
    if (const auto* const types = file.find("layer_types")) {
      c.windows = detail::windows_of_types(file, *types, c.layers, window);
      return;
    }
    if (window == 0) file.refuse("sliding_window", nullptr, "the window of the layers that have one");
    const Index pattern = gemma3 ? file.positive_or("sliding_window_pattern", 6) : 2;
    for (Index i = 0; i < c.layers; ++i)
      if ((i + 1) % pattern != 0) c.windows[static_cast<std::size_t>(i)] = window;
  }
};

}  // namespace mha::inline MHA_NAMESPACE
