// SPDX-License-Identifier: Apache-2.0
#include "generation.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace generate {

GenerationTimes generate_text(Text& text, std::span<const int> prompt, const GenerationOptions& options,
                              const std::function<void(int)>& write) {
  if (prompt.empty()) throw std::runtime_error("the prompt is empty: a model goes on from one token at least");
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  GenerationTimes times{.prompt_tokens = prompt.size()};
  Sampler draw(options.sampling);

  const auto start = Clock::now();
  std::span<const float> logits;
  for (std::size_t begin = 0; begin < prompt.size();) {
    const std::size_t n = std::min(static_cast<std::size_t>(options.chunk), prompt.size() - begin);
    logits = text.read(prompt.subspan(begin, n));
    begin += n;
    if (options.read_so_far) options.read_so_far(begin);
  }

  const auto read = Clock::now();
  for (int i = 0; i < options.tokens; ++i) {
    const int token = draw(logits.first(static_cast<std::size_t>(options.known)));
    if (std::find(options.ends.begin(), options.ends.end(), token) != options.ends.end()) break;
    write(token);
    ++times.tokens;
    if (i + 1 < options.tokens) logits = text.read({&token, 1});
  }
  times.prompt_seconds = seconds(read - start);
  times.seconds = seconds(Clock::now() - read);
  return times;
}

}  // namespace generate
