// SPDX-License-Identifier: Apache-2.0
// Gemma, Gemma 2 and the text model of Gemma 3: Gemma team 2024, Gemma, §2; Gemma 2, §2; 2025, Gemma 3, §2
//
//   x = √E · tokens[ids]
//   in every block:  x = x + attention(norm₁(x)),  x = x + (Gelu(h W_gate) ∘ (h W_up)) W_down with h = norm₂(x)
//   logits = norm(x) tokensᵀ
//
// As LLaMA, but that norms multiply by 1 + weight, heads may be wider than E / H, and Gelu is the gate. Gemma 2 norms
// what each branch gives before it is added, gives every second layer a window, and keeps the logits of attention and
// those of the tokens below a cap: Score = mha::SoftCap. Gemma 3 norms queries and keys in place of the first cap, Norm
// = mha::QkNorm, and turns them by another base in layers with a window.
//
// Whole texts and cached steps are in decoder.hpp.
//
// Symbols  L tokens, E model width, H heads, V vocabulary;  x (L, E)  tokens (V, E)  logits (L, V)
#pragma once

#include <concepts>
#include <optional>
#include <stdexcept>

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "decoder.hpp"
#include "source.hpp"

namespace models {

namespace gemma {

/// The cap of the tokens' logits, if there is one.
struct Cap {
  static constexpr const char* name = "cap";
  std::optional<mha::SoftCap> cap;
  template <class S> S operator()(const S& x) const { return cap ? (*cap)(x, 0, 0, 0, 0) : x; }
};

template <class Norm, class Score, mha::Backend B> struct Block {
  // One type for all: a causal mask is a window over everything, and how positions are stretched is in config.json.
  using Position = mha::Rotary<mha::Halves, mha::AnyScaling>;

  mha::RmsNorm<float, B> norm1, norm2;
  std::optional<mha::RmsNorm<float, B>> post_norm1, post_norm2;
  mha::MultiHeadAttention<float, B, mha::GroupedQuery<mha::Dynamic>, mha::SlidingWindow, Position, Norm, Score>
      attention;
  mha::FeedForward<float, B, mha::Gated<mha::GeluTanh>> feed_forward;

  template <class W>
  Block(const mha::GemmaConfig& c, int index, int length, const mha::BlockWeights<W>& w, const Source& source)
      : norm1(c.norm),
        norm2(c.norm),
        attention(c.attention, c.window(index), c.scaled_rotary(index, length), norm(c), score(c)),
        feed_forward(c.feed_forward) {
    norm1.borrow(w.attention_norm, source.file);
    source.give(attention, w.attention);
    norm2.borrow(w.feed_forward_norm, source.file);
    source.give(feed_forward, w.feed_forward);
    if (!c.post_norms) return;
    post_norm1.emplace(c.norm).borrow(w.attention_post_norm, source.file);
    post_norm2.emplace(c.norm).borrow(w.feed_forward_post_norm, source.file);
  }

  // x ← block(x). past is nothing, or this layer's part of a step: what a cache holds before x.
  template <class... Past> void operator()(Work& work, const Past&... past) const {
    auto& [x, h, r, logits, workspace] = work;
    norm1(x, mha::into(h), workspace);
    attention(h, past..., mha::into(r), workspace);
    if (post_norm1) (*post_norm1)(r, mha::into(r), workspace);
    norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
    if (post_norm2) {
      feed_forward(h, mha::into(r), workspace);
      (*post_norm2)(r, mha::into(r), workspace);
      x += r;
    } else {
      feed_forward(h, mha::residual(x), mha::into(x), workspace);  // x = x + feed_forward(h)
    }
  }

  static Norm norm(const mha::GemmaConfig& c) {
    if constexpr (Norm::has_weights)
      return c.query_key_norm();
    else
      return {};
  }
  static Score score(const mha::GemmaConfig& c) {
    if constexpr (std::same_as<Score, mha::SoftCap>)
      return {.cap = c.attention_cap.value()};
    else
      return {};
  }
};

}  // namespace gemma

template <class Norm = mha::NoNorm, class Score = mha::NoScore, mha::Backend B = mha::Cpu>
class Gemma : public Decoder<gemma::Block<Norm, Score, B>, mha::RmsNorm<float, B>, mha::Linear<float, B, gemma::Cap>> {
 public:
  /// For texts of at most `length` tokens, where positions depend on it; 0 is as many as the model has positions.
  ///
  /// Errors    std::invalid_argument if the weights ask for another Norm or Score: with_gemma() below picks them
  template <class W>
  explicit Gemma(const mha::Gemma<W>& weights, int length = 0, Matrices matrices = Matrices::as_stored)
      : Gemma::Decoder(weights.config(), weights.token_embeddings(), std::nullopt, weights.mapping(),
                       cap_of(weights.config())) {
    const mha::GemmaConfig& c = weights.config();
    c.require_activation<mha::Gated<mha::GeluTanh>>();
    if (c.qk_norm != Norm::has_weights || c.attention_cap.has_value() != std::same_as<Score, mha::SoftCap>)
      throw std::invalid_argument("Gemma: a " + c.model_type + (c.qk_norm ? " has a" : " has no") +
                                  " norm of queries and keys and" + (c.attention_cap ? " a" : " no") +
                                  " cap of attention's logits, the model's type is another");
    this->embedding_scale_ = static_cast<float>(c.embedding_scale);
    const Source source{weights.mapping(), matrices};
    for (int i = 0; i < c.layers; ++i) this->blocks_.emplace_back(c, i, length, weights.block(i), source);
    this->norm_.borrow(weights.final_norm(), source.file);
    source.give(this->logits_, weights.output());
  }

 private:
  static gemma::Cap cap_of(const mha::GemmaConfig& c) {
    if (!c.logit_cap) return {};
    return {mha::SoftCap{.cap = *c.logit_cap}};
  }
};

/// f.operator()<Model>(), Model being the Gemma on B that these weights are of: all else is data of the model.
template <mha::Backend B = mha::Cpu, class F> auto with_gemma(const mha::GemmaConfig& c, const F& f) {
  if (c.qk_norm) return f.template operator()<Gemma<mha::QkNorm, mha::NoScore, B>>();
  if (c.attention_cap) return f.template operator()<Gemma<mha::NoNorm, mha::SoftCap, B>>();
  return f.template operator()<Gemma<mha::NoNorm, mha::NoScore, B>>();
}

}  // namespace models
