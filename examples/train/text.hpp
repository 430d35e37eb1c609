// SPDX-License-Identifier: Apache-2.0
// What there is to learn: a text as tokens, each a byte, and windows of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <span>
#include <vector>

namespace train {

/// The last tenth is held out: the model never learns from it and is judged by it.
struct Text {
  std::vector<int> learned, held_out;
};

/// Errors    std::runtime_error, one sentence, if the file cannot be read or either part has no window of context + 1
Text read_text(const std::filesystem::path& file, int context);

/// Sequences one after another, and what follows each of their tokens.
struct Batch {
  std::vector<int> ids, targets;  // (B·L)

  void clear();
  /// Adds the window that begins at `first`.
  void add(std::span<const int> tokens, std::size_t first, int context);
};

/// Windows from anywhere in the text. The same seed draws the same ones on every machine.
class Batches {
 public:
  Batches(std::span<const int> tokens, int batch, int context, std::uint64_t seed)
      : tokens_(tokens), batch_(batch), context_(context), draw_(seed) {}

  const Batch& next();

 private:
  std::span<const int> tokens_;
  int batch_, context_;
  std::mt19937_64 draw_;
  Batch now_;
};

}  // namespace train
