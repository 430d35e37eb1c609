// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../policy/score/relative_bias.hpp"
#include "checkpoint.hpp"
#include "config_file.hpp"
#include "model_config.hpp"
#include "model_tensors.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The config.json of T5; `layers` are those of the encoder.
struct T5Config : ModelConfig {
  Index decoder_layers = 0;
  RelativeBuckets buckets{};  ///< of the encoder; the decoder's are not bidirectional
  bool tied = true;           ///< output() is the token embeddings, unless the file has an lm_head with other numbers
  double output_scale = 1;    ///< times the rows that output() takes; d_model^−½ in T5 1.0, 1 in 1.1
};

/// The weights of T5 by Hugging Face's names, from a folder with config.json: both stacks, or the encoder alone. Logits
/// are not scaled: attention.scale is 1.
///
///   const mha::T5<float> t5("flan-t5-small");
///   mha::MultiHeadAttention<float, mha::Cpu, mha::RelativeBias> attention(t5.config().attention, t5.encoder_bias());
///   attention.borrow(t5.encoder_block(0).attention, t5.mapping());
///
/// Scalar, Errors   as Bert
template <class T> class T5 {
 public:
  explicit T5(const std::filesystem::path& folder) : T5(Checkpoint(folder)) {}
  explicit T5(const Checkpoint& checkpoint)
      : config_(read(ConfigFile(checkpoint.folder() / "config.json"))),
        tensors_(checkpoint, {""}, checkpoint.contains(shared) ? shared : encoder_table),
        has_decoder_(tensors_.contains("decoder.final_layer_norm.weight") || tensors_.has_blocks(names("decoder"))) {
    tensors_.require_blocks(names("encoder"), config_.layers);
    for (Index i = 0; i < config_.layers; ++i) static_cast<void>(encoder_block(i));
    static_cast<void>(token_embeddings());
    require_copy(encoder_table);
    static_cast<void>(encoder_norm());
    static_cast<void>(encoder_bias());
    if (has_decoder() || tensors_.has_head(head)) static_cast<void>(output());
    if (!has_decoder()) return;
    require_copy(decoder_table);
    tensors_.require_blocks(names("decoder"), config_.decoder_layers);
    for (Index i = 0; i < config_.decoder_layers; ++i) static_cast<void>(decoder_block(i));
    static_cast<void>(decoder_norm());
    static_cast<void>(decoder_bias());
  }

  [[nodiscard]] const T5Config& config() const { return config_; }
  /// Keeps the memory of all weights alive.
  [[nodiscard]] std::shared_ptr<const void> mapping() const { return tensors_.mapping(); }

  /// (vocabulary, E), of both stacks
  [[nodiscard]] TensorView<const T, 2> token_embeddings() const {
    return tensors_.matrix(table(), config_.vocabulary, config_.norm.width);
  }
  [[nodiscard]] BlockWeights<T> encoder_block(Index i) const {
    tensors_.require_block(i, config_.layers);
    return tensors_.block(names("encoder"), config_, i, false, false);
  }
  [[nodiscard]] BorrowedNorm<T> encoder_norm() const {
    return tensors_.norm("encoder.final_layer_norm", config_.norm.width, false);
  }
  /// The score of every self-attention of the encoder.
  [[nodiscard]] RelativeBias encoder_bias() const { return bias("encoder", true); }

  [[nodiscard]] bool has_decoder() const { return has_decoder_; }
  [[nodiscard]] BlockWeights<T> decoder_block(Index i) const {
    tensors_.require_block(i, has_decoder() ? config_.decoder_layers : 0);
    return tensors_.block(names("decoder"), config_, i, false, false);
  }
  [[nodiscard]] BorrowedNorm<T> decoder_norm() const {
    return tensors_.norm("decoder.final_layer_norm", config_.norm.width, false);
  }
  /// The score of every self-attention of the decoder; its cross-attention has none.
  [[nodiscard]] RelativeBias decoder_bias() const { return bias("decoder", false); }
  /// The linear from rows, times output_scale, to logits, (E, vocabulary) without a bias: lm_head, or the embeddings.
  [[nodiscard]] BorrowedLinear<T> output() const {
    return tensors_.head(head, config_.tied, table(), token_embeddings());
  }

 private:
  static constexpr const char *shared = "shared.weight", *head = "lm_head";
  static constexpr const char *encoder_table = "encoder.embed_tokens.weight",
                              *decoder_table = "decoder.embed_tokens.weight";

  const char* table() const { return tensors_.contains(shared) ? shared : encoder_table; }
  /// A stack may have a copy of the embeddings.
  void require_copy(const char* name) const {
    if (name != std::string_view(table()) && tensors_.contains(name) && !tensors_.is_copy(name, table()))
      tensors_.fail(name, std::string("is no copy of '") + table() + "', expected the same embeddings in both stacks");
  }

  /// Of the encoder or the decoder, gated or not.
  detail::BlockNames names(const std::string& stack) const {
    const bool decoder = stack == "decoder", gated = config_.activation.starts_with("gated");
    detail::BlockNames n{.block = decoder ? "decoder.block." : "encoder.block.",
                         .attention_norm = "layer.0.layer_norm",
                         .query = "layer.0.SelfAttention.q",
                         .key = "layer.0.SelfAttention.k",
                         .value = "layer.0.SelfAttention.v",
                         .output = "layer.0.SelfAttention.o",
                         .feed_forward_norm = "layer.1.layer_norm",
                         .up = gated ? "layer.1.DenseReluDense.wi_1" : "layer.1.DenseReluDense.wi",
                         .down = "layer.1.DenseReluDense.wo",
                         .gate = gated ? "layer.1.DenseReluDense.wi_0" : nullptr,
                         .in_first = {"layer.0.SelfAttention.relative_attention_bias.weight"}};
    if (!decoder) return n;
    n.feed_forward_norm = "layer.2.layer_norm";
    n.up = gated ? "layer.2.DenseReluDense.wi_1" : "layer.2.DenseReluDense.wi";
    n.down = "layer.2.DenseReluDense.wo";
    if (gated) n.gate = "layer.2.DenseReluDense.wi_0";
    n.in_first[1] = "layer.1.EncDecAttention.relative_attention_bias.weight";  // in T5 1.0, not read
    n.cross_norm = "layer.1.layer_norm";
    n.cross_query = "layer.1.EncDecAttention.q", n.cross_key = "layer.1.EncDecAttention.k";
    n.cross_value = "layer.1.EncDecAttention.v", n.cross_output = "layer.1.EncDecAttention.o";
    return n;
  }

  RelativeBias bias(const std::string& stack, bool bidirectional) const {
    RelativeBuckets buckets = config_.buckets;
    buckets.bidirectional = bidirectional;
    const auto table = tensors_.matrix(stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                                       buckets.count, config_.attention.num_heads);
    std::vector<float> numbers(static_cast<std::size_t>(table.size()));
    for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = static_cast<float>(table.data[n]);
    RelativeBias score(std::move(numbers), buckets);
    score.check(config_.attention.num_heads);
    return score;
  }

  /// A key that may be missing, but says nothing else, even null, than this, which feed_forward_proj says.
  template <class Value>
  static void refuse_another(const ConfigFile& file, const char* key, const Value& said, const std::string& kind) {
    const ConfigFile::Json wanted(said), *const found = file.find(key);
    if (!file.has(key) || (found != nullptr && *found == wanted)) return;
    file.refuse(key, found != nullptr ? *found : nullptr,
                wanted.dump() + " as 'feed_forward_proj' is " + ConfigFile::Json(kind).dump());
  }

  static T5Config read(const ConfigFile& file) {
    T5Config c;
    c.model_type = detail::model_type_of(file, {"t5"});
    detail::require_causal(file);
    detail::read_sizes(file, {"num_layers", "d_model", "num_heads", "d_ff", "layer_norm_epsilon"}, c,
                       file.positive("d_kv"));
    detail::require_same_size(file, "num_hidden_layers", "num_layers", c.layers);
    detail::require_same_size(file, "hidden_size", "d_model", c.norm.width);
    detail::require_same_size(file, "num_attention_heads", "num_heads", c.attention.num_heads);
    detail::require_same_size(file, "head_dim", "d_kv", c.attention.head_dim);
    c.attention.scale = 1;
    c.feed_forward.bias = false;
    c.decoder_layers = detail::layers_of(file, "num_decoder_layers", file.positive_or("num_decoder_layers", c.layers));
    c.vocabulary = file.positive("vocab_size");
    c.buckets.count = file.positive_or("relative_attention_num_buckets", 32);
    c.buckets.max_distance = file.positive_or("relative_attention_max_distance", 128);
    if (c.buckets.count < 4)
      file.fail("'relative_attention_num_buckets' is " + std::to_string(c.buckets.count) + ", expected at least 4");
    if (c.buckets.max_distance <= c.buckets.count / 2)
      file.fail("'relative_attention_max_distance' " + std::to_string(c.buckets.max_distance) +
                " is not above half of 'relative_attention_num_buckets' " + std::to_string(c.buckets.count));
    const std::string kind = file.text_or("feed_forward_proj", "relu"), gate = "gated-";
    const bool gated = kind.starts_with(gate);
    // What T5 calls gelu with a gate is the one by way of tanh.
    c.activation = kind == "gated-gelu"
                       ? "gated gelu_tanh"
                       : (gated ? "gated " : "") +
                             detail::activation_of(file, "feed_forward_proj", gated ? kind.substr(gate.size()) : kind);
    // transformers takes these two before what feed_forward_proj says.
    refuse_another(file, "dense_act_fn", kind == "gated-gelu" ? "gelu_new" : kind.substr(kind.rfind('-') + 1), kind);
    refuse_another(file, "is_gated_act", gated, kind);
    c.tied = file.flag_or("tie_word_embeddings", true);
    // T5 1.1 said by untied embeddings that nothing is scaled; since transformers 5 a key of its own does.
    const char* const scaled = "scale_decoder_outputs";
    if (file.has(scaled) && file.find(scaled) == nullptr) file.refuse(scaled, nullptr, "true or false");
    if (file.flag_or(scaled, c.tied)) c.output_scale = 1 / std::sqrt(double(c.norm.width));
    return c;
  }

  T5Config config_;
  detail::ModelTensors<T> tensors_;
  bool has_decoder_;
};

}  // namespace mha::inline MHA_NAMESPACE
