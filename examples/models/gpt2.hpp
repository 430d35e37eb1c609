// SPDX-License-Identifier: Apache-2.0
// GPT-2: Radford et al. 2019, Language models are unsupervised multitask learners, §2.3
//
//   x = tokens[ids] + positions[0 … L)
//   in every block:  x = x + attention(norm₁(x)),  x = x + feed_forward(norm₂(x))
//   logits = norm(x) tokensᵀ
//
// Whole texts and cached steps are in decoder.hpp.
//
// Symbols  L tokens, E model width, V vocabulary;  x (L, E)  tokens (V, E)  positions (P, E)  logits (L, V)
#pragma once

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "decoder.hpp"
#include "source.hpp"

namespace models {

namespace gpt2 {

template <mha::Backend B> struct Block {
  mha::LayerNorm<float, B> norm1, norm2;
  mha::MultiHeadAttention<float, B, mha::Causal> attention;
  mha::FeedForward<float, B, mha::GeluTanh> feed_forward;

  template <class W>
  Block(const mha::Gpt2Config& c, const mha::BlockWeights<W>& w, const Source& source)
      : norm1(c.norm), norm2(c.norm), attention(c.attention), feed_forward(c.feed_forward) {
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
};

}  // namespace gpt2

template <mha::Backend B = mha::Cpu>
class Gpt2 : public Decoder<gpt2::Block<B>, mha::LayerNorm<float, B>, mha::Linear<float, B>> {
 public:
  template <class W>
  explicit Gpt2(const mha::Gpt2<W>& weights, Matrices matrices = Matrices::as_stored)
      : Gpt2::Decoder(weights.config(), weights.token_embeddings(), weights.position_embeddings(), weights.mapping()) {
    const mha::Gpt2Config& c = weights.config();
    c.require_activation<mha::GeluTanh>();
    const Source source{weights.mapping(), matrices};
    for (int i = 0; i < c.layers; ++i) this->blocks_.emplace_back(c, weights.block(i), source);
    this->norm_.borrow(weights.final_norm(), source.file);
    source.give(this->logits_, weights.output());
  }
};

}  // namespace models
