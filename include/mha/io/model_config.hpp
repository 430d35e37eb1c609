// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "../block/feed_forward_weights.hpp"
#include "../block/norm_weights.hpp"
#include "../core/check.hpp"
#include "../layer/config.hpp"
#include "../policy/activation.hpp"
#include "config_file.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What the config.json of every family says, as the parts of a block take it: MultiHeadAttention(c.attention),
/// FeedForward(c.feed_forward), LayerNorm(c.norm).
struct ModelConfig {
  std::string path;        ///< of config.json
  std::string model_type;  ///< as config.json has it: "bert", "gemma2", "llama"
  Index layers = 0;        ///< blocks, of T5 those of the encoder
  Index vocabulary = 0;    ///< tokens; 0 where there are none
  Config attention{};      ///< heads, their sizes, which projections add a bias, the scale
  FeedForwardConfig feed_forward{};
  NormConfig norm{};
  std::string activation;  ///< as explain() names it: "gelu", "gated silu"

  /// Errors    SafetensorsError if the model's activation is another than F, as GeluTanh or SwiGlu
  template <class F> void require_activation() const {
    const std::string wanted = detail::activation_name<F>();
    if (wanted != activation)
      detail::fail_safetensors(path, "the activation is " + activation + ", but the model is made with " + wanted);
  }
};

namespace detail {

/// What explain() calls an activation of Hugging Face's names.
inline std::string activation_of(const ConfigFile& file, const char* key, std::string_view name) {
  constexpr std::pair<std::string_view, const char*> names[] = {
      {"gelu", "gelu"}, {"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"},
      {"relu", "relu"}, {"silu", "silu"},          {"swish", "silu"},
  };
  std::string known;
  for (const auto& [theirs, ours] : names) {
    if (name == theirs) return ours;
    known += (known.empty() ? "" : ", ") + std::string(theirs);
  }
  file.refuse(key, std::string(name), "one of " + known);
}

/// What no family has: layers that differ from each other by transformers' own means, and quantized weights.
inline void refuse_changes_of_any_model(const ConfigFile& file) {
  file.only("per_layer_config", nullptr);
  if (const auto* const found = file.find("quantization_config"))
    file.fail("'quantization_config' is " + safetensors_excerpt(found->dump()) +
              ", but quantized weights are not read");
}

/// The model_type of a file that one of these families can read.
inline std::string model_type_of(const ConfigFile& file, std::initializer_list<const char*> families) {
  const std::string found = file.text("model_type");
  std::string known;
  for (const char* const family : families) {
    if (found == family) {
      refuse_changes_of_any_model(file);
      return found;
    }
    known += (known.empty() ? "" : " or ") + std::string(family);
  }
  file.refuse("model_type", found, known);
}

/// A decoder's masks hide the keys after a query. transformers hides none where 'is_causal' is there and not true.
inline void require_causal(const ConfigFile& file) {
  if (file.has("is_causal") && file.find("is_causal") == nullptr) file.refuse("is_causal", nullptr, "true");
  file.only("is_causal", true);
}

/// A size by the name that transformers has for all families, which it takes before the family's own.
inline void require_same_size(const ConfigFile& file, const char* common, const char* own, Index size) {
  const auto* const found = file.find(common);
  if (found != nullptr && *found != ConfigFile::Json(size))
    file.refuse(common, *found, std::to_string(size) + " as '" + own + "' is");
}

/// The product of sizes, which is one too.
inline Index size_of(const ConfigFile& file, const char* name, std::initializer_list<Index> sizes) {
  std::int64_t product = 1;
  for (const Index size : sizes) {
    product *= size;
    if (product > longest_axis)
      file.fail(std::string("the width of ") + name + " is " + std::to_string(product) + ", the limit is " +
                std::to_string(longest_axis));
  }
  return static_cast<Index>(product);
}

/// The keys that most families share.
struct ModelKeys {
  const char *layers, *width, *heads, *hidden, *eps;
};

/// A number of layers, few enough to keep something for each before a checkpoint is seen.
inline Index layers_of(const ConfigFile& file, const char* key, Index layers) {
  constexpr Index most = 100'000;
  if (layers > most)
    file.fail(std::string("'") + key + "' is " + std::to_string(layers) + ", expected at most " + std::to_string(most));
  return layers;
}

/// Sizes of a model: layers, widths, heads, eps; the size of a head where it is not the width's share.
inline void read_sizes(const ConfigFile& file, const ModelKeys& keys, ModelConfig& c, Index head_dim = 0) {
  c.path = file.path();
  c.layers = layers_of(file, keys.layers, file.positive(keys.layers));
  c.attention.d_model = c.feed_forward.d_model = c.norm.width = file.positive(keys.width);
  c.attention.num_heads = c.attention.num_kv_heads = file.positive(keys.heads);
  c.feed_forward.d_hidden = file.positive(keys.hidden);
  if (head_dim == 0) {
    if (c.attention.d_model % c.attention.num_heads != 0)
      file.fail(std::string("'") + keys.heads + "' " + std::to_string(c.attention.num_heads) + " does not divide '" +
                keys.width + "' " + std::to_string(c.attention.d_model));
    head_dim = c.attention.d_model / c.attention.num_heads;
  }
  c.attention.head_dim = head_dim;
  size_of(file, "all heads", {c.attention.num_heads, head_dim});
  const double eps = file.number(keys.eps);
  if (!(eps >= 0)) file.fail(std::string("'") + keys.eps + "' is " + number_text(eps) + ", expected at least 0");
  c.norm.eps = eps;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
