// SPDX-License-Identifier: Apache-2.0
// LLaMA and its relatives Mistral, Qwen 2 and Qwen 3: Touvron et al. 2023, LLaMA, §2.2
//
//   x = tokens[ids]
//   in every block:  x = x + attention(norm₁(x)),  x = x + (Silu(h W_gate) ∘ (h W_up)) W_down with h = norm₂(x)
//   logits = norm(x) W_logits
//
// norm is the root-mean-square norm, positions turn queries and keys, and several query heads share one of keys. What
// the relatives add: Mistral a window (Jiang et al. 2023, §2), Qwen 2 biases of queries, keys and values (Yang et al.
// 2024, §2.2.1), Qwen 3 norms of queries and keys, which are a type: Norm = mha::QkNorm.
//
// Symbols  L tokens, E model width, V vocabulary;  x (L, E)  tokens (V, E)  logits (L, V)
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "rows.hpp"

namespace models {

template <class Norm = mha::NoNorm, mha::Backend B = mha::Cpu> class Llama {
  struct Block {
    // One type for all: a causal mask is a window over everything, and positions may be stretched by a factor of 1.
    using Position = mha::Rotary<mha::Halves, mha::Llama3Scaling>;

    mha::RmsNorm<float, B> norm1, norm2;
    mha::MultiHeadAttention<float, B, mha::GroupedQuery<mha::Dynamic>, mha::SlidingWindow, Position, Norm> attention;
    mha::FeedForward<float, B, mha::SwiGlu> feed_forward;

    Block(const mha::LlamaConfig& c, int index, const mha::BlockWeights<float>& w,
          const std::shared_ptr<const void>& file)
        : norm1(c.norm),
          norm2(c.norm),
          attention(c.attention, c.window(index), c.llama3_rotary(), norm(c)),
          feed_forward(c.feed_forward) {
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

    static Norm norm(const mha::LlamaConfig& c) {
      if constexpr (Norm::has_weights)
        return {.eps = *c.norm.eps};
      else
        return {};
    }
  };

 public:
  explicit Llama(const mha::Llama<float>& weights)
      : tokens_(weights.token_embeddings()),
        norm_(weights.config().norm),
        logits_({.inputs = tokens_.extent[1], .outputs = tokens_.extent[0], .bias = false}) {
    weights.config().require_activation<mha::SwiGlu>();
    for (int i = 0; i < weights.config().layers; ++i)
      blocks_.emplace_back(weights.config(), i, weights.block(i), weights.mapping());
    norm_.borrow(weights.final_norm(), weights.mapping());
    logits_.borrow(weights.output(), weights.mapping());
  }

  /// The logits of the token that follows each of these: (L) → (L, V).
  Rows operator()(std::span<const int> ids) const {
    Rows x = embed(tokens_, ids), h(x.rows(), x.cols()), r(x.rows(), x.cols());
    mha::Workspace workspace;
    for (const Block& block : blocks_) block(x, h, r, workspace);
    norm_(x, mha::into(x), workspace);
    return logits_(x, workspace);
  }

 private:
  mha::TensorView<const float, 2> tokens_;
  std::vector<Block> blocks_;
  mha::RmsNorm<float, B> norm_;
  mha::Linear<float, B> logits_;
};

}  // namespace models
