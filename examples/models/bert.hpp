// SPDX-License-Identifier: Apache-2.0
// BERT: Devlin et al. 2019, §3; its blocks are those of Vaswani et al. 2017, figure 1, left, with Gelu
//
//   x = norm(words[ids] + positions[0 … L) + types[token types])
//   in every block:  x = norm₁(x + attention(x)),  x = norm₂(x + feed_forward(x))
//   pooled = tanh(first row of x · W + b)
//
// The weights are float, or the bfloat16 or half of a checkpoint, whose matrices Cpu keeps in 16 bits.
//
// Symbols  texts of L₁, L₂, … tokens one after another, ΣL rows; E model width;  x (ΣL, E)
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "rows.hpp"

namespace models {

template <mha::Backend B = mha::Cpu> class Bert {
  struct Block {
    mha::MultiHeadAttention<float, B> attention;
    mha::FeedForward<float, B, mha::Gelu> feed_forward;
    mha::LayerNorm<float, B> norm1, norm2;

    template <class W>
    Block(const mha::BertConfig& c, const mha::BlockWeights<W>& w, const std::shared_ptr<const void>& file, const B& on)
        : attention(c.attention, on), feed_forward(c.feed_forward, on), norm1(c.norm, on), norm2(c.norm, on) {
      attention.borrow(w.attention, file);
      norm1.borrow(w.attention_norm, file);
      feed_forward.borrow(w.feed_forward, file);
      norm2.borrow(w.feed_forward_norm, file);
    }

    // x ← block(x).
    void operator()(Work& work, std::span<const int> offsets) const {
      auto& [x, h, r, logits, workspace] = work;
      attention(x, mha::Ragged{offsets}, mha::into(r), workspace);
      norm1(x, mha::residual(r), mha::into(x), workspace);  // x = norm₁(x + attention(x))
      feed_forward(x, mha::into(r), workspace);
      norm2(x, mha::residual(r), mha::into(x), workspace);  // x = norm₂(x + feed_forward(x))
    }
  };

 public:
  template <class W>
  explicit Bert(const mha::Bert<W>& weights, const B& backend = {})
      : words_(weights.word_embeddings()),
        positions_(weights.position_embeddings()),
        types_(weights.token_type_embeddings()),
        file_(weights.mapping()),
        norm_(weights.config().norm, backend) {
    const mha::BertConfig& c = weights.config();
    c.require_activation<mha::Gelu>();
    norm_.borrow(weights.embedding_norm(), weights.mapping());
    for (int i = 0; i < c.layers; ++i) blocks_.emplace_back(c, weights.block(i), weights.mapping(), backend);
    if (!weights.has_pooler()) return;
    pooler_.emplace(mha::LinearConfig{.inputs = c.norm.width, .outputs = c.norm.width}, backend);
    pooler_->borrow(weights.pooler(), weights.mapping());
  }

  /// Texts of different lengths need no padding: text t is rows offsets[t] to offsets[t + 1] − 1.
  ///
  /// Shapes    ids, types (ΣL)  offsets (texts + 1)  →  (ΣL, E), which is work.x
  const Rows& operator()(std::span<const int> ids, std::span<const int> types, std::span<const int> offsets,
                         Work& work) const {
    embed(ids, types, offsets, work);
    for (const Block& block : blocks_) block(work, offsets);
    return work.x;
  }
  Rows operator()(std::span<const int> ids, std::span<const int> types, std::span<const int> offsets) const {
    Work work;
    return (*this)(ids, types, offsets, work);
  }

  /// What the model says of each text as a whole: x (ΣL, E) → (texts, E), which is work.logits. x may be work.x.
  ///
  /// Errors    std::invalid_argument if the checkpoint has no pooler or a text has no token
  const Rows& pool(const Rows& x, std::span<const int> offsets, Work& work) const {
    if (!pooler_) throw std::invalid_argument("the checkpoint has no pooler");
    require_offsets(offsets, x.rows());
    work.h.resize(static_cast<Eigen::Index>(offsets.size()) - 1, x.cols());
    for (std::size_t t = 0; t + 1 < offsets.size(); ++t) {
      if (offsets[t] == offsets[t + 1]) throw std::invalid_argument("text " + std::to_string(t) + " has no token");
      work.h.row(static_cast<Eigen::Index>(t)) = x.row(offsets[t]);
    }
    work.logits.resizeLike(work.h);
    (*pooler_)(work.h, mha::into(work.logits), work.workspace);
    return work.logits = work.logits.array().tanh();
  }
  Rows pool(const Rows& x, std::span<const int> offsets) const {
    Work work;
    return pool(x, offsets, work);
  }

  /// softmax(QKᵀ/√D) of every head of one block, counted from 0, for one text: ids, types (L) → (1, H, L, L).
  mha::Tensor<float, 4> attention_weights(std::span<const int> ids, std::span<const int> types, int block) const {
    if (block < 0 || block >= static_cast<int>(blocks_.size()))
      throw std::invalid_argument("there is no layer " + std::to_string(block) + ": the model has " +
                                  std::to_string(blocks_.size()) + ", counted from 0");
    const std::array offsets{0, static_cast<int>(ids.size())};
    Work work;
    embed(ids, types, offsets, work);
    for (int i = 0; i < block; ++i) blocks_[static_cast<std::size_t>(i)](work, offsets);
    return blocks_[static_cast<std::size_t>(block)].attention.attention_weights(work.x, work.workspace);
  }

 private:
  // work.x = norm(words[ids] + positions + types[token types]).
  void embed(std::span<const int> ids, std::span<const int> types, std::span<const int> offsets, Work& work) const {
    if (ids.size() != types.size() || offsets.empty() || offsets.back() != static_cast<int>(ids.size()))
      throw std::invalid_argument("there are " + std::to_string(ids.size()) + " ids, " + std::to_string(types.size()) +
                                  " token types and texts of " + std::to_string(offsets.empty() ? 0 : offsets.back()) +
                                  " tokens together");
    require_offsets(offsets, static_cast<Eigen::Index>(ids.size()));
    Rows& x = work.x;
    embed_into(x, words_, ids);
    embed_into(work.r, types_, types, "token type");
    x += work.r;
    for (std::size_t t = 0; t + 1 < offsets.size(); ++t)
      add_positions(x.middleRows(offsets[t], offsets[t + 1] - offsets[t]), positions_);
    norm_(x, mha::into(x), work.workspace);
  }

  static void require_offsets(std::span<const int> offsets, Eigen::Index rows) {
    if (offsets.empty() || offsets.front() != 0 || !std::ranges::is_sorted(offsets) || offsets.back() != rows)
      throw std::invalid_argument("the offsets of texts begin with 0, never decrease and end with the rows, " +
                                  std::to_string(rows));
  }

  Table words_, positions_, types_;
  std::shared_ptr<const void> file_;  // which they are in
  mha::LayerNorm<float, B> norm_;
  std::vector<Block> blocks_;
  std::optional<mha::Linear<float, B>> pooler_;
};

}  // namespace models
