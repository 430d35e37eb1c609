// SPDX-License-Identifier: Apache-2.0
#include "ranking.hpp"

#include <algorithm>

namespace semantic_search {

std::vector<Hit> rank(const Eigen::Ref<const Eigen::RowVectorXf>& question, const Matrix& passages, std::size_t top) {
  const Eigen::VectorXf scores = passages * question.transpose();  // (N)
  std::vector<Hit> hits;
  for (Eigen::Index i = 0; i < scores.size(); ++i) hits.push_back({static_cast<std::size_t>(i), scores[i]});
  const auto end = hits.begin() + static_cast<std::ptrdiff_t>(std::min(top, hits.size()));
  std::partial_sort(hits.begin(), end, hits.end(), [](const Hit& a, const Hit& b) {
    return a.score != b.score ? a.score > b.score : a.index < b.index;
  });
  hits.erase(end, hits.end());
  return hits;
}

}  // namespace semantic_search
