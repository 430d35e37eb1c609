// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../backend/backend.hpp"
#include "../cache/storage.hpp"
#include "../core/check.hpp"
#include "step_numbers.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// A backend that copies numbers of the host to memory of its own that stays, in the order of its other work.
template <class B>
concept SendsNumbers = requires(const B& backend, const Index* from, Index* to, Index n,
                                typename B::Workspace& workspace) {
  backend.send(from, n, to, workspace);
};

/// Whether what calls in two workspaces enqueue is done in the order of the calls.
template <class W> bool same_order(const W& a, const W& b) {
  if constexpr (requires { a.stream() == b.stream(); })
    return a.stream() == b.stream();
  else
    return true;
}

/// The numbers of a cache's step in the memory of a backend, for all layers: sent once a step, to addresses that depend
/// on the counts of sequences and rows alone.
template <class B> class StepMemory {
 public:
  /// For so many sequences at most, each of so many pages.
  StepMemory(Index sequences, Index width)
      : fixed_(checked_product("KvCache", "the list of a step's numbers", {sequences, std::int64_t{width} + 5}) + 1) {}

  /// Throws what send() would of a stream that takes no numbers, such as one that is being recorded: asked before a
  /// step changes or enqueues anything.
  void check(const ItemsOn<B>& by) const { require_sendable(by.backend, by.workspace); }

  void send(const StepNumbers& now, const ItemsOn<B>& by) {
    if constexpr (SendsNumbers<B>) {
      const auto lists = now.lists();
      all_.clear();
      for (std::size_t i = 0; i < lists.size(); ++i) {
        parts_[i] = {lists[i]->data(), static_cast<std::ptrdiff_t>(all_.size())};
        all_.insert(all_.end(), lists[i]->begin(), lists[i]->end());
      }
      const std::size_t rows = now.to_row.size(), room = static_cast<std::size_t>(std::bit_width(rows));
      if (rooms_.size() <= room) rooms_.resize(room + 1);
      const std::int64_t size = fixed_ + (std::int64_t{1} << room);
      require(size <= longest_axis, "step: ", size, " numbers of a step, the limit is ", longest_axis);
      [[maybe_unused]] const auto held = entered(by.backend);
      if (rooms_[room].view().size() == 0) rooms_[room] = TensorOf<B, Index, 2>(Index{1}, static_cast<Index>(size));
      here_ = rooms_[room].view().data;
      by.backend.send(all_.data(), static_cast<Index>(all_.size()), here_, by.workspace);
    }
  }

  /// Where a list that is at `list` on the host was sent to; null if it is none of the step's.
  const Index* there(const Index* list) const {
    for (const auto& [host, at] : parts_)
      if (host == list && host != nullptr) return here_ + at;
    return nullptr;
  }

 private:
  std::int64_t fixed_;
  std::vector<Index> all_;
  std::array<std::pair<const Index*, std::ptrdiff_t>, StepNumbers::list_count> parts_{};
  Index* here_ = nullptr;
  std::vector<TensorOf<B, Index, 2>> rooms_;  ///< by the bits of the count of rows
};

/// Checks that steps of such a cache can be recorded, if they are to be.
template <class Storage, class B> const CacheSizes& checked_recordable(const CacheSizes& sizes) {
  if (!sizes.recordable) return sizes;
  require(SendsNumbers<B>,
          "KvCache: recordable is for steps on a backend whose launches are recorded, such as Cuda: leave it out");
  require(!std::same_as<Storage, Ring>,
          "KvCache: a step of a Ring cannot be recorded, because the host asks the mask in each step whether it hides "
          "what the Ring has dropped: use Contiguous or Paged, or leave out recordable");
  return sizes;
}

}  // namespace mha::inline MHA_NAMESPACE::detail
