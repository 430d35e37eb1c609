// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../core/check.hpp"
#include "books.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// The version of the weights that made the keys and values of each sequence and layer, 0 where it is not known.
class VersionBook {
 public:
  VersionBook(Index sequences, Index layers)
      : layers_(layers),
        versions_(static_cast<std::size_t>(sequences) * static_cast<std::size_t>(layers)),
        written_(static_cast<std::size_t>(layers)) {
    before_.reserve(versions_.size());
  }

  std::uint64_t of(Index slot, Index layer) const { return versions_[at(slot, layer)]; }

  /// Checks that the layer's rows of the sequences are by weights of this version, as far as it is known.
  void check(std::span<const Growth> growths, Index layer, std::uint64_t version, const char* call = "layer") const {
    for (std::size_t b = 0; b < growths.size(); ++b) {
      const std::uint64_t before = of(growths[b].slot, layer);
      require(growths[b].length == 0 || before == 0 || before == version, call, ": sequence ", b,
              " has keys and values of layer ", layer,
              " that were projected with other weights than the layer has now: truncate it to 0, or add() a new one");
    }
  }

  void clear(Index slot) { std::fill_n(row(slot), layers_, std::uint64_t{0}); }
  void copy(Index from, Index to) { std::copy_n(row(from), layers_, row(to)); }
  /// slots[i] becomes what slots[from[i]] was.
  void reorder(std::span<const Index> slots, std::span<const Index> from) {
    before_ = versions_;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const Index source = slots[static_cast<std::size_t>(from[i])];
      std::copy_n(before_.begin() + static_cast<std::ptrdiff_t>(at(source, 0)), layers_, row(slots[i]));
    }
  }

  /// Of each layer in the open step; they count when it is committed.
  std::span<const std::uint64_t> written() const { return written_; }
  void write(Index layer, std::uint64_t version) { written_[static_cast<std::size_t>(layer)] = version; }
  void commit(std::span<const Growth> growths) {
    for (const Growth& g : growths)
      for (Index layer = 0; g.rows > 0 && layer < layers_; ++layer) {
        const std::uint64_t version = written_[static_cast<std::size_t>(layer)];
        if (version != 0 || g.length == 0) versions_[at(g.slot, layer)] = version;
      }
  }

 private:
  std::size_t at(Index slot, Index layer) const {
    return static_cast<std::size_t>(slot) * static_cast<std::size_t>(layers_) + static_cast<std::size_t>(layer);
  }
  std::uint64_t* row(Index slot) { return &versions_[at(slot, 0)]; }

  Index layers_;
  std::vector<std::uint64_t> versions_, before_;  ///< (sequences, layers)
  std::vector<std::uint64_t> written_;            ///< (layers)
};

}  // namespace mha::inline MHA_NAMESPACE::detail
