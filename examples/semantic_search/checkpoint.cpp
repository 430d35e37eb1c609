// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <algorithm>
#include <stdexcept>

#include <mha/block.hpp>

namespace semantic_search {
namespace {

namespace fs = std::filesystem;

fs::path checked_folder(const fs::path& folder) {
  if (!fs::is_directory(folder))
    throw std::runtime_error("there is no model folder '" + folder.string() +
                             "': run cmake/fetch_minilm.sh to download all-MiniLM-L6-v2 (84 MB), or name a folder with "
                             "--model");
  for (const char* file : {"config.json", "vocab.txt", "model.safetensors"})
    if (!fs::is_regular_file(folder / file))
      throw std::runtime_error("the model folder '" + folder.string() + "' has no " + file +
                               ": it should hold config.json, vocab.txt and model.safetensors, as "
                               "cmake/fetch_minilm.sh makes it");
  return folder;
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder) : folder_(checked_folder(folder)), bert_(mha::Checkpoint(folder)) {
  config().require_activation<mha::Gelu>();
  int tokenizer_limit = config().positions;
  if (const fs::path tokenizer = folder / "tokenizer_config.json"; fs::exists(tokenizer)) {
    const mha::ConfigFile settings(tokenizer);
    lower_case_ = settings.flag_or("do_lower_case", lower_case_);
    strip_accents_ = settings.flag_or("strip_accents", lower_case_);
    settings.only("tokenize_chinese_chars", true);
    // Where a tokenizer has no limit, 1e30 or so is written.
    const auto* const limit = settings.find("model_max_length");
    if (limit != nullptr && !(settings.number_of(*limit, "model_max_length") > tokenizer_limit))
      tokenizer_limit = settings.positive_of(*limit, "model_max_length");
  }
  if (const fs::path sentence = folder / "sentence_bert_config.json"; fs::exists(sentence))
    max_tokens_ = mha::ConfigFile(sentence).positive_or("max_seq_length", tokenizer_limit);
  max_tokens_ = std::min(max_tokens_, config().positions);
  if (const fs::path pooling = folder / "1_Pooling" / "config.json"; fs::exists(pooling)) {
    const mha::ConfigFile settings(pooling);
    settings.only("pooling_mode_mean_tokens", true);
    for (const char* other : {"pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
                              "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"})
      settings.only(other, false);
    // sentence-transformers 6 writes one name, or a list of them, instead of the keys above.
    const auto* const mode = settings.find("pooling_mode");
    if (mode != nullptr && *mode != "mean" && *mode != mha::ConfigFile::Json::array({"mean"}))
      settings.refuse("pooling_mode", *mode, "\"mean\"");
  }
}

}  // namespace semantic_search
