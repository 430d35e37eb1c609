// SPDX-License-Identifier: Apache-2.0
// BERT: Devlin et al. 2019, §3; its blocks are those of Vaswani et al. 2017, figure 1, left, with Gelu
//
//   x = norm(word[ids] + position[0 … L) + type[token types])
//   in every block:  x = norm₁(x + attention(x)),  x = norm₂(x + feed_forward(x))
//   pooled = tanh(first row of x · W + b)
//
// Symbols  texts of L₁, L₂, … tokens one after another, ΣL rows; E model width;  x (ΣL, E)
#pragma once

#include <span>
#include <string>
#include <vector>

#include "checkpoint.hpp"
#include "rows.hpp"

namespace models {

template <mha::Backend B = mha::Cpu> class Bert {
 public:
  explicit Bert(const Checkpoint& file)
      : words_(file.tensor<2>("embeddings.word_embeddings.weight")),
        positions_(file.tensor<2>("embeddings.position_embeddings.weight")),
        types_(file.tensor<2>("embeddings.token_type_embeddings.weight")),
        norm_(norm_config(file)),
        pooler_({.inputs = norm_.config().width, .outputs = norm_.config().width}) {
    load_norm(norm_, file, "embeddings.LayerNorm");
    for (int i = 0; i < file.value<int>("num_hidden_layers"); ++i)
      blocks_.emplace_back(file, "encoder.layer." + std::to_string(i) + ".");
    load(pooler_, file, "pooler.dense");
  }

  /// Texts of different lengths need no padding: text t is rows offsets[t] to offsets[t + 1] − 1.
  ///
  /// Shapes   ids, types (ΣL)  offsets (texts + 1)  →  (ΣL, E)
  Rows operator()(std::span<const int> ids, std::span<const int> types, std::span<const int> offsets) const {
    Rows x = embed(words_, ids) + embed(types_, types);
    for (std::size_t t = 0; t + 1 < offsets.size(); ++t) {
      const int length = offsets[t + 1] - offsets[t];
      x.middleRows(offsets[t], length) += matrix(positions_).topRows(length);
    }
    Rows r(x.rows(), x.cols());
    mha::Workspace workspace;
    norm_(x, mha::into(x), workspace);
    for (const Block& block : blocks_) block(x, r, offsets, workspace);
    return x;
  }

  /// What the model says of each text as a whole: x (ΣL, E) → (texts, E).
  Rows pool(const Rows& x, std::span<const int> offsets) const {
    Rows first(static_cast<Eigen::Index>(offsets.size()) - 1, x.cols());
    for (Eigen::Index t = 0; t < first.rows(); ++t) first.row(t) = x.row(offsets[static_cast<std::size_t>(t)]);
    return Rows(pooler_(first)).array().tanh();
  }

 private:
  static mha::NormConfig norm_config(const Checkpoint& file) {
    return {.width = file.value<int>("hidden_size"), .eps = file.value<double>("layer_norm_eps")};
  }

  struct Block {
    mha::MultiHeadAttention<float, B> attention;
    mha::FeedForward<float, B, mha::Gelu> feed_forward;
    mha::LayerNorm<float, B> norm1, norm2;

    Block(const Checkpoint& file, const std::string& name)
        : attention({.d_model = file.value<int>("hidden_size"),
                     .num_heads = file.value<int>("num_attention_heads"),
                     .bias = true}),
          feed_forward({.d_model = file.value<int>("hidden_size"), .d_hidden = file.value<int>("intermediate_size")}),
          norm1(norm_config(file)),
          norm2(norm_config(file)) {
      const auto weight = [&](const char* part) {
        return mha::transposed(file.tensor<2>(name + "attention." + part + ".weight"));
      };
      const auto bias = [&](const char* part) { return file.tensor<1>(name + "attention." + part + ".bias"); };
      attention.borrow({.query = weight("self.query"),
                        .key = weight("self.key"),
                        .value = weight("self.value"),
                        .output = weight("output.dense"),
                        .query_bias = bias("self.query"),
                        .key_bias = bias("self.key"),
                        .value_bias = bias("self.value"),
                        .output_bias = bias("output.dense")},
                       file.keep());
      load_norm(norm1, file, name + "attention.output.LayerNorm");
      load(feed_forward.up(), file, name + "intermediate.dense");
      load(feed_forward.down(), file, name + "output.dense");
      load_norm(norm2, file, name + "output.LayerNorm");
    }

    // x ← block(x); r is rows to work in.
    void operator()(Rows& x, Rows& r, std::span<const int> offsets, mha::Workspace& workspace) const {
      attention(x, mha::Ragged{offsets}, mha::into(r), workspace);
      norm1(x, mha::residual(r), mha::into(x), workspace);  // x = norm₁(x + attention(x))
      feed_forward(x, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::into(x), workspace);  // x = norm₂(x + feed_forward(x))
    }
  };

  mha::TensorView<const float, 2> words_, positions_, types_;
  mha::LayerNorm<float, B> norm_;
  std::vector<Block> blocks_;
  mha::Linear<float, B> pooler_;
};

}  // namespace models
