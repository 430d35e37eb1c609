// SPDX-License-Identifier: Apache-2.0
// A vector for each text: the mean of the rows that BERT (../models/bert.hpp) makes of its tokens.
#pragma once

#include <Eigen/Core>
#include <memory>
#include <span>
#include <vector>

#include <mha/block.hpp>
#include <mha/systolic.hpp>

#include "../models/bert.hpp"
#include "../models/machine.hpp"
#include "checkpoint.hpp"
#include "wordpiece.hpp"

namespace semantic_search {

using Matrix = models::Rows;

using models::Machine;

/// The memory that calls of one thread work in, and keep.
struct EncoderWork {
  models::Work rows;
  std::vector<int> ids, types, offsets;
};

/// The encoder of a checkpoint, on whatever machine. Calls are const: threads share it, each with its own work.
class Encoder {
 public:
  virtual ~Encoder() = default;

  /// One vector per text: the mean over its tokens, length 1. A text's vector does not depend on the others.
  ///
  /// Shapes    texts (B) of any lengths → vectors (B, E)
  /// Errors    std::invalid_argument if a text is longer than the model's positions or a token is not in its vocabulary
  virtual void embed(std::span<const Encoding> texts, Eigen::Ref<Matrix> vectors, EncoderWork& work) const = 0;

  /// softmax(QKᵀ/√D) of every head of one layer, counted from 0.
  ///
  /// Shapes    text (L) → (1, H, L, L)
  virtual mha::Tensor<float, 4> attention_weights(const Encoding& text, int layer) const = 0;

  const mha::BertConfig& config() const { return config_; }

 protected:
  explicit Encoder(const mha::BertConfig& config) : config_(config) {}

 private:
  mha::BertConfig config_;
};

template <mha::Backend B> class EncoderOn : public Encoder {
 public:
  explicit EncoderOn(const Checkpoint& file, const B& backend = {})
      : Encoder(file.config()), bert_(file.bert(), backend) {}

  void embed(std::span<const Encoding> texts, Eigen::Ref<Matrix> vectors, EncoderWork& work) const override;
  mha::Tensor<float, 4> attention_weights(const Encoding& text, int layer) const override;

 private:
  models::Bert<B> bert_;
};

/// Errors    as models::require_unit
std::unique_ptr<const Encoder> make_encoder(const Checkpoint& file, Machine machine, const mha::ThreadPool& threads);

extern template class EncoderOn<mha::Cpu>;
extern template class EncoderOn<mha::Systolic<>>;

}  // namespace semantic_search
