// SPDX-License-Identifier: Apache-2.0
// The nearest vectors to a question.
#pragma once

#include <cstddef>
#include <Eigen/Core>
#include <vector>

#include "encoder.hpp"

namespace semantic_search {

struct Hit {
  std::size_t index = 0;
  float score = 0;  // cosine, −1 … 1
};

/// The `top` rows of highest cosine with the question, best first; equal scores keep the order of the rows.
///
/// Shapes    question (E) and passages (N, E), all of length 1, so that the cosine is the dot product
std::vector<Hit> rank(const Eigen::Ref<const Eigen::RowVectorXf>& question, const Matrix& passages, std::size_t top);

}  // namespace semantic_search
