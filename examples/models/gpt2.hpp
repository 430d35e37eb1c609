// SPDX-License-Identifier: Apache-2.0
// GPT-2: Radford et al. 2019, Language models are unsupervised multitask learners, §2.3
//
//   x = tokens[ids] + positions[0 … L)
//   in every block:  x = x + attention(norm₁(x)),  x = x + feed_forward(norm₂(x))
//   logits = norm(x) tokensᵀ
//
// Symbols  L tokens, E model width, V vocabulary;  x (L, E)  tokens (V, E)  positions (P, E)  logits (L, V)
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "rows.hpp"

namespace models {

template <mha::Backend B = mha::Cpu> class Gpt2 {
  struct Block {
    mha::LayerNorm<float, B> norm1, norm2;
    mha::MultiHeadAttention<float, B, mha::Causal> attention;
    mha::FeedForward<float, B, mha::GeluTanh> feed_forward;

    Block(const mha::Gpt2Config& c, const mha::BlockWeights<float>& w, const std::shared_ptr<const void>& file)
        : norm1(c.norm), norm2(c.norm), attention(c.attention), feed_forward(c.feed_forward) {
      norm1.borrow(w.attention_norm, file);
      attention.borrow(w.attention, file);
      norm2.borrow(w.feed_forward_norm, file);
      feed_forward.up().borrow(w.up, file);
      feed_forward.down().borrow(w.down, file);
    }

    // x ← block(x); h and r are rows to work in.
    void operator()(Rows& x, Rows& h, Rows& r, mha::Workspace& workspace) const {
      norm1(x, mha::into(h), workspace);
      attention(h, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
      feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
    }
  };

 public:
  explicit Gpt2(const mha::Gpt2<float>& weights)
      : tokens_(weights.token_embeddings()),
        positions_(weights.position_embeddings()),
        norm_(weights.config().norm),
        logits_({.inputs = tokens_.extent[1], .outputs = tokens_.extent[0], .bias = false}) {
    weights.config().require_activation<mha::GeluTanh>();
    for (int i = 0; i < weights.config().layers; ++i)
      blocks_.emplace_back(weights.config(), weights.block(i), weights.mapping());
    norm_.borrow(weights.final_norm(), weights.mapping());
    logits_.borrow(weights.output(), weights.mapping());
  }

  /// The logits of the token that follows each of these: (L) → (L, V).
  Rows operator()(std::span<const int> ids) const {
    Rows x = embed(tokens_, ids), h(x.rows(), x.cols()), r(x.rows(), x.cols());
    x += first_positions(positions_, x.rows());
    mha::Workspace workspace;
    for (const Block& block : blocks_) block(x, h, r, workspace);
    norm_(x, mha::into(x), workspace);
    return logits_(x, workspace);
  }

 private:
  mha::TensorView<const float, 2> tokens_, positions_;
  std::vector<Block> blocks_;
  mha::LayerNorm<float, B> norm_;
  mha::Linear<float, B> logits_;
};

}  // namespace models
