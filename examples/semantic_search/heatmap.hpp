// SPDX-License-Identifier: Apache-2.0
// One attention head as a picture.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <mha/core/view.hpp>

namespace semantic_search {

/// A self-contained SVG: row q, column k is how much query token q attends to key token k; each cell tells its numbers
/// when pointed at.
///
/// Shapes    weights (L, L) for L tokens, each row a distribution
/// Errors    std::invalid_argument if the shapes do not fit
std::string heatmap_svg(const std::string& title, const std::vector<std::string>& tokens,
                        const mha::TensorView<const float, 2>& weights);

/// Text for XML: markup characters as entities, what XML cannot hold as U+FFFD.
std::string escape_xml(std::string_view utf8_text);

}  // namespace semantic_search
