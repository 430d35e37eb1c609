// SPDX-License-Identifier: Apache-2.0
// LLaMA and its relatives Mistral, Qwen 2, Qwen 3 and Phi-3: Touvron et al. 2023, LLaMA, §2.2
//
//   x = tokens[ids]
//   in every block:  x = x + attention(norm₁(x)),  x = x + (Silu(h W_gate) ∘ (h W_up)) W_down with h = norm₂(x)
//   logits = norm(x) W_logits
//
// norm is the root-mean-square norm, positions turn queries and keys, and several query heads share one of keys. What
// the relatives add: Mistral a window (Jiang et al. 2023, §2), Qwen 2 biases of queries, keys and values (Yang et al.
// 2024, §2.2.1), Qwen 3 norms of queries and keys, which are a type: Norm = mha::QkNorm. Phi-3 turns a part of each
// head and stretches every pair by a factor of its own (Abdin et al. 2024, §2).
//
// Whole texts and cached steps are in decoder.hpp.
//
// Symbols  L tokens, E model width, V vocabulary;  x (L, E)  tokens (V, E)  logits (L, V)
#pragma once

#include <optional>

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "decoder.hpp"
#include "source.hpp"

namespace models {

namespace llama {

template <class Norm, mha::Backend B> struct Block {
  // One type for all: a causal mask is a window over everything, and how positions are stretched is in config.json.
  using Position = mha::Rotary<mha::Halves, mha::AnyScaling>;

  mha::RmsNorm<float, B> norm1, norm2;
  mha::MultiHeadAttention<float, B, mha::GroupedQuery<mha::Dynamic>, mha::SlidingWindow, Position, Norm> attention;
  mha::FeedForward<float, B, mha::SwiGlu> feed_forward;

  template <class W>
  Block(const mha::LlamaConfig& c, int index, int length, const mha::BlockWeights<W>& w, const Source& source)
      : norm1(c.norm),
        norm2(c.norm),
        attention(c.attention, c.window(index), c.scaled_rotary(length), norm(c)),
        feed_forward(c.feed_forward) {
    norm1.borrow(w.attention_norm, source.file);
    source.give(attention, w.attention);
    norm2.borrow(w.feed_forward_norm, source.file);
    source.give(feed_forward, w.feed_forward);
  }

  // x ← block(x). past is nothing, or this layer's part of a step: what a cache holds before x.
  template <class... Past> void operator()(Work& work, const Past&... past) const {
    auto& [x, h, r, logits, workspace] = work;
    norm1(x, mha::into(h), workspace);
    attention(h, past..., mha::into(r), workspace);
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

}  // namespace llama

template <class Norm = mha::NoNorm, mha::Backend B = mha::Cpu>
class Llama : public Decoder<llama::Block<Norm, B>, mha::RmsNorm<float, B>, mha::Linear<float, B>> {
 public:
  /// For texts of at most `length` tokens, where positions depend on it; 0 is as many as the model has positions.
  template <class W>
  explicit Llama(const mha::Llama<W>& weights, int length = 0, Matrices matrices = Matrices::as_stored)
      : Llama::Decoder(weights.config(), weights.token_embeddings(), std::nullopt, weights.mapping()) {
    const mha::LlamaConfig& c = weights.config();
    c.require_activation<mha::SwiGlu>();
    const Source source{weights.mapping(), matrices};
    for (int i = 0; i < c.layers; ++i) this->blocks_.emplace_back(c, i, length, weights.block(i), source);
    this->norm_.borrow(weights.final_norm(), source.file);
    source.give(this->logits_, weights.output());
  }
};

}  // namespace models
