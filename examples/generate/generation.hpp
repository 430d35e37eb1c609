// SPDX-License-Identifier: Apache-2.0
// The loop of every language model: read, draw, write, and read what was written.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "language_model.hpp"
#include "sampler.hpp"

namespace generate {

struct GenerationOptions {
  int tokens = 0;  ///< to draw at most
  int chunk = 256;
  Sampling sampling{};
  std::span<const int> ends{};                     ///< a text ends before one of them
  int known = 0;                                   ///< tokens that may be drawn: those below
  std::function<void(std::size_t)> read_so_far{};  ///< called behind each chunk of the prompt
};

struct GenerationTimes {
  std::size_t prompt_tokens = 0, tokens = 0;
  double prompt_seconds = 0, seconds = 0;
};

/// Reads the prompt, chunk by chunk, then draws one token after another and calls write(token). Not the chunks, the
/// cache's storage or the number of threads, but the prompt, the options of sampling and the cache's scalar decide what
/// is drawn.
///
/// Errors    std::runtime_error if the prompt is empty
GenerationTimes generate_text(Text& text, std::span<const int> prompt, const GenerationOptions& options,
                              const std::function<void(int)>& write);

}  // namespace generate
