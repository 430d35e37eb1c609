// SPDX-License-Identifier: Apache-2.0
// A model folder of Hugging Face, config.json and model.safetensors, and how its tensors get into the library's parts.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <mha/block.hpp>
#include <mha/io.hpp>

namespace models {

/// Errors    std::runtime_error, one sentence that names the file and what is missing or wrong in it
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder)
      : file_(folder / "model.safetensors"), converted_(std::make_shared<Converted>()) {
    std::ifstream config(folder / "config.json");
    if (!config) throw std::runtime_error("cannot read '" + (folder / "config.json").string() + "'");
    config >> config_;
    converted_->mapping = file_.mapping();
  }

  const nlohmann::json& config() const { return config_; }
  template <class T> T value(const char* key) const { return config_.at(key).get<T>(); }
  bool contains(const std::string& name) const { return file_.contains(name); }

  /// A tensor in the mapped file, or a copy in float of one that is stored in bfloat16.
  template <int Rank> mha::TensorView<const float, Rank> tensor(const std::string& name) const {
    if (file_.info(name).dtype != "BF16") return file_.view<float, Rank>(name);
    const auto stored = file_.view<mha::bfloat16, Rank>(name);
    auto& copy = converted_->tensors.emplace_back(stored.data, stored.data + stored.size());
    mha::TensorView<const float, Rank> view{copy.data(), {}, {}};
    for (int i = 0; i < Rank; ++i) view.extent[i] = stored.extent[i], view.stride[i] = stored.stride[i];
    return view;
  }
  /// Keeps all tensors alive.
  std::shared_ptr<const void> keep() const { return converted_; }

 private:
  struct Converted {
    std::shared_ptr<const void> mapping;
    std::vector<std::vector<float>> tensors;
  };
  mha::Safetensors file_;
  nlohmann::json config_;
  std::shared_ptr<Converted> converted_;
};

/// y = x Wᵀ + b: a Linear takes the weight of a checkpoint, (out, in), transposed.
template <class Linear> void load(Linear& linear, const Checkpoint& file, const std::string& name) {
  linear.borrow({.weight = mha::transposed(file.tensor<2>(name + ".weight")),
                 .bias = linear.config().bias ? file.tensor<1>(name + ".bias") : mha::TensorView<const float, 1>{}},
                file.keep());
}

template <class Norm> void load_norm(Norm& norm, const Checkpoint& file, const std::string& name) {
  norm.borrow({.weight = file.tensor<1>(name + ".weight"),
               .bias = *norm.config().bias ? file.tensor<1>(name + ".bias") : mha::TensorView<const float, 1>{}},
              file.keep());
}

/// The attention of LLaMA and its relatives, with the biases and norms that the checkpoint has.
template <class Attention> void load_attention(Attention& attention, const Checkpoint& file, const std::string& name) {
  const auto weight = [&](const char* part) { return mha::transposed(file.tensor<2>(name + part + ".weight")); };
  mha::BorrowedWeights<float> w;
  w.query = weight("q_proj"), w.key = weight("k_proj"), w.value = weight("v_proj"), w.output = weight("o_proj");
  if (file.contains(name + "q_proj.bias")) {
    w.query_bias = file.tensor<1>(name + "q_proj.bias");
    w.key_bias = file.tensor<1>(name + "k_proj.bias");
    w.value_bias = file.tensor<1>(name + "v_proj.bias");
  }
  if (file.contains(name + "q_norm.weight"))
    w.query_norm = file.tensor<1>(name + "q_norm.weight"), w.key_norm = file.tensor<1>(name + "k_norm.weight");
  attention.borrow(w, file.keep());
}

}  // namespace models
