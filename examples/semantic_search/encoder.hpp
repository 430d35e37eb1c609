// SPDX-License-Identifier: Apache-2.0
// BERT: token and position embeddings, then blocks of attention and feed-forward, each with a residual and a norm.
#pragma once

#include <deque>
#include <Eigen/Core>
#include <memory>
#include <span>

#include <mha/block.hpp>
#include <mha/systolic.hpp>

#include "checkpoint.hpp"
#include "wordpiece.hpp"

namespace semantic_search {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = mha::TensorView<float, 2>;  // (rows, E), one row after another

/// What the encoder multiplies on: float32 vector code, or the processor's bfloat16 matrix unit.
enum class Machine { cpu, systolic };

/// The encoder of a checkpoint, on whatever machine. Calls are const: threads share it, each with its own workspace.
class Encoder {
 public:
  virtual ~Encoder() = default;

  /// One vector per text: the mean over its tokens, length 1. A text's vector does not depend on the others. After the
  /// largest batch, calls with the same workspace allocate nothing.
  ///
  /// Shapes    texts (B) of any lengths → vectors (B, E)
  /// Errors    std::runtime_error if a text is longer than the model's positions or a token is not in its vocabulary
  virtual void embed(std::span<const Encoding> texts, const Rows& vectors, mha::Workspace& workspace) const = 0;

  /// softmax(QKᵀ/√D) of every head of one layer, counted from 0.
  ///
  /// Shapes    text (L) → (1, H, L, L)
  virtual mha::Tensor<float, 4> attention_weights(const Encoding& text, int layer) const = 0;

  const mha::BertConfig& config() const { return config_; }

 protected:
  explicit Encoder(const mha::BertConfig& config) : config_(config) {}

  mha::BertConfig config_;
};

/// One layer of the encoder.
template <mha::Backend B> struct Block {
  mha::MultiHeadAttention<float, B> attention;
  mha::FeedForward<float, B, mha::Gelu> feed_forward;
  mha::LayerNorm<float, B> attention_norm, output_norm;

  Block(const mha::Bert<float>& bert, int index, const B& backend)
      : attention(bert.config().attention, backend),
        feed_forward(bert.config().feed_forward, backend),
        attention_norm(bert.config().norm, backend),
        output_norm(bert.config().norm, backend) {
    const mha::BlockWeights<float> weights = bert.block(index);  // in the mapped file
    attention.borrow(weights.attention, bert.mapping());
    attention_norm.borrow(weights.attention_norm, bert.mapping());
    feed_forward.up().borrow(weights.up, bert.mapping());
    feed_forward.down().borrow(weights.down, bert.mapping());
    output_norm.borrow(weights.feed_forward_norm, bert.mapping());
  }

  /// x ← block(x), texts of different lengths one after another; y is rows to work in.
  void operator()(const Rows& x, const Rows& y, const mha::Ragged& texts, mha::Workspace& workspace) const {
    attention(x, texts, mha::into(y), workspace);
    attention_norm(x, mha::residual(y), mha::into(x), workspace);  // x = norm(x + attention(x))
    feed_forward(x, mha::into(y), workspace);
    output_norm(x, mha::residual(y), mha::into(x), workspace);  // x = norm(x + feed_forward(x))
  }
};

template <mha::Backend B> class EncoderOn : public Encoder {
 public:
  explicit EncoderOn(const Checkpoint& file, const B& backend = {});

  void embed(std::span<const Encoding> texts, const Rows& vectors, mha::Workspace& workspace) const override;
  mha::Tensor<float, 4> attention_weights(const Encoding& text, int layer) const override;

 private:
  void check(const Encoding& text) const;
  void write_embeddings(const Encoding& text, const Rows& x) const;

  mha::TensorView<const float, 2> word_, position_, token_type_;  // (vocabulary, E), (positions, E), (types, E)
  mha::LayerNorm<float, B> embedding_norm_;
  std::deque<Block<B>> blocks_;
  std::shared_ptr<const void> mapping_;
};

/// Errors    std::runtime_error if the machine is `systolic` and the processor has no such unit that is faster than its
///           vector code, unless MHA_MATRIX_UNIT names one
std::unique_ptr<const Encoder> make_encoder(const Checkpoint& file, Machine machine, const mha::ThreadPool& threads);

extern template class EncoderOn<mha::Cpu>;
extern template class EncoderOn<mha::Systolic<>>;

}  // namespace semantic_search
