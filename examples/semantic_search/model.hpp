// SPDX-License-Identifier: Apache-2.0
// The sentence model: text in, vectors of length 1 out, many texts at once.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "checkpoint.hpp"
#include "encoder.hpp"
#include "wordpiece.hpp"

namespace semantic_search {

struct ModelOptions {
  Machine machine = Machine::cpu;
  mha::ThreadPool threads = {};  // whose threads embed() works on
};

struct EmbedOptions {
  std::size_t tokens = 384;                             // of texts that go through the encoder together, about
  std::function<void(std::size_t done)> progress = {};  // called from any thread
};

/// Tokeniser and encoder of a model folder.
class SentenceModel {
 public:
  explicit SentenceModel(const std::filesystem::path& folder, const ModelOptions& options = {});

  Encoding tokenise(std::string_view text) const { return tokeniser_.encode(text, max_tokens_); }

  /// Row i is the vector of text i, with the same bits whatever the batches and threads are. Shapes: (N) texts → (N, E)
  Matrix embed(const std::vector<Encoding>& texts, const EmbedOptions& options = {}) const;

  const Encoder& encoder() const { return *encoder_; }
  int max_tokens() const { return max_tokens_; }  // of a text
  int threads() const { return threads_.workers(); }

 private:
  SentenceModel(const Checkpoint& file, const ModelOptions& options);

  WordPiece tokeniser_;
  int max_tokens_;
  mha::ThreadPool threads_;
  std::unique_ptr<const Encoder> encoder_;
};

}  // namespace semantic_search
