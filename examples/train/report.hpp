// SPDX-License-Identifier: Apache-2.0
// What a training leaves to look at: the curve of its loss, and a page with what its heads attend to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <mha/mha.hpp>

#include "training.hpp"

namespace train {

/// A self-contained SVG: the loss of every step, smoothed, and that of the held-out text.
std::string loss_svg(const Course& course);

/// The pieces of the page; a map of a head is an SVG.
struct Page {
  std::string title, summary;
  std::string curve;                           // an SVG
  std::string prompt, continuation;            // bytes, maybe not UTF-8
  std::vector<std::vector<std::string>> maps;  // by layer and head
};

/// A self-contained HTML page.
std::string page_html(const Page& page);

/// The maps of all heads of the model for a text of tokens, which are bytes.
std::vector<std::vector<std::string>> head_maps(Model<float>& model, std::string_view text);

}  // namespace train
