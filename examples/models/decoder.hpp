// SPDX-License-Identifier: Apache-2.0
// What GPT-2, LLaMA and Gemma have in common: a table of tokens, blocks one after another, a norm and logits; a whole
// text at once, or piece by piece with a key/value cache. Both ways give the same bits on Cpu and Systolic.
//
//   auto cache = model.make_cache(mha::Contiguous{.length = 4096});
//   const mha::SequenceId text = cache.add();
//   models::Work work;
//   while (more) {
//     auto step = cache.step(text, n);                           // n rows more: a piece of a prompt, or one token
//     const models::Rows& logits = model.next(ids, step, work);  // (1, V)
//     step.commit();
//   }
//
// The weights are float, or the bfloat16 or half of a checkpoint, whose matrices Cpu keeps in 16 bits; or a model
// rounds its matrices to 8 or 4 bits, as source.hpp says.
//
// Symbols  L tokens of a text, n of a step, B sequences of a step, E model width, V vocabulary, P positions
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <mha/block.hpp>
#include <mha/io.hpp>

#include "rows.hpp"

namespace models {

/// Block   x ← block(work, past…), which has `attention`; past is nothing, or the block's part of a cache's step
/// Norm    the one before the logits
template <class Block, class Norm, class Logits> class Decoder {
 public:
  /// The logits of the token that follows each of these: (L) → (L, V). They are in work.
  const Rows& operator()(std::span<const int> ids, Work& work) const {
    embed(work, ids);
    if (positions_) add_positions(work.x, *positions_);
    run(work);
    return all_logits(work);
  }
  Rows operator()(std::span<const int> ids) const {
    Work work;
    (*this)(ids, work);
    return std::move(work.logits);
  }

  /// A cache for this model: keys and values of all its blocks, stored as F.
  template <class F = float, class Storage>
  [[nodiscard]] auto make_cache(const Storage& storage, int sequences = 1) const {
    return mha::make_cache<F>(blocks_.front().attention, storage,
                              {.layers = static_cast<int>(blocks_.size()), .sequences = sequences});
  }

  /// The same logits for the rows that a step adds to its sequences, (Σn) → (Σn, V). They are in work.
  template <class Cache>
  const Rows& operator()(std::span<const int> ids, const mha::CacheStep<Cache>& step, Work& work) const {
    continue_with(ids, step, work);
    return all_logits(work);
  }

  /// Those of the last row of each sequence alone, (Σn) → (B, V): what the next token is chosen by.
  template <class Cache>
  const Rows& next(std::span<const int> ids, const mha::CacheStep<Cache>& step, Work& work) const {
    continue_with(ids, step, work);
    const auto offsets = step.offsets();
    const auto sequences = static_cast<Eigen::Index>(offsets.size()) - 1;
    work.h.resize(sequences, work.x.cols());
    for (Eigen::Index b = 0; b < sequences; ++b) {
      const auto i = static_cast<std::size_t>(b);
      if (offsets[i] == offsets[i + 1])
        throw std::invalid_argument("sequence " + std::to_string(b) + " of the step has no row to go on from");
      work.h.row(b) = work.x.row(offsets[i + 1] - 1);
    }
    work.logits.resize(sequences, vocabulary());
    logits_(work.h, mha::into(work.logits), work.workspace);
    return work.logits;
  }

  int vocabulary() const { return logits_.config().outputs; }

  /// The memory of the matrices that products read, on a backend that packs them: all but the tables.
  std::size_t packed_bytes() const {
    std::size_t sum = logits_.packed_bytes();
    for (const Block& block : blocks_) sum += block.attention.packed_bytes() + block.feed_forward.packed_bytes();
    return sum;
  }

 protected:
  /// Without blocks, norm and logits, which a model adds from its weights. The tables are in the file, and the values
  /// are those of the logits' Linear, such as its activation.
  template <class... Values>
  Decoder(const mha::ModelConfig& config, const Table& tokens, std::optional<Table> positions,
          std::shared_ptr<const void> file, const Values&... values)
      : tokens_(tokens),
        positions_(std::move(positions)),
        file_(std::move(file)),
        norm_(config.norm),
        logits_({.inputs = config.norm.width, .outputs = config.vocabulary, .bias = false}, values...) {}

  Table tokens_;                    // (V, E)
  std::optional<Table> positions_;  // (P, E), where they are learned
  std::shared_ptr<const void> file_;
  std::vector<Block> blocks_;
  Norm norm_;
  Logits logits_;
  float embedding_scale_ = 1;  // times the rows of tokens

 private:
  /// work.x ← the rows of the ids.
  void embed(Work& work, std::span<const int> ids) const {
    embed_into(work.x, tokens_, ids);
    if (embedding_scale_ != 1) work.x *= embedding_scale_;
  }

  /// work.x ← the last norm's rows of the ids, which follow what the cache holds.
  template <class Cache>
  void continue_with(std::span<const int> ids, const mha::CacheStep<Cache>& step, Work& work) const {
    const auto offsets = step.offsets();
    if (static_cast<std::size_t>(offsets.back()) != ids.size())
      throw std::invalid_argument("there are " + std::to_string(ids.size()) + " ids, but the step has " +
                                  std::to_string(offsets.back()) + " rows");
    embed(work, ids);
    if (positions_)
      for (std::size_t b = 0; b + 1 < offsets.size(); ++b) {
        const int rows = offsets[b + 1] - offsets[b], before = step[0].positions()[b];  // those the cache has
        add_positions(work.x.middleRows(offsets[b], rows), *positions_, before);
      }
    run(work, step);
  }

  const Rows& all_logits(Work& work) const {
    work.logits.resize(work.x.rows(), vocabulary());
    logits_(work.x, mha::into(work.logits), work.workspace);
    return work.logits;
  }

  /// work.x ← the rows behind all blocks and the last norm.
  template <class... Step> void run(Work& work, const Step&... step) const {
    work.h.resizeLike(work.x);
    work.r.resizeLike(work.x);
    for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i](work, step[static_cast<int>(i)]...);
    norm_(work.x, mha::into(work.x), work.workspace);
  }
};

}  // namespace models
