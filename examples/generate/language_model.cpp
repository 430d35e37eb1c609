// SPDX-License-Identifier: Apache-2.0
#include "language_model.hpp"

#include <stdexcept>

#include <mha/io.hpp>
#include <mha/systolic.hpp>

#include "open_family.hpp"

namespace generate {

namespace {

namespace fs = std::filesystem;

/// The tokens of a number, or of a list of numbers.
std::vector<int> tokens_of(const mha::ConfigFile& file, const char* key) {
  std::vector<int> tokens;
  if (const auto* const value = file.find(key)) {
    for (const auto& token : value->is_array() ? *value : mha::ConfigFile::Json::array({*value}))
      tokens.push_back(file.positive_of(token, key, 0));
  }
  return tokens;
}

/// generation_config.json knows better than config.json what ends a text, if it is there and says so.
std::vector<int> ends_of(const fs::path& folder, const mha::ConfigFile& config) {
  if (const fs::path path = folder / "generation_config.json"; fs::exists(path))
    if (auto ends = tokens_of(mha::ConfigFile(path), "eos_token_id"); !ends.empty()) return ends;
  return tokens_of(config, "eos_token_id");
}

}  // namespace

OpenedModel open_weights(const fs::path& folder, Weights scalar, Machine machine) {
  models::require_unit(machine);
  if (!fs::is_regular_file(folder / "config.json"))
    throw std::runtime_error("there is no model in '" + folder.string() +
                             "': it should be a folder with config.json and model.safetensors");
  const mha::ConfigFile config(folder / "config.json");
  const ModelFacts facts{.random_weights = config.flag_or("mha_random_weights", false),
                         .ends = ends_of(folder, config)};
  return machine == Machine::cpu ? open_family<mha::Cpu>(folder, config, facts, scalar)
                                 : open_family<mha::Systolic<>>(folder, config, facts, scalar);
}

std::unique_ptr<LanguageModel> open_model(const fs::path& folder, Weights scalar, int length, Machine machine) {
  return open_weights(folder, scalar, machine).make(length);
}

}  // namespace generate
