// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <mha/io/model_tensors.hpp>

#include "checkpoint_files.hpp"

namespace mha_test {

/// The configuration and the numbers of a model's folder, to be written in another scalar.
struct CheckpointCopy : ModelFolder<float> {
  explicit CheckpointCopy(const std::filesystem::path& folder) {
    std::ifstream(folder / "config.json") >> config;
    const mha::Checkpoint from(folder);
    const mha::detail::ModelTensors<float> tensors(from, {""}, from.names().front());
    for (const std::string& name : from.names()) {
      const auto& stored = from.info(name).shape;
      FileTensor<float>& to = file.tensors[name];
      std::size_t size = 1;
      for (const auto extent : stored) to.shape.push_back(static_cast<mha::Index>(extent)), size *= extent;
      const float* const numbers = tensors.data(name, to.shape);
      to.values.assign(numbers, numbers + size);
    }
  }
};

}  // namespace mha_test
