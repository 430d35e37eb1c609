// SPDX-License-Identifier: Apache-2.0
// ViT: Dosovitskiy et al. 2021, An image is worth 16x16 words, §3.1, eqs. 1 to 4
//
//   x = [class; patches W + b] + positions
//   in every block:  x = x + attention(norm₁(x)),  x = x + feed_forward(norm₂(x))
//   logits = first row of norm(x) · W + b
//
// Symbols  C channels, P the side of a patch, N patches; E model width;  x (1 + N, E)
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "rows.hpp"

namespace models {

template <mha::Backend B = mha::Cpu> class Vit {
 public:
  explicit Vit(const Checkpoint& file)
      : patch_(file.value<int>("patch_size")),
        class_(file.tensor<3>("vit.embeddings.cls_token")),
        positions_(file.tensor<3>("vit.embeddings.position_embeddings")),
        projection_(
            {.inputs = file.value<int>("num_channels") * patch_ * patch_, .outputs = file.value<int>("hidden_size")}),
        norm_(norm_config(file)),
        classifier_(
            {.inputs = file.value<int>("hidden_size"), .outputs = file.tensor<1>("classifier.bias").extent[0]}) {
    // A convolution whose stride is its width is one product of every patch: (E, C, P, P) is (E, C·P·P).
    const auto kernel = file.tensor<4>("vit.embeddings.patch_embeddings.projection.weight");
    projection_.borrow(
        {.weight = mha::transposed(mha::view(kernel.data, kernel.extent[0], projection_.config().inputs)),
         .bias = file.tensor<1>("vit.embeddings.patch_embeddings.projection.bias")},
        file.keep());
    for (int i = 0; i < file.value<int>("num_hidden_layers"); ++i)
      blocks_.emplace_back(file, "vit.encoder.layer." + std::to_string(i) + ".");
    load_norm(norm_, file, "vit.layernorm");
    load(classifier_, file, "classifier");
  }

  /// The logits of the classes: pixels (C, height, width) → (1, classes).
  Rows operator()(const mha::TensorView<const float, 3>& pixels) const {
    mha::Workspace workspace;
    const Rows patches = projection_(cut(pixels), workspace);  // (N, E)
    Rows x(1 + patches.rows(), patches.cols());
    x << Eigen::Map<const Rows>(class_.data, 1, x.cols()), patches;
    x += Eigen::Map<const Rows>(positions_.data, x.rows(), x.cols());
    Rows h(x.rows(), x.cols()), r(x.rows(), x.cols());
    for (const Block& block : blocks_) block(x, h, r, workspace);
    norm_(x, mha::into(x), workspace);
    return classifier_(Rows(x.topRows(1)), workspace);
  }

 private:
  /// Each patch as one row: (C, height, width) → (N, C·P·P), patches from left to right, then down.
  Rows cut(const mha::TensorView<const float, 3>& pixels) const {
    const int P = patch_, channels = pixels.extent[0], down = pixels.extent[1] / P, across = pixels.extent[2] / P;
    Rows rows(down * across, channels * P * P);
    for (int n = 0; n < down * across; ++n)
      for (int c = 0; c < channels; ++c)
        for (int i = 0; i < P; ++i)
          for (int j = 0; j < P; ++j) rows(n, (c * P + i) * P + j) = pixels(c, n / across * P + i, n % across * P + j);
    return rows;
  }

  static mha::NormConfig norm_config(const Checkpoint& file) {
    return {.width = file.value<int>("hidden_size"), .eps = file.value<double>("layer_norm_eps")};
  }

  struct Block {
    mha::LayerNorm<float, B> norm1, norm2;
    mha::MultiHeadAttention<float, B> attention;
    mha::FeedForward<float, B, mha::Gelu> feed_forward;

    Block(const Checkpoint& file, const std::string& name)
        : norm1(norm_config(file)),
          norm2(norm_config(file)),
          attention({.d_model = file.value<int>("hidden_size"),
                     .num_heads = file.value<int>("num_attention_heads"),
                     .bias = true}),
          feed_forward({.d_model = file.value<int>("hidden_size"), .d_hidden = file.value<int>("intermediate_size")}) {
      const auto weight = [&](const char* part) {
        return mha::transposed(file.tensor<2>(name + "attention." + part + ".weight"));
      };
      const auto bias = [&](const char* part) { return file.tensor<1>(name + "attention." + part + ".bias"); };
      attention.borrow({.query = weight("attention.query"),
                        .key = weight("attention.key"),
                        .value = weight("attention.value"),
                        .output = weight("output.dense"),
                        .query_bias = bias("attention.query"),
                        .key_bias = bias("attention.key"),
                        .value_bias = bias("attention.value"),
                        .output_bias = bias("output.dense")},
                       file.keep());
      load_norm(norm1, file, name + "layernorm_before");
      load_norm(norm2, file, name + "layernorm_after");
      load(feed_forward.up(), file, name + "intermediate.dense");
      load(feed_forward.down(), file, name + "output.dense");
    }

    // x ← block(x); h and r are rows to work in.
    void operator()(Rows& x, Rows& h, Rows& r, mha::Workspace& workspace) const {
      norm1(x, mha::into(h), workspace);
      attention(h, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
      feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
    }
  };

  int patch_;
  mha::TensorView<const float, 3> class_, positions_;
  mha::Linear<float, B> projection_;
  std::vector<Block> blocks_;
  mha::LayerNorm<float, B> norm_;
  mha::Linear<float, B> classifier_;
};

}  // namespace models
