// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "books.hpp"
#include "kv_shape.hpp"

/// A cached sequence as bytes: a header, then layer by layer each kept position's keys (Hkv, D) and, if they are not in
/// the keys, values (Hkv, Dv), in the byte order of the machine.
namespace mha::inline MHA_NAMESPACE::detail {

struct SavedHeader {
  char magic[8];
  char scalar[16];
  Index scalar_bytes, layers, heads, dim, value_dim, length, first_gone, oldest;
};
inline constexpr char saved_magic[8] = {'m', 'h', 'a', ' ', 'k', 'v', ' ', '1'};
/// Where the magic of a sequence whose values are in its keys has a blank.
inline constexpr std::size_t saved_values_at = 5;

inline const char* values_in_words(bool in_keys) {
  return in_keys ? "has its values in its keys" : "stores keys and values";
}

/// Positions that a sequence has without those that are gone.
inline std::size_t kept_positions(Index length, const Gone& gone) {
  return static_cast<std::size_t>(gone.oldest == 0 ? length : length - (gone.oldest - gone.first));
}

/// The rows in a book of the positions that are kept of a sequence's first `length`.
template <class Book> std::vector<Index> kept_rows(const Book& book, Index slot, Index length, const Gone& gone) {
  std::vector<Index> rows;
  rows.reserve(kept_positions(length, gone));
  const Index before = gone.oldest == 0 ? length : std::min(gone.first, length);
  for (Index p = 0; p < before; ++p) rows.push_back(book.row(slot, p));
  for (Index p = std::max(before, gone.oldest); p < length; ++p) rows.push_back(book.row(slot, p));
  return rows;
}

/// Writes a sequence as bytes.
template <class F> class SavedSequence {
  static_assert(std::is_trivially_copyable_v<F>,
                "mha: a sequence is saved as the bytes of its numbers: the cache's scalar must be trivially copyable "
                "(see mha/cache/saved_sequence.hpp)");

 public:
  SavedSequence(const KvShape& shape, Index layers, Index length, const Gone& gone) {
    SavedHeader h{{},     {},         Index{sizeof(F)}, layers, shape.heads, shape.dim, shape.value_dim,
                  length, gone.first, gone.oldest};
    std::memcpy(h.magic, saved_magic, sizeof saved_magic);
    if (shape.values_in_keys) h.magic[saved_values_at] = ' ';
    const std::string_view name = scalar_name<F>();
    std::memcpy(h.scalar, name.data(), name.size());
    bytes_.reserve(sizeof h + static_cast<std::size_t>(layers) * kept_positions(length, gone) *
                                  stored_position<F>(shape) * sizeof(F));
    put_bytes(&h, sizeof h);
  }

  /// The rows of the next layer, (kept positions, Hkv·D + Hkv·Dv), or keys alone; of scaled_int8 with their scales.
  void put(std::span<const F> layer) { put_bytes(layer.data(), layer.size_bytes()); }
  std::vector<std::byte> bytes() && { return std::move(bytes_); }

 private:
  void put_bytes(const void* from, std::size_t n) {
    const auto* const p = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), p, p + n);
  }

  std::vector<std::byte> bytes_;
};

/// Reads one.
///
/// Errors    ShapeError if the bytes are not a sequence of these layers, sizes and scalar, or not all of it
template <class F> class SavedRows {
 public:
  SavedRows(std::span<const std::byte> bytes, const KvShape& shape, Index layers) : bytes_(bytes) {
    require(bytes.size() >= sizeof header_, "restore: ", bytes.size(), " bytes, a saved sequence has at least ",
            sizeof header_);
    std::memcpy(&header_, bytes.data(), sizeof header_);
    const bool in_keys = header_.magic[saved_values_at] == ' ';
    if (in_keys) header_.magic[saved_values_at] = saved_magic[saved_values_at];
    constexpr std::size_t version = sizeof saved_magic - 1;
    require(std::memcmp(header_.magic, saved_magic, version) == 0, "restore: the bytes are not a saved sequence");
    require(header_.magic[version] == saved_magic[version], "restore: the sequence was saved in format ",
            std::string_view(&header_.magic[version], 1), ", expected ", std::string_view(&saved_magic[version], 1));
    const std::string_view own = scalar_name<F>();
    const std::string_view scalar(header_.scalar, std::find(header_.scalar, std::end(header_.scalar), '\0'));
    require(own == scalar && header_.scalar_bytes == sizeof(F), "restore: the sequence was saved in ", scalar, " of ",
            header_.scalar_bytes, " bytes, the cache stores ", own, " of ", sizeof(F));
    require(in_keys == shape.values_in_keys, "restore: the saved sequence ", values_in_words(in_keys), ", the cache ",
            values_in_words(shape.values_in_keys));
    const auto agree = [](const char* axis, Index saved, Index cached) {
      require_equal("restore", axis, "the saved sequence", saved, "the cache", cached);
    };
    agree("layers", header_.layers, layers);
    agree("heads", header_.heads, shape.heads);
    agree("head size", header_.dim, shape.dim);
    agree("value head size", header_.value_dim, shape.value_dim);
    require(header_.length >= 0 && header_.length <= longest_axis, "restore: the saved length is ", header_.length,
            ", outside [0, ", longest_axis, "]");
    require(header_.first_gone >= 0 && header_.oldest >= 0 && header_.oldest <= header_.length &&
                (header_.oldest == 0 ? header_.first_gone == 0 : header_.first_gone < header_.oldest),
            "restore: the saved sequence says that positions ", header_.first_gone, " to ",
            std::int64_t{header_.oldest} - 1, " are gone of ", header_.length);
    row_bytes_ = stored_position<F>(shape) * sizeof(F);
    layer_bytes_ = kept_positions(header_.length, gone()) * row_bytes_;
    const std::size_t expected = sizeof header_ + static_cast<std::size_t>(layers) * layer_bytes_;
    require(bytes.size() == expected, "restore: ", bytes.size(), " bytes, expected ", expected);
    at_ = sizeof header_;
  }

  Index length() const { return header_.length; }
  Gone gone() const { return {header_.first_gone, header_.oldest}; }

  /// How many positions the sequence begins with that stand in these rows of a cache's memory, bit for bit in all
  /// layers; 0 if any are gone.
  template <class Memory> Index same(const Memory& memory, std::vector<Index> rows) const {
    rows.resize(gone().oldest > 0 ? 0 : std::min(rows.size(), static_cast<std::size_t>(length())));
    std::size_t same = rows.size() * row_bytes_, layer = sizeof header_;
    memory.read(rows, [&](std::span<const F> there) {
      const auto* const p = reinterpret_cast<const std::byte*>(there.data());
      for (std::size_t at = 0; at < same; at += row_bytes_)
        if (std::memcmp(bytes_.data() + layer + at, p + at, row_bytes_) != 0) same = at;
      layer += layer_bytes_;
    });
    return static_cast<Index>(same / row_bytes_);
  }

  /// The keys and values of the next layer, of the positions that are not gone; these are those that gone() names and
  /// perhaps more before and behind them.
  void take(std::span<F> kept, const Gone& gone) {
    const std::size_t before = row_bytes_ * static_cast<std::size_t>(gone.oldest == 0 ? header_.length : gone.first);
    const std::size_t behind = kept.size_bytes() - before;
    const std::byte* const layer = bytes_.data() + at_;
    auto* const to = reinterpret_cast<std::byte*>(kept.data());
    if (before > 0) std::memcpy(to, layer, before);
    if (behind > 0) std::memcpy(to + before, layer + layer_bytes_ - behind, behind);
    at_ += layer_bytes_;
  }

 private:
  std::span<const std::byte> bytes_;
  SavedHeader header_{};
  std::size_t row_bytes_ = 0, layer_bytes_ = 0, at_ = 0;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
