// SPDX-License-Identifier: Apache-2.0
// BERT: token and position embeddings, then layers of attention and two dense steps, each with a residual and a norm.
#pragma once

#include <Eigen/Core>
#include <memory>
#include <span>
#include <vector>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "checkpoint.hpp"
#include "wordpiece.hpp"

namespace semantic_search {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// y = x Wᵀ + b, the weight (out, in) as the checkpoint has it.
struct Dense {
  Eigen::Map<const Matrix> weight;            // (out, in)
  Eigen::Map<const Eigen::RowVectorXf> bias;  // (out)

  Dense(const Checkpoint& file, const std::string& name, int out, int in);
  Matrix operator()(const Matrix& x) const;  // (rows, in) → (rows, out)
};

/// Each row to mean 0 and variance 1, then scaled and shifted.
struct LayerNorm {
  Eigen::Map<const Eigen::RowVectorXf> scale, shift;  // (E)
  float eps;

  LayerNorm(const Checkpoint& file, const std::string& name);
  void operator()(Matrix& x) const;  // (rows, E), in place
};

template <mha::Backend B> struct EncoderLayer {
  std::unique_ptr<mha::MultiHeadAttention<float, B>> attention;
  LayerNorm attention_norm;
  Dense expand, contract;
  LayerNorm output_norm;

  EncoderLayer(const Checkpoint& file, int index);
};

/// The encoder of a checkpoint, its attention on backend B. All weights stay in the mapped file.
template <mha::Backend B> class EncoderOn {
 public:
  explicit EncoderOn(const Checkpoint& file);

  /// One vector per text: the mean over its tokens, length 1.
  ///
  /// Shapes    batch (B) texts of any lengths → (B, E)
  Matrix embed(std::span<const Encoding* const> batch, mha::Workspace& workspace) const;

  /// Softmax(QKᵀ/√D) of every head of one layer, counted from 0.
  ///
  /// Shapes    text (L) → (1, H, L, L)
  mha::Tensor<float, 4> attention_weights(const Encoding& text, int layer) const;

  const ModelConfig& config() const { return config_; }

 private:
  Matrix embeddings(std::span<const Encoding* const> batch, int length) const;
  void run(const EncoderLayer<B>& layer, Matrix& x, const std::vector<int>& lengths, mha::Workspace& workspace) const;

  ModelConfig config_;
  std::shared_ptr<const void> mapping_;
  Eigen::Map<const Matrix> word_, position_, token_type_;  // (vocabulary, E), (positions, E), (types, E)
  LayerNorm embedding_norm_;
  std::vector<EncoderLayer<B>> layers_;
};

extern template class EncoderOn<mha::Cpu>;
extern template class EncoderOn<mha::Systolic<>>;
using Encoder = EncoderOn<mha::Cpu>;

}  // namespace semantic_search
