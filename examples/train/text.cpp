// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace train {

Text read_text(const std::filesystem::path& file, int context) {
  std::ifstream in;
  if (std::filesystem::is_regular_file(file)) in.open(file, std::ios::binary);
  if (!in.is_open()) throw std::runtime_error("cannot read the text '" + file.string() + "'");
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::size_t cut = bytes.size() - bytes.size() / 10, window = static_cast<std::size_t>(context) + 1;
  if (bytes.size() / 10 < window)
    throw std::runtime_error("the text '" + file.string() + "' has " + std::to_string(bytes.size()) +
                             " bytes, it takes " + std::to_string(10 * window) +
                             " to hold out a tenth of which the model can read " + std::to_string(context));
  Text text;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    (i < cut ? text.learned : text.held_out).push_back(static_cast<unsigned char>(bytes[i]));
  return text;
}

void Batch::clear() {
  ids.clear();
  targets.clear();
}

void Batch::add(std::span<const int> tokens, std::size_t first, int context) {
  const auto window = tokens.subspan(first, static_cast<std::size_t>(context) + 1);
  ids.insert(ids.end(), window.begin(), window.end() - 1);
  targets.insert(targets.end(), window.begin() + 1, window.end());
}

const Batch& Batches::next() {
  const std::size_t places = tokens_.size() - static_cast<std::size_t>(context_);
  now_.clear();
  for (int b = 0; b < batch_; ++b) now_.add(tokens_, static_cast<std::size_t>(draw_() % places), context_);
  return now_;
}

}  // namespace train
