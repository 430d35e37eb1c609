// SPDX-License-Identifier: Apache-2.0
// The sentence model: text in, vectors of length 1 out, many texts at once.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "checkpoint.hpp"
#include "encoder.hpp"
#include "wordpiece.hpp"

namespace semantic_search {

struct EmbedOptions {
  int batch = 32;                                       // texts that go through the encoder together
  int threads = 1;                                      // batches that are worked on at the same time
  std::function<void(std::size_t done)> progress = {};  // called from any thread
};

/// Tokeniser and encoder of a model folder.
class SentenceModel {
 public:
  explicit SentenceModel(const std::filesystem::path& folder);

  Encoding tokenise(std::string_view text) const { return tokeniser_.encode(text, encoder_.config().max_tokens); }

  /// Row i is the vector of text i, whatever the batches are. Shapes: (N) texts → (N, E)
  Matrix embed(const std::vector<Encoding>& texts, const EmbedOptions& options = {}) const;

  const Encoder& encoder() const { return encoder_; }

 private:
  explicit SentenceModel(const Checkpoint& file);

  WordPiece tokeniser_;
  Encoder encoder_;
};

}  // namespace semantic_search
