// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "mapped_file.hpp"
#include "safetensors_header.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// The name that the format gives to T, or null.
template <class T> constexpr const char* safetensors_dtype() {
  if constexpr (std::same_as<T, double>)
    return "F64";
  else if constexpr (std::same_as<T, float>)
    return "F32";
  else if constexpr (std::same_as<T, half>)
    return "F16";
  else if constexpr (std::same_as<T, bfloat16>)
    return "BF16";
  else if constexpr (std::same_as<T, bool>)
    return sizeof(bool) == 1 ? "BOOL" : nullptr;
  else if constexpr (!std::integral<T>)
    return nullptr;
  else if constexpr (sizeof(T) == 8)
    return std::is_signed_v<T> ? "I64" : "U64";
  else if constexpr (sizeof(T) == 4)
    return std::is_signed_v<T> ? "I32" : "U32";
  else if constexpr (sizeof(T) == 2)
    return std::is_signed_v<T> ? "I16" : "U16";
  else
    return std::is_signed_v<T> ? "I8" : "U8";
}

}  // namespace detail

/// The named tensors of a .safetensors file, read where they lie: the file is mapped, its header checked in full, and
/// a tensor costs nothing until its pages are touched.
///
///   mha::Safetensors file("model.safetensors");
///   auto w = file.view<float, 2>("encoder.layer.0.attention.self.query.weight");   // (out, in), no copy
///   layer.borrow({.query = mha::transposed(w), ...}, file.mapping());              // the mapping outlives `file`
///   auto seen = file.view<bool, 2>("mask");                                        // for mha::Dense{seen}
///
/// A tensor that is stored once by one of its names, as safetensors.torch.save_model stores tied ones, is found by the
/// others too, which that writer leaves in __metadata__.
///
/// Errors    SafetensorsError, one sentence that names the file and the tensor: the file cannot be read, is truncated
///           or malformed (see safetensors_header.hpp), has no such tensor, or has it with another dtype or rank; a
///           tensor of bool, all of which is read for that, has a byte other than 0 and 1
class Safetensors {
  static_assert(std::endian::native == std::endian::little,
                "mha: safetensors data is little-endian and is read in place, which this machine cannot do "
                "(see mha/io/safetensors.hpp)");

 public:
  explicit Safetensors(const std::filesystem::path& path)
      : path_(path.string()), file_(std::make_shared<const MappedFile>(path, detail::fail_file)) {
    header_ = detail::read_safetensors_header(path_, file_->bytes());
  }

  /// Of what is stored, sorted: without further names of tied tensors.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    all.reserve(header_.tensors.size());
    for (const auto& [name, info] : header_.tensors) all.push_back(name);
    return all;
  }
  [[nodiscard]] bool contains(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] const SafetensorInfo& info(std::string_view name) const {
    const SafetensorInfo* const found = find(name);
    if (found == nullptr)
      detail::fail_safetensors(path_, "there is no tensor '" + std::string(name) + "' among the " +
                                          std::to_string(header_.tensors.size()) + " of this file");
    return *found;
  }
  /// The tensor as it is stored, whatever its dtype; in the mapping as view() is.
  [[nodiscard]] std::span<const std::byte> bytes(std::string_view name) const {
    const SafetensorInfo& tensor = info(name);
    return {file_->data() + header_.data_begin + tensor.begin, static_cast<std::size_t>(tensor.end - tensor.begin)};
  }
  /// The free text that the writer left under "__metadata__".
  [[nodiscard]] const std::map<std::string, std::string, std::less<>>& metadata() const { return header_.metadata; }

  /// The tensor in the mapping: valid while this object or a mapping() lives.
  ///
  /// Errors    also if the tensor's place in the file is not aligned for T: copy() takes it from anywhere
  template <class T, int Rank> [[nodiscard]] TensorView<const T, Rank> view(std::string_view name) const {
    const SafetensorInfo& tensor = checked<T>(name, Rank);
    const std::byte* const first = file_->data() + header_.data_begin + tensor.begin;
    if (reinterpret_cast<std::uintptr_t>(first) % alignof(T) != 0)
      fail(name, "begins at byte " + std::to_string(header_.data_begin + tensor.begin) +
                     " of the file, which is not a multiple of the " + std::to_string(alignof(T)) + " that " +
                     tensor.dtype + " needs to be read in place; copy() can read it");
    return dense<T, Rank>(reinterpret_cast<const T*>(first), tensor);
  }

  /// The tensor in memory of its own, wherever it lies in the file.
  template <class T, int Rank> [[nodiscard]] Tensor<T, Rank> copy(std::string_view name) const {
    const SafetensorInfo& tensor = checked<T>(name, Rank);
    auto result = detail::owner_like<Tensor<T, Rank>>(dense<T, Rank>(nullptr, tensor));
    if (result.size() > 0)
      std::memcpy(static_cast<void*>(result.data()), file_->data() + header_.data_begin + tensor.begin,
                  result.size() * sizeof(T));
    return result;
  }

  /// Keeps the memory of all views alive; a layer that borrows them holds one.
  [[nodiscard]] std::shared_ptr<const void> mapping() const { return file_; }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(std::string_view name, const std::string& fault) const {
    detail::fail_safetensors(path_, name, fault);
  }

  /// The tensor of that name, or the one in whose favour the writer left it out; null if there is neither.
  const SafetensorInfo* find(std::string_view name) const {
    auto found = header_.tensors.find(name);
    if (found == header_.tensors.end())
      if (const auto kept = header_.metadata.find(name); kept != header_.metadata.end())
        found = header_.tensors.find(kept->second);
    return found == header_.tensors.end() ? nullptr : &found->second;
  }

  template <class T> const SafetensorInfo& checked(std::string_view name, int rank) const {
    constexpr const char* dtype = detail::safetensors_dtype<T>();
    static_assert(dtype != nullptr,
                  "mha: safetensors files hold no such element type: use double, float, half, bfloat16, bool or an "
                  "integer (see mha/io/safetensors.hpp)");
    const SafetensorInfo& tensor = info(name);
    if (tensor.dtype != dtype) fail(name, "has dtype " + tensor.dtype + ", expected " + dtype);
    if (tensor.shape.size() != static_cast<std::size_t>(rank))
      fail(name, "has rank " + std::to_string(tensor.shape.size()) + ", expected " + std::to_string(rank));
    for (const std::uint64_t extent : tensor.shape)
      if (extent > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()))
        fail(name, "has an extent of " + std::to_string(extent) + ", more than the largest Index " +
                       std::to_string(std::numeric_limits<Index>::max()));
    // What has elements is no larger than the file; what has none has strides all the same.
    std::ptrdiff_t elements = 1;
    for (const std::uint64_t extent : tensor.shape)
      if (__builtin_mul_overflow(elements, std::max<std::uint64_t>(extent, 1), &elements) ||
          elements > detail::most_elements)
        fail(name, "is empty, but its shape " + detail::safetensors_excerpt(tensor.shape) + " has more than " +
                       std::to_string(detail::most_elements) + " elements, an empty axis counted as 1");
    if constexpr (std::same_as<T, bool>) {  // another byte would be no value of C++'s bool
      const auto all = bytes(name);
      const auto bad = std::find_if(all.begin(), all.end(), [](std::byte b) { return b > std::byte{1}; });
      if (bad != all.end())
        fail(name, "has the byte " + std::to_string(std::to_integer<int>(*bad)) + " as element " +
                       std::to_string(bad - all.begin()) + ", expected 0 or 1");
    }
    return tensor;
  }

  template <class T, int Rank> static TensorView<const T, Rank> dense(const T* data, const SafetensorInfo& tensor) {
    return [&]<std::size_t... Axis>(std::index_sequence<Axis...>) {
      return mha::view(data, static_cast<Index>(tensor.shape[Axis])...);
    }
    (std::make_index_sequence<static_cast<std::size_t>(Rank)>());
  }

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  detail::SafetensorsHeader header_;
};

}  // namespace mha::inline MHA_NAMESPACE
