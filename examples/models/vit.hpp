// SPDX-License-Identifier: Apache-2.0
// ViT: Dosovitskiy et al. 2021, An image is worth 16x16 words, §3.1, eqs. 1 to 4
//
//   x = [class; patches W + b] + positions
//   in every block:  x = x + attention(norm₁(x)),  x = x + feed_forward(norm₂(x))
//   logits = first row of norm(x) · W + b
//
// The weights are float, or the bfloat16 or half of a checkpoint, whose matrices Cpu keeps in 16 bits.
//
// Symbols  C channels, N patches of P × P pixels; E model width;  patches (N, C·P·P)  x (1 + N, E)
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "rows.hpp"

namespace models {

/// The memory that a call of Vit works in.
struct VitWork : Work {
  Rows patches;  // (N, C·P·P)
};

template <mha::Backend B = mha::Cpu> class Vit {
  struct Block {
    mha::LayerNorm<float, B> norm1, norm2;
    mha::MultiHeadAttention<float, B> attention;
    mha::FeedForward<float, B, mha::Gelu> feed_forward;

    template <class W>
    Block(const mha::VitConfig& c, const mha::BlockWeights<W>& w, const std::shared_ptr<const void>& file)
        : norm1(c.norm), norm2(c.norm), attention(c.attention), feed_forward(c.feed_forward) {
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

 public:
  template <class W>
  explicit Vit(const mha::Vit<W>& weights)
      : config_(weights.config()),
        class_(1, config_.norm.width),
        positions_(weights.position_embeddings()),
        file_(weights.mapping()),
        projection_({.inputs = config_.patch_size(), .outputs = config_.norm.width}),
        norm_(config_.norm),
        classifier_({.inputs = config_.norm.width, .outputs = config_.labels}) {
    config_.require_activation<mha::Gelu>();
    for (int j = 0; j < class_.cols(); ++j) class_(0, j) = weights.class_token()(j);
    projection_.borrow(weights.patches(), weights.mapping());
    for (int i = 0; i < config_.layers; ++i) blocks_.emplace_back(config_, weights.block(i), weights.mapping());
    norm_.borrow(weights.final_norm(), weights.mapping());
    classifier_.borrow(weights.classifier(), weights.mapping());
  }

  /// The logits of the classes: pixels (C, height, width) → (1, classes), which is work.logits.
  const Rows& operator()(const mha::TensorView<const float, 3>& pixels, VitWork& work) const {
    cut(pixels, work.patches);
    Rows& x = work.x;
    for (Rows* rows : {&x, &work.h, &work.r}) rows->resize(1 + work.patches.rows(), class_.cols());
    x.row(0) = class_;
    projection_(work.patches, mha::into(x.bottomRows(work.patches.rows())), work.workspace);
    add_positions(x, positions_);
    for (const Block& block : blocks_) block(work);
    norm_(x, mha::into(x), work.workspace);
    work.logits.resize(1, config_.labels);
    classifier_(mha::view(std::as_const(x).data(), 1, config_.norm.width), mha::into(work.logits), work.workspace);
    return work.logits;
  }
  Rows operator()(const mha::TensorView<const float, 3>& pixels) const {
    VitWork work;
    return (*this)(pixels, work);
  }

 private:
  /// Each patch as one row, channel by channel: (C, height, width) → (N, C·P·P), from left to right, then down.
  void cut(const mha::TensorView<const float, 3>& pixels, Rows& patches) const {
    const int C = config_.channels, rows = config_.patch_height, columns = config_.patch_width;
    const int expected[] = {C, config_.image_height, config_.image_width};
    for (int axis = 0; axis < 3; ++axis)
      if (pixels.extent[axis] != expected[axis])
        throw std::invalid_argument("axis " + std::to_string(axis) + " of the pixels is " +
                                    std::to_string(pixels.extent[axis]) + ", the model's images have " +
                                    std::to_string(expected[axis]));
    const int across = config_.image_width / columns;
    patches.resize(config_.patches(), config_.patch_size());
    for (int n = 0; n < config_.patches(); ++n)
      for (int c = 0; c < C; ++c)
        for (int i = 0; i < rows; ++i)
          for (int j = 0; j < columns; ++j)
            patches(n, (c * rows + i) * columns + j) = pixels(c, n / across * rows + i, n % across * columns + j);
  }

  mha::VitConfig config_;
  Rows class_;       // (1, E)
  Table positions_;  // (1 + N, E)
  std::shared_ptr<const void> file_;
  mha::Linear<float, B> projection_;
  std::vector<Block> blocks_;
  mha::LayerNorm<float, B> norm_;
  mha::Linear<float, B> classifier_;
};

}  // namespace models
