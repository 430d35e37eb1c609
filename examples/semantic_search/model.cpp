// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <atomic>
#include <future>
#include <numeric>
#include <stdexcept>
#include <string>

namespace semantic_search {

SentenceModel::SentenceModel(const std::filesystem::path& folder) : SentenceModel(Checkpoint(folder)) {}

SentenceModel::SentenceModel(const Checkpoint& file)
    : tokeniser_(file.vocabulary(), file.config().lower_case), encoder_(file) {
  if (tokeniser_.size() > file.config().vocabulary)
    throw std::runtime_error(file.vocabulary().string() + ": has " + std::to_string(tokeniser_.size()) +
                             " tokens, config.json says " + std::to_string(file.config().vocabulary));
}

Matrix SentenceModel::embed(const std::vector<Encoding>& texts, const EmbedOptions& options) const {
  if (options.batch < 1) throw std::invalid_argument("the batch size is " + std::to_string(options.batch));
  // Texts of similar length share a batch, so that little of it is padding; the longest first, so that threads end
  // together.
  std::vector<std::size_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return texts[a].ids.size() > texts[b].ids.size(); });

  Matrix result(static_cast<Eigen::Index>(texts.size()), encoder_.config().hidden);
  // Few texts are shared out, so that no thread stands idle.
  const auto threads = static_cast<std::size_t>(std::max(options.threads, 1));
  const std::size_t share = std::max<std::size_t>((texts.size() + threads - 1) / threads, 1);
  const std::size_t step = std::min(static_cast<std::size_t>(options.batch), share);
  std::atomic<std::size_t> next = 0, done = 0;
  const auto work = [&] {
    mha::Workspace workspace;  // one per thread; the encoder itself is shared
    for (std::size_t first = next.fetch_add(step); first < order.size(); first = next.fetch_add(step)) {
      const std::size_t count = std::min(step, order.size() - first);
      std::vector<const Encoding*> batch;
      for (std::size_t i = 0; i < count; ++i) batch.push_back(&texts[order[first + i]]);
      const Matrix rows = encoder_.embed(batch, workspace);  // (count, E)
      for (std::size_t i = 0; i < count; ++i)
        result.row(static_cast<Eigen::Index>(order[first + i])) = rows.row(static_cast<Eigen::Index>(i));
      const std::size_t finished = done += count;
      if (options.progress) options.progress(finished);
    }
  };
  std::vector<std::future<void>> others;
  for (std::size_t i = 1; i < threads && i * step < order.size(); ++i)
    others.push_back(std::async(std::launch::async, work));
  work();
  for (auto& other : others) other.get();  // throws what the thread threw
  return result;
}

}  // namespace semantic_search
