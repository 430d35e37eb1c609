// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "dense_rows.hpp"
#include "json_text.hpp"
#include "new_file.hpp"
#include "safetensors.hpp"
#include "safetensors_header.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

template <class T>
concept StoredReal =
    std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, half> || std::same_as<T, bfloat16>;

/// n elements of T, `step` bytes apart, as Stored side by side.
template <class T, class Stored>
void convert_row(const std::byte* from, std::ptrdiff_t step, std::size_t n, std::byte* to) {
  if (std::is_same_v<T, Stored> && step == std::ptrdiff_t{sizeof(T)}) {
    std::memcpy(to, from, n * sizeof(T));
    return;
  }
  for (std::size_t i = 0; i < n; ++i) {
    T x;
    std::memcpy(&x, from + static_cast<std::ptrdiff_t>(i) * step, sizeof x);
    if constexpr (std::is_same_v<T, Stored>) {
      std::memcpy(to + i * sizeof x, &x, sizeof x);
    } else {
      const auto stored = static_cast<Stored>(static_cast<Accumulator<Stored>>(x));
      std::memcpy(to + i * sizeof stored, &stored, sizeof stored);
    }
  }
}

}  // namespace detail

/// Named tensors to be written as a .safetensors file, which Safetensors, Checkpoint and the format's own packages
/// read.
///
///   mha::SafetensorsWriter file;
///   file.add("table", table);                                      // a Tensor, a view or an Eigen matrix, any strides
///   file.add<mha::bfloat16>("lm_head.weight", mha::transposed(w));  // float, stored as bfloat16
///   file.metadata("format", "pt");                                 // for Hugging Face's transformers
///   file.write("model.safetensors");                               // here the elements are read
///
/// Order     tensors of longer scalars first, so that each lies at a multiple of its own; otherwise as they were added
/// Scalars   double, float, half, bfloat16, bool and integers as they are; of the first four one as another, rounded to
///           nearest even (double to 16 bits by way of float)
/// Source    the format of github.com/huggingface/safetensors: the header's length, the header, padded with spaces to
///           8 bytes, and the data
class SafetensorsWriter {
 public:
  /// A tensor, whose elements are read by write(): until then its memory stays, kept alive by keep_alive if there is
  /// one.
  ///
  /// Errors    SafetensorsError for a name that is empty, not UTF-8, __metadata__ or there already; ShapeError for a
  ///           view that leads nowhere. Nothing is added then
  template <class Stored = void, class Owner>
  void add(const std::string& name, Owner&& owner, std::shared_ptr<const void> keep_alive = nullptr) {
    constexpr bool viewable = Viewable<Owner>;
    static_assert(viewable,
                  "mha: SafetensorsWriter takes views, mha::view(pointer, extents...), an mha::Tensor or an Eigen "
                  "matrix, no expression (see mha/io/safetensors_writer.hpp)");
    if constexpr (viewable) {
      constexpr bool lasts = detail::view_lasts<Owner>();
      static_assert(lasts,
                    "mha: SafetensorsWriter reads tensors in write(), when a temporary one is gone: name it first "
                    "(see mha/io/safetensors_writer.hpp)");
      add_joined<Stored>(name, owner, ViewTraits<std::remove_cvref_t<Owner>>::rank, std::move(keep_alive));
    }
  }

  /// The same, stored with so many axes: those in front become one.
  template <class Stored = void, class Owner>
  void add_joined(const std::string& name, const Owner& owner, int rank,
                  std::shared_ptr<const void> keep_alive = nullptr) {
    using T = ScalarOf<Owner>;
    using To = std::conditional_t<std::is_void_v<Stored>, T, Stored>;
    constexpr bool converts = std::is_same_v<T, To> || (detail::StoredReal<T> && detail::StoredReal<To>);
    constexpr bool on_host = detail::may_lie_in<Owner, Memory::host>();
    static_assert(detail::safetensors_dtype<To>() != nullptr && converts,
                  "mha: safetensors files hold double, float, half, bfloat16, bool and integers, of which the first "
                  "four are converted to one another (see mha/io/safetensors_writer.hpp)");
    static_assert(on_host,
                  "mha: SafetensorsWriter reads the host's memory: copy the tensor there first "
                  "(see mha/io/safetensors_writer.hpp)");
    if constexpr (detail::safetensors_dtype<To>() != nullptr && converts && on_host) {
      const auto view = mha::view(owner);
      check_name(name);
      detail::require_data("SafetensorsWriter", detail::safetensors_excerpt(name).c_str(), view);
      Tensor tensor;
      tensor.dtype = detail::safetensors_dtype<To>();
      tensor.scalar_bytes = sizeof(To);
      tensor.shape = detail::joined_shape(view, rank);
      tensor.bytes = static_cast<std::uint64_t>(view.size()) * sizeof(To);
      const auto elements = detail::five_axes(view);
      tensor.elements.data = reinterpret_cast<const std::byte*>(elements.data);
      for (int axis = 0; axis < 5; ++axis) {
        tensor.elements.extent[axis] = elements.extent[axis];
        tensor.elements.stride[axis] = elements.stride[axis] * std::ptrdiff_t{sizeof(T)};
      }
      tensor.convert = detail::convert_row<T, To>;
      tensor.keep_alive = std::move(keep_alive);
      insert(name, std::move(tensor));
    }
  }

  /// Free text under "__metadata__".
  ///
  /// Errors    SafetensorsError if it is not UTF-8, or there is one for this key; nothing is added then
  void metadata(const std::string& key, const std::string& text) {
    check_utf8("a key of __metadata__", key);
    check_utf8("the text of __metadata__ '" + detail::safetensors_excerpt(key) + "'", text);
    if (!metadata_.emplace(key, text).second) fail("__metadata__ has '" + detail::safetensors_excerpt(key) + "' twice");
  }

  /// Writes the file, whole or not at all: beside its place, as <name>.part, or mha.part where that name is too long,
  /// and renamed when it is on the disk. What had its name is there until then, and a mapping of that stays valid; the
  /// new file has its permissions.
  ///
  /// Errors    SafetensorsError, one sentence with the path and the system's reason: a folder that is not there, a full
  ///           disk, a place that is no regular file; a header beyond the format's 100 MB
  void write(const std::filesystem::path& path) const {
    std::vector<const Named*> order;
    for (const Named& named : tensors_) order.push_back(&named);
    std::sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
      const std::size_t first = a->second.scalar_bytes, second = b->second.scalar_bytes;
      return first != second ? first > second : a < b;  // elements of one array: as they were added
    });
    const std::string header = header_of(order);
    if (header.size() > detail::largest_safetensors_header)
      detail::fail_safetensors(path.string(), "the header would be " + std::to_string(header.size()) +
                                                  " bytes, more than the format's limit of " +
                                                  std::to_string(detail::largest_safetensors_header));
    detail::NewFile file({path, detail::fail_file});
    const std::uint64_t length = header.size();
    file.write(&length, sizeof length);
    file.write(header.data(), header.size());
    for (const Named* named : order) write_elements(file, named->second);
    file.commit();
  }

 private:
  struct Tensor {
    const char* dtype = nullptr;
    std::vector<std::uint64_t> shape{};
    std::uint64_t bytes = 0;  // in the file, as scalar_bytes are
    std::size_t scalar_bytes = 0;
    TensorView<const std::byte, 5> elements{};  // strides in bytes
    void (*convert)(const std::byte*, std::ptrdiff_t, std::size_t, std::byte*) = nullptr;
    std::shared_ptr<const void> keep_alive{};
  };
  using Named = std::pair<std::string, Tensor>;

  [[noreturn]] static void fail(const std::string& fault) { detail::fail_safetensors("SafetensorsWriter", fault); }
  static void check_utf8(const std::string& what, std::string_view text) {
    const std::size_t good = detail::utf8_prefix(text);
    if (good == text.size()) return;
    fail(what + " is not UTF-8 at its byte " + std::to_string(good + 1) + ", after '" +
         detail::safetensors_excerpt(text.substr(0, good)) + "'");
  }
  void check_name(const std::string& name) const {
    if (name.empty()) fail("the name of a tensor is empty");
    check_utf8("the name of a tensor", name);
    const std::string tensor = "tensor '" + detail::safetensors_excerpt(name) + "' ";
    if (name == detail::safetensors_metadata) fail(tensor + "has the name that the format keeps for metadata()");
    if (names_.contains(name)) fail(tensor + "is added twice");
  }
  void insert(const std::string& name, Tensor&& tensor) {
    std::uint64_t all = 0;
    if (__builtin_add_overflow(bytes_, tensor.bytes, &all) || all > largest_file)
      fail("with tensor '" + detail::safetensors_excerpt(name) + "' of " + std::to_string(tensor.bytes) +
           " bytes the file would have more than " + std::to_string(largest_file));
    tensors_.emplace_back(name, std::move(tensor));
    names_.insert(name);
    bytes_ = all;
  }

  std::string header_of(const std::vector<const Named*>& order) const {
    std::string json = "{";
    if (!metadata_.empty()) {
      json += "\"__metadata__\":{";
      for (const auto& [key, text] : metadata_)
        json += (json.back() == '{' ? "" : ",") + detail::json_text(key) + ":" + detail::json_text(text);
      json += "}";
    }
    std::uint64_t begin = 0;
    for (const Named* named : order) {
      const Tensor& tensor = named->second;
      json += (json.size() == 1 ? "" : ",") + detail::json_text(named->first) + ":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":[";
      for (const std::uint64_t extent : tensor.shape) json += (json.back() == '[' ? "" : ",") + std::to_string(extent);
      json += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(begin + tensor.bytes) + "]}";
      begin += tensor.bytes;
    }
    json += "}";
    json.resize((json.size() + 7) / 8 * 8, ' ');
    return json;
  }

  static void write_elements(detail::NewFile& file, const Tensor& tensor) {
    std::byte piece[1 << 14];
    const auto most = static_cast<Index>(sizeof piece / tensor.scalar_bytes);
    const Index n = tensor.elements.extent[4];
    const std::ptrdiff_t step = tensor.elements.stride[4];
    detail::each_row(tensor.elements, [&](const std::byte* row) {
      for (Index i = 0, size = 0; i < n; i += size) {
        size = std::min(most, n - i);
        tensor.convert(row + i * step, step, static_cast<std::size_t>(size), piece);
        file.write(piece, static_cast<std::size_t>(size) * tensor.scalar_bytes);
      }
    });
  }

  static constexpr std::uint64_t largest_file = std::uint64_t{1} << 62;

  std::vector<Named> tensors_;
  std::set<std::string, std::less<>> names_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::uint64_t bytes_ = 0;  // of all tensors
};

}  // namespace mha::inline MHA_NAMESPACE
