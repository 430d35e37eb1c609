// SPDX-License-Identifier: Apache-2.0
// The trained model as a folder that examples/generate, and whoever reads Hugging Face's checkpoints, can run.
#pragma once

#include <filesystem>
#include <string>

#include "model.hpp"

namespace train {

/// The longest text that the checkpoint is said to go on to.
inline constexpr int kPositions = 4096;

/// config.json, of a Mistral whose window is the context; model.safetensors in bfloat16, rounded to nearest even; and
/// tokenizer.json, which makes every byte a token.
///
/// made_by   the command, kept in config.json; what of it is not UTF-8 as U+FFFD
/// Errors    std::runtime_error, one sentence, if a file cannot be written
void write_checkpoint(const Model<float>& model, const std::filesystem::path& folder, const std::string& made_by);

/// Errors    as above
void write_file(const std::filesystem::path& path, const std::string& bytes);

}  // namespace train
