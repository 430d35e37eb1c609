// SPDX-License-Identifier: Apache-2.0
// T5: Raffel et al. 2020, §2.1, the encoder and decoder of Vaswani et al. 2017, figure 1, with norms before each part
//
//   encoder block:  x = x + attention(norm₁(x)),  x = x + feed_forward(norm₂(x))
//   decoder block:  x = x + attention(norm₁(x)),  x = x + cross(norm₂(x), memory),  x = x + feed_forward(norm₃(x))
//   logits = norm(x) W, with the embedding for W in T5 1.0, then norm(x) / √E
//
// Logits of attention are not divided by √D; a learned bias of the distance is added to those within a sequence, the
// same in every block. The feed-forward has Relu in T5 1.0 and is gated by GeluTanh in T5 1.1 and FLAN-T5.
//
// Symbols  Ls source tokens, Lt target tokens, E model width, V vocabulary;  memory (Ls, E)  x (Ls, E) or (Lt, E)
#pragma once

#include <cmath>
#include <concepts>
#include <span>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "rows.hpp"

namespace models {

using T5Gated = mha::Gated<mha::GeluTanh>;

/// Whether a checkpoint is for T5<T5Gated>.
inline bool is_gated(const Checkpoint& file) { return file.value<std::string>("feed_forward_proj") == "gated-gelu"; }

template <class Activation = mha::Relu, mha::Backend B = mha::Cpu> class T5 {
 public:
  explicit T5(const Checkpoint& file)
      : embedding_(file.tensor<2>("shared.weight")),
        encoder_norm_(norm_config(file)),
        decoder_norm_(norm_config(file)),
        logits_({.inputs = file.value<int>("d_model"), .outputs = file.value<int>("vocab_size"), .bias = false}) {
    const auto name = [](const char* part, int i) { return std::string(part) + ".block." + std::to_string(i) + "."; };
    for (int i = 0; i < file.value<int>("num_layers"); ++i) encoder_.emplace_back(file, name("encoder", i));
    for (int i = 0; i < file.value<int>("num_decoder_layers"); ++i) decoder_.emplace_back(file, name("decoder", i));
    load_norm(encoder_norm_, file, "encoder.final_layer_norm");
    load_norm(decoder_norm_, file, "decoder.final_layer_norm");
    if (file.contains("lm_head.weight")) {
      load(logits_, file, "lm_head");
    } else {
      logits_.borrow({.weight = mha::transposed(embedding_)}, file.keep());
      scale_ = 1 / std::sqrt(file.value<float>("d_model"));
    }
  }

  /// Source (Ls) → memory (Ls, E).
  Rows encode(std::span<const int> source) const {
    Rows x = embed(embedding_, source), h(x.rows(), x.cols()), r(x.rows(), x.cols());
    mha::Workspace workspace;
    for (const EncoderBlock& block : encoder_) block(x, h, r, workspace);
    return encoder_norm_(x, workspace);
  }

  /// The logits of the token that follows each of the target's: (Lt) → (Lt, V).
  Rows decode(std::span<const int> target, const Rows& memory) const {
    Rows x = embed(embedding_, target), h(x.rows(), x.cols()), r(x.rows(), x.cols());
    mha::Workspace workspace;
    for (const DecoderBlock& block : decoder_) block(x, memory, h, r, workspace);
    decoder_norm_(x, mha::into(x), workspace);
    return scale_ * Rows(logits_(x, workspace));
  }

 private:
  static mha::NormConfig norm_config(const Checkpoint& file) {
    return {.width = file.value<int>("d_model"), .eps = file.value<double>("layer_norm_epsilon")};
  }
  static mha::Config attention_config(const Checkpoint& file) {
    return {.d_model = file.value<int>("d_model"),
            .num_heads = file.value<int>("num_heads"),
            .head_dim = file.value<int>("d_kv"),
            .scale = 1.0};
  }
  static mha::FeedForwardConfig feed_forward_config(const Checkpoint& file) {
    return {.d_model = file.value<int>("d_model"), .d_hidden = file.value<int>("d_ff"), .bias = false};
  }
  // The table of the first block serves all.
  static mha::RelativeBias bias(const Checkpoint& file, const std::string& part, bool bidirectional) {
    const auto table = file.tensor<2>(part + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    return mha::RelativeBias({table.data, table.data + table.size()},
                             {.count = file.value<int>("relative_attention_num_buckets"),
                              .max_distance = file.value<int>("relative_attention_max_distance"),
                              .bidirectional = bidirectional});
  }
  template <class Attention>
  static void load_attention(Attention& attention, const Checkpoint& file, const std::string& name) {
    const auto weight = [&](const char* part) { return mha::transposed(file.tensor<2>(name + part + ".weight")); };
    attention.borrow({.query = weight("q"), .key = weight("k"), .value = weight("v"), .output = weight("o")},
                     file.keep());
  }
  static void load_feed_forward(mha::FeedForward<float, B, Activation>& f, const Checkpoint& file,
                                const std::string& name) {
    const auto weight = [&](const char* part) { return mha::transposed(file.tensor<2>(name + part + ".weight")); };
    if constexpr (std::same_as<Activation, T5Gated>)
      f.up().borrow({.weight = weight("wi_1"), .gate = weight("wi_0")}, file.keep());
    else
      f.up().borrow({.weight = weight("wi")}, file.keep());
    f.down().borrow({.weight = weight("wo")}, file.keep());
  }

  struct EncoderBlock {
    mha::RmsNorm<float, B> norm1, norm2;
    mha::MultiHeadAttention<float, B, mha::RelativeBias> attention;
    mha::FeedForward<float, B, Activation> feed_forward;

    EncoderBlock(const Checkpoint& file, const std::string& name)
        : norm1(norm_config(file)),
          norm2(norm_config(file)),
          attention(attention_config(file), bias(file, "encoder", true)),
          feed_forward(feed_forward_config(file)) {
      load_norm(norm1, file, name + "layer.0.layer_norm");
      load_norm(norm2, file, name + "layer.1.layer_norm");
      load_attention(attention, file, name + "layer.0.SelfAttention.");
      load_feed_forward(feed_forward, file, name + "layer.1.DenseReluDense.");
    }

    // x ← block(x); h and r are rows to work in.
    void operator()(Rows& x, Rows& h, Rows& r, mha::Workspace& workspace) const {
      norm1(x, mha::into(h), workspace);
      attention(h, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
      feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
    }
  };

  struct DecoderBlock {
    mha::RmsNorm<float, B> norm1, norm2, norm3;
    mha::MultiHeadAttention<float, B, mha::Causal, mha::RelativeBias> attention;
    mha::MultiHeadAttention<float, B> cross;
    mha::FeedForward<float, B, Activation> feed_forward;

    DecoderBlock(const Checkpoint& file, const std::string& name)
        : norm1(norm_config(file)),
          norm2(norm_config(file)),
          norm3(norm_config(file)),
          attention(attention_config(file), bias(file, "decoder", false)),
          cross(attention_config(file)),
          feed_forward(feed_forward_config(file)) {
      load_norm(norm1, file, name + "layer.0.layer_norm");
      load_norm(norm2, file, name + "layer.1.layer_norm");
      load_norm(norm3, file, name + "layer.2.layer_norm");
      load_attention(attention, file, name + "layer.0.SelfAttention.");
      load_attention(cross, file, name + "layer.1.EncDecAttention.");
      load_feed_forward(feed_forward, file, name + "layer.2.DenseReluDense.");
    }

    // x ← block(x, memory); h and r are rows to work in.
    void operator()(Rows& x, const Rows& memory, Rows& h, Rows& r, mha::Workspace& workspace) const {
      norm1(x, mha::into(h), workspace);
      attention(h, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
      cross(h, memory, mha::into(r), workspace);
      norm3(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₃(x)
      feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
    }
  };

  mha::TensorView<const float, 2> embedding_;
  std::vector<EncoderBlock> encoder_;
  std::vector<DecoderBlock> decoder_;
  mha::RmsNorm<float, B> encoder_norm_, decoder_norm_;
  mha::Linear<float, B> logits_;
  float scale_ = 1;
};

}  // namespace models
