// SPDX-License-Identifier: Apache-2.0
// Checkpoints that a test writes: named tensors of random numbers in .safetensors files, with a config.json.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <mha/io/safetensors.hpp>

#include "random.hpp"
#include "scratch.hpp"

namespace mha_test {

using Shape = std::vector<mha::Index>;

template <class T> struct FileTensor {
  Shape shape;
  std::vector<T> values;
};

/// Named tensors of one scalar.
template <class T> struct TensorFile {
  std::map<std::string, FileTensor<T>, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
  std::size_t shift = 0;  // of the data from a multiple of 8 bytes

  void add(const std::string& name, const Shape& shape, support::Random& random) {
    std::size_t size = 1;
    for (const mha::Index extent : shape) size *= static_cast<std::size_t>(extent);
    FileTensor<T> tensor{shape, std::vector<T>(size)};
    for (T& x : tensor.values) x = support::Random::rounded<T>(random.normal() / 2);
    tensors[name] = std::move(tensor);
  }

  std::string bytes() const {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      const std::size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(T));
      header[name] = {{"dtype", mha::detail::safetensors_dtype<T>()},
                      {"shape", tensor.shape},
                      {"data_offsets", {begin, data.size()}}};
    }
    if (!metadata.empty()) header["__metadata__"] = metadata;
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8 + shift, ' ');
    return safetensors_bytes(text, data);
  }
};

/// A folder with config.json and model.safetensors.
template <class T> struct ModelFolder {
  Scratch scratch;
  nlohmann::json config;
  TensorFile<T> file;
  support::Random random{"checkpoint"};

  void add(const std::string& name, const Shape& shape) { file.add(name, shape, random); }
  void add_linear(const std::string& name, mha::Index out, mha::Index in, bool bias = true) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  void add_norm(const std::string& name, mha::Index width, bool bias = true) {
    add(name + ".weight", {width});
    if (bias) add(name + ".bias", {width});
  }
  std::filesystem::path write() const {
    scratch.write("config.json", config.dump());
    scratch.write("model.safetensors", file.bytes());
    return scratch.root();
  }
  /// The same in a file of W, to which the numbers here are rounded too.
  template <class W> std::filesystem::path write_as() {
    TensorFile<W> rounded;
    rounded.metadata = file.metadata;
    rounded.shift = file.shift;
    for (auto& [name, tensor] : file.tensors) {
      FileTensor<W>& to = rounded.tensors[name] = {tensor.shape, {}};
      for (T& x : tensor.values) {
        to.values.push_back(support::Random::rounded<W>(static_cast<double>(x)));
        x = static_cast<T>(to.values.back());
      }
    }
    scratch.write("config.json", config.dump());
    scratch.write("model.safetensors", rounded.bytes());
    return scratch.root();
  }
};

}  // namespace mha_test
