// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "../core/check.hpp"
#include "../policy/mask/positional.hpp"
#include "config_file.hpp"
#include "model_config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What decoders with rotary positions have beside the sizes: LLaMA and its relatives, Gemma.
struct DecoderConfig : ModelConfig {
  Index positions = 0;         ///< the longest input: max_position_embeddings
  bool tied = false;           ///< output() is the token embeddings, unless the file has an lm_head with other numbers
  bool qk_norm = false;        ///< QkNorm, as Qwen 3 and Gemma 3 have it; its eps is norm.eps
  std::vector<Index> windows;  ///< of each layer: how many keys a query sees, its own among them; 0 for all before it

  /// The mask of a layer: as Causal where it has no window.
  ///
  /// Errors    ShapeError if there is no such layer
  [[nodiscard]] SlidingWindow window(Index layer) const {
    detail::require(layer >= 0 && layer < layers, "window: there is no layer ", layer, " among the ", layers);
    const Index keys = windows[static_cast<std::size_t>(layer)];
    return {.left = keys == 0 ? std::numeric_limits<Index>::max() : keys - 1};
  }
};

namespace detail {

inline void read_decoder_sizes(const ConfigFile& file, ModelConfig& c, Index head_dim) {
  read_sizes(file, {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "rms_norm_eps"}, c,
             head_dim);
}

/// How many heads share a head of keys and values.
inline void read_kv_heads(const ConfigFile& file, Config& a, Index kv_heads) {
  a.num_kv_heads = kv_heads;
  if (a.num_heads % kv_heads != 0)
    file.fail("'num_key_value_heads' " + std::to_string(kv_heads) + " does not divide 'num_attention_heads' " +
              std::to_string(a.num_heads));
}

/// The windows of the layers that layer_types calls sliding; `window` is 0 where none is in use.
inline std::vector<Index> windows_of_types(const ConfigFile& file, const ConfigFile::Json& types, Index layers,
                                           Index window) {
  std::vector<Index> windows(static_cast<std::size_t>(layers), 0);
  if (!types.is_array() || types.size() != windows.size())
    file.refuse("layer_types", types, "a list of " + std::to_string(layers) + " texts, one a layer");
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const std::string type = file.text_of(types[i], "layer_types");
    if (type != "full_attention" && type != "sliding_attention")
      file.refuse("layer_types", types[i], "\"full_attention\" or \"sliding_attention\"");
    if (type == "full_attention") continue;
    if (window == 0) file.fail("'layer_types' has \"sliding_attention\", but there is no 'sliding_window' in use");
    windows[i] = window;
  }
  return windows;
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
