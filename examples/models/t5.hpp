// SPDX-License-Identifier: Apache-2.0
// T5: Raffel et al. 2020, §2.1, the encoder and decoder of Vaswani et al. 2017, figure 1, with norms before each part
//
//   encoder block:  x = x + attention(norm₁(x)),  x = x + feed_forward(norm₂(x))
//   decoder block:  x = x + attention(norm₁(x)),  x = x + cross(norm₂(x), memory),  x = x + feed_forward(norm₃(x))
//   logits = scale · norm(x) W;  in T5 1.0 W is the embedding, scale 1 / √E
//
// Attention does not divide by √D, its products have no biases; within a sequence it adds a learned bias of the
// distance, the same in every block. The feed-forward has Activation = mha::Relu in T5 1.0, and models::GatedGelu in
// T5 1.1 and FLAN-T5.
//
// The weights are float, or the bfloat16 or half of a checkpoint, whose matrices Cpu keeps in 16 bits.
//
// Symbols  Ls source tokens, Lt target tokens, E model width, V vocabulary;  memory (Ls, E)  x (Ls, E) or (Lt, E)
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "rows.hpp"

namespace models {

using GatedGelu = mha::Gated<mha::GeluTanh>;

template <class Activation = mha::Relu, mha::Backend B = mha::Cpu> class T5 {
  struct EncoderBlock {
    mha::RmsNorm<float, B> norm1, norm2;
    mha::MultiHeadAttention<float, B, mha::RelativeBias> attention;
    mha::FeedForward<float, B, Activation> feed_forward;

    template <class W>
    EncoderBlock(const mha::T5Config& c, const mha::RelativeBias& bias, const mha::BlockWeights<W>& w,
                 const std::shared_ptr<const void>& file)
        : norm1(c.norm), norm2(c.norm), attention(c.attention, bias), feed_forward(c.feed_forward) {
      norm1.borrow(w.attention_norm, file);
      attention.borrow(w.attention, file);
      norm2.borrow(w.feed_forward_norm, file);
      feed_forward.borrow(w.feed_forward, file);
    }

    // x ← block(x).
    void operator()(Work& work) const {
      auto& [x, h, r, logits, workspace] = work;
      norm1(x, mha::into(h), workspace);
      attention(h, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
      feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
    }
  };

  struct DecoderBlock {
    mha::RmsNorm<float, B> norm1, norm2, norm3;
    mha::MultiHeadAttention<float, B, mha::Causal, mha::RelativeBias> attention;
    mha::MultiHeadAttention<float, B> cross;
    mha::FeedForward<float, B, Activation> feed_forward;

    template <class W>
    DecoderBlock(const mha::T5Config& c, const mha::RelativeBias& bias, const mha::BlockWeights<W>& w,
                 const std::shared_ptr<const void>& file)
        : norm1(c.norm),
          norm2(c.norm),
          norm3(c.norm),
          attention(c.attention, bias),
          cross(c.attention),
          feed_forward(c.feed_forward) {
      norm1.borrow(w.attention_norm, file);
      attention.borrow(w.attention, file);
      norm2.borrow(w.cross_norm, file);
      cross.borrow(w.cross, file);
      norm3.borrow(w.feed_forward_norm, file);
      feed_forward.borrow(w.feed_forward, file);
    }

    // x ← block(x, memory).
    void operator()(Work& work, const Rows& memory) const {
      auto& [x, h, r, logits, workspace] = work;
      norm1(x, mha::into(h), workspace);
      attention(h, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₂(x)
      cross(h, memory, mha::into(r), workspace);
      norm3(x, mha::residual(r), mha::sum_into(x), mha::into(h), workspace);  // x = x + r, h = norm₃(x)
      feed_forward(h, mha::residual(x), mha::into(x), workspace);             // x = x + feed_forward(h)
    }
  };

 public:
  template <class W>
  explicit T5(const mha::T5<W>& weights)
      : tokens_(weights.token_embeddings()),
        file_(weights.mapping()),
        encoder_norm_(weights.config().norm),
        decoder_norm_(weights.config().norm),
        logits_({.inputs = weights.config().norm.width, .outputs = weights.config().vocabulary, .bias = false}),
        scale_(static_cast<float>(weights.config().output_scale)) {
    const mha::T5Config& c = weights.config();
    c.require_activation<Activation>();
    const auto encoder_bias = weights.encoder_bias(), decoder_bias = weights.decoder_bias();
    for (int i = 0; i < c.layers; ++i)
      encoder_.emplace_back(c, encoder_bias, weights.encoder_block(i), weights.mapping());
    for (int i = 0; i < c.decoder_layers; ++i)
      decoder_.emplace_back(c, decoder_bias, weights.decoder_block(i), weights.mapping());
    encoder_norm_.borrow(weights.encoder_norm(), weights.mapping());
    decoder_norm_.borrow(weights.decoder_norm(), weights.mapping());
    logits_.borrow(weights.output(), weights.mapping());
  }

  /// Source (Ls) → memory (Ls, E), which is work.x.
  const Rows& encode(std::span<const int> source, Work& work) const {
    begin(source, work);
    for (const EncoderBlock& block : encoder_) block(work);
    encoder_norm_(work.x, mha::into(work.x), work.workspace);
    return work.x;
  }
  Rows encode(std::span<const int> source) const {
    Work work;
    return encode(source, work);
  }

  /// The logits of the token that follows each of the target's: (Lt) → (Lt, V), which is work.logits.
  ///
  /// Errors    std::invalid_argument if the memory lies in this work: encode() takes another
  const Rows& decode(std::span<const int> target, const Rows& memory, Work& work) const {
    if (&memory == &work.x)
      throw std::invalid_argument("the memory lies in the work that the target is to be decoded in: encode in another");
    begin(target, work);
    for (const DecoderBlock& block : decoder_) block(work, memory);
    decoder_norm_(work.x, mha::into(work.x), work.workspace);
    work.logits.resize(work.x.rows(), logits_.config().outputs);
    logits_(work.x, mha::into(work.logits), work.workspace);
    return work.logits *= scale_;
  }
  Rows decode(std::span<const int> target, const Rows& memory) const {
    Work work;
    return decode(target, memory, work);
  }

 private:
  void begin(std::span<const int> ids, Work& work) const {
    embed_into(work.x, tokens_, ids);
    work.h.resizeLike(work.x);
    work.r.resizeLike(work.x);
  }

  Table tokens_;
  std::shared_ptr<const void> file_;  // which they are in
  std::vector<EncoderBlock> encoder_;
  std::vector<DecoderBlock> decoder_;
  mha::RmsNorm<float, B> encoder_norm_, decoder_norm_;
  mha::Linear<float, B> logits_;
  float scale_;
};

}  // namespace models
