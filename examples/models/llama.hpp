// SPDX-License-Identifier: Apache-2.0
// LLaMA and its relatives Mistral, Qwen 2 and Qwen 3: Touvron et al. 2023, LLaMA, §2.2
//
//   x = embedding[ids]
//   in every block:  x = x + attention(norm₁(x)),  x = x + (Silu(h W_gate) ∘ (h W_up)) W_down with h = norm₂(x)
//   logits = norm(x) W_logits
//
// norm is the root-mean-square norm, positions turn queries and keys, and several query heads share one of keys. What
// the relatives add: Mistral a window (Jiang et al. 2023, §2), Qwen 2 biases of queries, keys and values (Yang et al.
// 2024, §2.2.1), Qwen 3 norms of queries and keys (Norm = mha::QkNorm).
//
// Symbols  L tokens, E model width, V vocabulary;  x (L, E)  embedding (V, E)  logits (L, V)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "checkpoint.hpp"
#include "rows.hpp"

namespace models {

/// Whether a checkpoint is for Llama<mha::QkNorm>.
inline bool has_qk_norm(const Checkpoint& file) { return file.value<std::string>("model_type") == "qwen3"; }

template <class Norm = mha::NoNorm, mha::Backend B = mha::Cpu> class Llama {
 public:
  explicit Llama(const Checkpoint& file)
      : embedding_(file.tensor<2>("model.embed_tokens.weight")),
        norm_(norm_config(file)),
        logits_({.inputs = norm_.config().width, .outputs = file.value<int>("vocab_size"), .bias = false}) {
    for (int i = 0; i < file.value<int>("num_hidden_layers"); ++i)
      blocks_.emplace_back(file, "model.layers." + std::to_string(i) + ".", i);
    load_norm(norm_, file, "model.norm");
    if (file.contains("lm_head.weight"))
      load(logits_, file, "lm_head");
    else  // tied: the embedding again
      logits_.borrow({.weight = mha::transposed(embedding_)}, file.keep());
  }

  /// The logits of the token that follows each of these: (L) → (L, V).
  Rows operator()(std::span<const int> ids) const {
    Rows x = embed(embedding_, ids), h(x.rows(), x.cols()), r(x.rows(), x.cols());
    mha::Workspace workspace;
    for (const Block& block : blocks_) block(x, h, r, workspace);
    norm_(x, mha::into(x), workspace);
    return logits_(x, workspace);
  }

 private:
  static mha::NormConfig norm_config(const Checkpoint& file) {
    return {.width = file.value<int>("hidden_size"), .eps = file.value<double>("rms_norm_eps")};
  }

  struct Block {
    // One type for all: without stretching the factor is 1, and a causal mask is a window over everything.
    using Position = mha::Rotary<mha::Halves, mha::Llama3Scaling>;
    mha::RmsNorm<float, B> norm1, norm2;
    mha::MultiHeadAttention<float, B, mha::GroupedQuery<mha::Dynamic>, mha::SlidingWindow, Position, Norm> attention;
    mha::FeedForward<float, B, mha::SwiGlu> feed_forward;

    Block(const Checkpoint& file, const std::string& name, int index)
        : norm1(norm_config(file)),
          norm2(norm_config(file)),
          attention(attention_config(file, name), window(file, index), position(file), norm(file)),
          feed_forward(
              {.d_model = norm1.config().width, .d_hidden = file.value<int>("intermediate_size"), .bias = false}) {
      load_norm(norm1, file, name + "input_layernorm");
      load_norm(norm2, file, name + "post_attention_layernorm");
      load_attention(attention, file, name + "self_attn.");
      feed_forward.up().borrow({.weight = mha::transposed(file.tensor<2>(name + "mlp.up_proj.weight")),
                                .gate = mha::transposed(file.tensor<2>(name + "mlp.gate_proj.weight"))},
                               file.keep());
      load(feed_forward.down(), file, name + "mlp.down_proj");
    }

    // x ← block(x); h and r are rows to work in.
    void operator()(Rows& x, Rows& h, Rows& r, mha::Workspace& workspace) const {
      norm1(x, mha::into(h), workspace);
      attention(h, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
      feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
    }

    static mha::Config attention_config(const Checkpoint& file, const std::string& name) {
      const auto head_dim = file.config().value("head_dim", nlohmann::json());
      return {.d_model = file.value<int>("hidden_size"),
              .num_heads = file.value<int>("num_attention_heads"),
              .num_kv_heads = file.value<int>("num_key_value_heads"),
              .head_dim = head_dim.is_number() ? head_dim.get<int>() : 0,
              .bias = file.contains(name + "self_attn.q_proj.bias"),
              .output_bias = file.contains(name + "self_attn.o_proj.bias")};
    }

    static mha::SlidingWindow window(const Checkpoint& file, int index) {
      const auto size = file.config().value("sliding_window", nlohmann::json());
      const auto types = file.config().value("layer_types", nlohmann::json());
      const bool slides = size.is_number() && file.config().value("use_sliding_window", true) &&
                          (types.is_null() || types.at(static_cast<std::size_t>(index)) == "sliding_attention");
      // It counts the token itself.
      return {.left = slides ? size.get<int>() - 1 : file.value<int>("max_position_embeddings")};
    }

    static Position position(const Checkpoint& file) {
      const auto& rope = file.config().at("rope_parameters");
      Position p{.base = rope.at("rope_theta").get<double>(), .scaling = {.factor = 1}};
      if (rope.at("rope_type") == "llama3")
        p.scaling = {.factor = rope.at("factor").get<double>(),
                     .low_frequency = rope.at("low_freq_factor").get<double>(),
                     .high_frequency = rope.at("high_freq_factor").get<double>(),
                     .original_length = rope.at("original_max_position_embeddings").get<double>()};
      return p;
    }

    static Norm norm(const Checkpoint& file) {
      if constexpr (Norm::has_weights)
        return {.eps = file.value<double>("rms_norm_eps")};
      else
        return {};
    }
  };

  mha::TensorView<const float, 2> embedding_;
  std::vector<Block> blocks_;
  mha::RmsNorm<float, B> norm_;
  mha::Linear<float, B> logits_;
};

}  // namespace models
