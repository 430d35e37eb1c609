// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint.hpp"
#include "config_file.hpp"
#include "model_config.hpp"
#include "model_tensors.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The config.json of a vision transformer.
struct VitConfig : ModelConfig {
  Index image_height = 0, image_width = 0, patch_height = 0, patch_width = 0;  ///< in pixels
  Index channels = 0;                                                          ///< of a pixel
  Index labels = 0;                                                            ///< of the classifier

  /// How many patches an image has.
  [[nodiscard]] Index patches() const { return (image_height / patch_height) * (image_width / patch_width); }
  /// Numbers of a patch, (channels, patch_height, patch_width) in a row.
  [[nodiscard]] Index patch_size() const { return channels * patch_height * patch_width; }
};

/// The weights of a vision transformer by Hugging Face's names, from a folder with config.json; with or without "vit."
/// in front.
///
///   const mha::Vit<float> vit("vit-base-patch16-224");
///   patches.borrow(vit.patches(), vit.mapping());   // a Linear of c.patch_size() inputs, c.norm.width outputs
///
/// Scalar, Errors   as Bert
template <class T> class Vit {
 public:
  explicit Vit(const std::filesystem::path& folder) : Vit(Checkpoint(folder)) {}
  explicit Vit(const Checkpoint& checkpoint)
      : config_(read(ConfigFile(checkpoint.folder() / "config.json"))),
        tensors_(checkpoint, {"", "vit."}, "embeddings.cls_token") {
    tensors_.require_blocks(names, config_.layers);
    for (Index i = 0; i < config_.layers; ++i) static_cast<void>(block(i));
    static_cast<void>(patches());
    static_cast<void>(class_token());
    static_cast<void>(position_embeddings());
    static_cast<void>(final_norm());
    if (has_classifier()) static_cast<void>(classifier());
  }

  [[nodiscard]] const VitConfig& config() const { return config_; }
  /// Keeps the memory of all weights alive.
  [[nodiscard]] std::shared_ptr<const void> mapping() const { return tensors_.mapping(); }

  /// The linear from a patch (channels, patch_height, patch_width) in a row to E, stored as a convolution.
  [[nodiscard]] BorrowedLinear<T> patches() const {
    const std::string name = "embeddings.patch_embeddings.projection";
    const Index E = config_.norm.width;
    BorrowedLinear<T> w;
    w.weight = transposed(
        mha::view(tensors_.data(name + ".weight", {E, config_.channels, config_.patch_height, config_.patch_width}), E,
                  config_.patch_size()));
    w.bias = tensors_.vector(name + ".bias", E);
    return w;
  }
  /// (E), the row before the patches
  [[nodiscard]] TensorView<const T, 1> class_token() const {
    return mha::view(tensors_.data("embeddings.cls_token", {1, 1, config_.norm.width}), config_.norm.width);
  }
  /// (1 + patches, E)
  [[nodiscard]] TensorView<const T, 2> position_embeddings() const {
    const Index rows = 1 + config_.patches(), E = config_.norm.width;
    return mha::view(tensors_.data("embeddings.position_embeddings", {1, rows, E}), rows, E);
  }
  [[nodiscard]] BlockWeights<T> block(Index i) const {
    tensors_.require_block(i, config_.layers);
    return tensors_.block(names, config_, i, true, false);
  }
  [[nodiscard]] BorrowedNorm<T> final_norm() const { return tensors_.norm("layernorm", config_.norm.width, true); }
  /// The linear from the class token's row to labels.
  [[nodiscard]] bool has_classifier() const { return tensors_.has_head("classifier"); }
  [[nodiscard]] BorrowedLinear<T> classifier() const {
    return tensors_.bare().linear("classifier", config_.norm.width, config_.labels, true);
  }

 private:
  static constexpr detail::BlockNames names{.block = "encoder.layer.",
                                            .attention_norm = "layernorm_before",
                                            .query = "attention.attention.query",
                                            .key = "attention.attention.key",
                                            .value = "attention.attention.value",
                                            .output = "attention.output.dense",
                                            .feed_forward_norm = "layernorm_after",
                                            .up = "intermediate.dense",
                                            .down = "output.dense"};

  static VitConfig read(const ConfigFile& file) {
    VitConfig c;
    c.model_type = detail::model_type_of(file, {"vit"});
    detail::read_sizes(
        file, {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "layer_norm_eps"}, c);
    c.activation = detail::activation_of(file, "hidden_act", file.text("hidden_act"));
    c.attention.bias = file.flag_or("qkv_bias", true);
    c.attention.output_bias = true;
    read_pair(file, "image_size", c.image_height, c.image_width);
    read_pair(file, "patch_size", c.patch_height, c.patch_width);
    c.channels = file.positive_or("num_channels", 3);
    if (c.patch_height > c.image_height || c.patch_width > c.image_width)
      file.fail("'patch_size' is (" + std::to_string(c.patch_height) + ", " + std::to_string(c.patch_width) +
                "), but 'image_size' is (" + std::to_string(c.image_height) + ", " + std::to_string(c.image_width) +
                ")");
    detail::size_of(file, "a patch", {c.channels, c.patch_height, c.patch_width});
    detail::size_of(file, "the patches", {c.image_height / c.patch_height, c.image_width / c.patch_width});
    const auto* const labels = file.find("id2label");
    if (labels != nullptr && !labels->is_object()) file.refuse("id2label", *labels, "an object");
    // Two are the default, which is not written.
    c.labels = labels == nullptr ? file.natural_or("num_labels", 2) : static_cast<Index>(labels->size());
    return c;
  }

  /// A number for both sides, or a list of height and width.
  static void read_pair(const ConfigFile& file, const char* key, Index& height, Index& width) {
    const auto* const value = file.find(key);
    if (value != nullptr && value->is_array() && value->size() == 2) {
      height = file.positive_of((*value)[0], key);
      width = file.positive_of((*value)[1], key);
    } else {
      height = width = file.positive(key);
    }
  }

  VitConfig config_;
  detail::ModelTensors<T> tensors_;
};

}  // namespace mha::inline MHA_NAMESPACE
