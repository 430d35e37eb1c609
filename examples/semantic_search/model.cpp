// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

namespace semantic_search {
namespace {

/// Texts [first, last) of a list.
struct Batch {
  std::size_t first, last;
};

/// Consecutive texts of about `tokens` tokens together, at least one each. `threads` get as many batches each, unless
/// there are too few tokens.
std::vector<Batch> cut(const std::vector<Encoding>& texts, std::size_t tokens, std::size_t threads) {
  std::size_t total = 0;
  for (const Encoding& text : texts) total += text.ids.size();
  std::size_t count = std::max<std::size_t>((total + tokens - 1) / tokens, 1);
  constexpr std::size_t worth_a_thread = 64;  // tokens: below, threads share the reading of the weights inside a call
  if (total >= threads * worth_a_thread) count = (count + threads - 1) / threads * threads;

  std::vector<Batch> batches;
  for (std::size_t i = 0, seen = 0; i < texts.size(); ++i) {
    if (batches.empty() || seen * count >= batches.size() * total) batches.push_back({i, i});
    batches.back().last = i + 1;
    seen += texts[i].ids.size();
  }
  return batches;
}

}  // namespace

SentenceModel::SentenceModel(const std::filesystem::path& folder, const ModelOptions& options)
    : SentenceModel(Checkpoint(folder), options) {}

SentenceModel::SentenceModel(const Checkpoint& file, const ModelOptions& options)
    : tokeniser_(file.vocabulary(), file.lower_case(), file.strip_accents()),
      max_tokens_(file.max_tokens()),
      threads_(options.threads),
      encoder_(make_encoder(file, options.machine, threads_)) {
  if (tokeniser_.size() > file.config().vocabulary)
    throw std::runtime_error(file.vocabulary().string() + ": has " + std::to_string(tokeniser_.size()) +
                             " tokens, config.json says " + std::to_string(file.config().vocabulary));
}

Matrix SentenceModel::embed(const std::vector<Encoding>& texts, const EmbedOptions& options) const {
  if (options.tokens < 1) throw std::invalid_argument("a batch has at least 1 token, got 0");
  const int E = encoder_->config().attention.d_model, threads = threads_.workers();
  const std::vector<Batch> batches = cut(texts, options.tokens, static_cast<std::size_t>(threads));
  Matrix vectors(static_cast<Eigen::Index>(texts.size()), E);
  std::vector<EncoderWork> works(static_cast<std::size_t>(threads));  // one per thread; the encoder is shared
  std::atomic<std::size_t> done = 0;
  const auto run = [&](int batch, int worker) {
    const auto [first, last] = batches[static_cast<std::size_t>(batch)];
    const std::size_t count = last - first;
    const auto rows = vectors.middleRows(static_cast<Eigen::Index>(first), static_cast<Eigen::Index>(count));
    encoder_->embed({&texts[first], count}, rows, works[static_cast<std::size_t>(worker)]);
    const std::size_t finished = done += count;
    if (options.progress) options.progress(finished);
  };
  const auto count = static_cast<int>(batches.size());
  if (count >= threads)
    threads_.run(count, run);  // a batch for each thread: what a task calls stays on its thread
  else
    for (int batch = 0; batch < count; ++batch) run(batch, 0);  // all threads inside each call
  return vectors;
}

}  // namespace semantic_search
