// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "mapped_file.hpp"
#include "safetensors.hpp"
#include "safetensors_header.hpp"
#include "safetensors_index.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The named tensors of a checkpoint, in one .safetensors file or in several (shards) with an index, looked up as in
/// Safetensors and read where they are: every file is mapped.
///
///   mha::Checkpoint checkpoint("Qwen3-8B");   // a folder, or an index, or one file
///   auto w = checkpoint.view<mha::bfloat16, 2>("model.layers.0.self_attn.q_proj.weight");   // (out, in), no copy
///   layer.borrow({.query = mha::transposed(w), ...}, checkpoint.mapping());
///
/// In a folder that is model.safetensors, or else the shards of model.safetensors.index.json. Copies share the mapping.
/// A tensor that the index names and its shard lacks, as writers leave out tied ones, is not there.
///
/// Errors    SafetensorsError, one sentence: those of Safetensors; a folder with neither file; an index that is
///           not one, names a tensor twice, a shard that is not there or is not a file beside it; a shard with a
///           tensor that the index puts elsewhere or does not name; a tensor that is asked for and not there
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& path) {
    std::error_code unknown;
    std::filesystem::path file = path;
    if (std::filesystem::is_directory(path, unknown)) {
      folder_ = path;
      file = path / "model.safetensors";
      if (!std::filesystem::exists(file, unknown)) file = path / "model.safetensors.index.json";
      if (!std::filesystem::exists(file, unknown))
        detail::fail_safetensors(path.string(),
                                 "the folder has neither model.safetensors nor model.safetensors.index.json");
    } else {
      folder_ = path.parent_path();
    }
    path_ = file.string();
    if (file.extension() == ".json")
      open_shards();
    else
      open_one(file);
  }

  // And no moves: one that is moved from stays as it is.
  Checkpoint(const Checkpoint&) = default;
  Checkpoint& operator=(const Checkpoint&) = default;
  ~Checkpoint() = default;

  /// Of what is stored, sorted: without further names of tied tensors, but for those of the index.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    all.reserve(files_->shard_of.size());
    for (const auto& [name, shard] : files_->shard_of) all.push_back(name);
    return all;
  }
  [[nodiscard]] bool contains(std::string_view name) const { return find(name) != nullptr; }
  /// Its offsets count within its shard.
  [[nodiscard]] const SafetensorInfo& info(std::string_view name) const { return shard(name).info(name); }

  /// The tensor as it is stored, whatever its dtype.
  [[nodiscard]] std::span<const std::byte> bytes(std::string_view name) const { return shard(name).bytes(name); }

  /// As Safetensors::view: valid while this object, a copy of it or a mapping() lives.
  template <class T, int Rank> [[nodiscard]] TensorView<const T, Rank> view(std::string_view name) const {
    return shard(name).view<T, Rank>(name);
  }
  /// The tensor in memory of its own.
  template <class T, int Rank> [[nodiscard]] Tensor<T, Rank> copy(std::string_view name) const {
    return shard(name).copy<T, Rank>(name);
  }

  /// Keeps the memory of all views alive, of every shard; a layer that borrows them holds one.
  [[nodiscard]] std::shared_ptr<const void> mapping() const { return files_; }

  /// The file or the index.
  [[nodiscard]] const std::string& path() const { return path_; }
  /// The file that has a tensor.
  [[nodiscard]] const std::string& path(std::string_view name) const { return shard(name).path(); }
  /// Where config.json is.
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  struct Files {
    std::vector<Safetensors> shards;
    std::map<std::string, std::size_t, std::less<>> shard_of;
    std::map<std::string, std::size_t, std::less<>> left_out;  // what the index puts in a shard that lacks it
  };

  void open_one(const std::filesystem::path& file) {
    auto files = std::make_shared<Files>();
    files->shards.emplace_back(file);
    for (std::string& name : files->shards[0].names()) files->shard_of.emplace(std::move(name), 0u);
    files_ = std::move(files);
  }

  void open_shards() {
    const MappedFile text(path_, detail::fail_file);
    const auto index = detail::read_safetensors_index(path_, {reinterpret_cast<const char*>(text.data()), text.size()});
    auto files = std::make_shared<Files>();
    std::map<std::string, std::size_t, std::less<>> numbers;  // of the shards, by name
    for (const auto& [name, shard] : index) {
      const auto [found, is_new] = numbers.emplace(shard, files->shards.size());
      if (is_new) files->shards.push_back(open_shard(name, shard));
      const bool is_there = files->shards[found->second].contains(name);
      (is_there ? files->shard_of : files->left_out).emplace(name, found->second);
    }
    for (const auto& [shard, number] : numbers) check_shard(index, shard, files->shards[number]);
    files_ = std::move(files);
  }

  Safetensors open_shard(const std::string& name, const std::string& shard) const {
    std::error_code unknown;
    const std::filesystem::path file = folder_ / shard;
    if (!std::filesystem::exists(file, unknown))
      detail::fail_safetensors(path_, name,
                               "is in shard '" + detail::safetensors_excerpt(shard) + "', but there is no such file");
    return Safetensors(file);
  }

  /// A shard has nothing but what the index says.
  void check_shard(const detail::SafetensorsIndex& index, const std::string& shard, const Safetensors& file) const {
    for (const std::string& name : file.names()) {
      const auto found = index.find(name);
      if (found == index.end())
        detail::fail_safetensors(path_, name,
                                 "is in shard '" + detail::safetensors_excerpt(shard) + "', but the index lacks it");
      if (found->second != shard)
        detail::fail_safetensors(path_, name,
                                 "is in shard '" + detail::safetensors_excerpt(shard) + "', but the index names '" +
                                     detail::safetensors_excerpt(found->second) + "'");
    }
  }

  /// The file that has a tensor, by whatever name; null if none.
  const Safetensors* find(std::string_view name) const {
    const std::vector<Safetensors>& shards = files_->shards;
    if (const auto stored = files_->shard_of.find(name); stored != files_->shard_of.end())
      return &shards[stored->second];
    const auto tied =
        std::find_if(shards.begin(), shards.end(), [&](const Safetensors& shard) { return shard.contains(name); });
    return tied == shards.end() ? nullptr : &*tied;
  }
  const Safetensors& shard(std::string_view name) const {
    const Safetensors* const found = find(name);
    if (found == nullptr) fail_absent(name);
    return *found;
  }

  [[noreturn]] void fail_absent(std::string_view name) const {
    if (const auto found = files_->left_out.find(name); found != files_->left_out.end()) {
      const Safetensors& file = files_->shards[found->second];
      const std::string shard = std::filesystem::path(file.path()).filename().string();
      detail::fail_safetensors(path_, name,
                               "is in shard '" + detail::safetensors_excerpt(shard) +
                                   "' by the index, but is not among the " + std::to_string(file.names().size()) +
                                   " tensors of that file");
    }
    detail::fail_safetensors(path_, "there is no tensor '" + detail::safetensors_excerpt(name) + "' among the " +
                                        std::to_string(files_->shard_of.size()) + " of this checkpoint");
  }

  std::filesystem::path folder_;
  std::string path_;
  std::shared_ptr<const Files> files_;
};

}  // namespace mha::inline MHA_NAMESPACE
