// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "check.hpp"
#include "host_memory.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Scratch memory that is kept from call to call: after the first call of a shape no other allocates.
///
/// Source::allocate(bytes), aligned to Source::alignment, throws where there is no more; Source::free(p) gives it back.
template <class Source> class Arena {
 public:
  Arena() = default;
  explicit Arena(std::size_t bytes) { reserve(bytes); }
  Arena(Arena&&) noexcept = default;
  Arena& operator=(Arena&&) noexcept = default;

  /// One allocation that holds at least this many bytes. Only between calls.
  void reserve(std::size_t bytes) {
    if (blocks_.size() == 1 && blocks_[0].size >= bytes) return;
    blocks_.clear();
    used_ = 0;
    if (bytes > 0) grow(bytes);
  }

  /// Bytes held.
  std::size_t bytes() const {
    std::size_t n = 0;
    for (const Block& b : blocks_) n += b.size;
    return n;
  }
  /// How often memory was allocated since construction.
  int allocations() const { return allocations_; }

  /// What is taken while a Frame lives is given back when it ends; frames nest.
  class Frame {
   public:
    explicit Frame(Arena& a) : arena_(a), block_(a.blocks_.size()), used_(a.used_) {}
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;
    ~Frame() { arena_.restore(block_, used_); }

    /// n uninitialised elements, aligned to Source::alignment, valid while the frame lives.
    ///
    /// Errors    ShapeError if their bytes do not fit in a std::ptrdiff_t
    template <class T> T* take(std::size_t n) {
      static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                    "mha: a Workspace holds trivial types only (see mha/core/workspace.hpp)");
      constexpr std::size_t most = (static_cast<std::size_t>(-1) / 2 - Source::alignment) / sizeof(T);
      detail::require(n <= most, "workspace: ", n, " elements of ", sizeof(T), " bytes are wanted, the limit is ",
                      most);
      return reinterpret_cast<T*>(arena_.take_bytes(n * sizeof(T)));
    }
    /// The same in memory that the host reads and writes: what a call is described by, never its tensors.
    template <class T> T* take_host(std::size_t n) { return take<T>(n); }

   private:
    Arena& arena_;
    std::size_t block_, used_;
  };

  [[nodiscard]] Frame frame() { return Frame(*this); }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept { Source::free(p); }
  };
  struct Block {
    std::unique_ptr<std::byte[], Free> memory;
    std::size_t size = 0;
  };

  void grow(std::size_t size) {
    Block b;
    b.memory.reset(Source::allocate(size));
    b.size = size;
    blocks_.push_back(std::move(b));
    used_ = 0;
    ++allocations_;
  }

  std::byte* take_bytes(std::size_t n) {
    n = (n + Source::alignment - 1) / Source::alignment * Source::alignment;
    // An outer frame still uses earlier blocks, so growing adds one and moves nothing.
    if (blocks_.empty() || blocks_.back().size - used_ < n) grow(n > bytes() ? n : bytes());
    std::byte* const p = blocks_.back().memory.get() + used_;
    used_ += n;
    peak_ = std::max(peak_, bytes() - blocks_.back().size + used_);
    return p;
  }

  void restore(std::size_t block, std::size_t used) noexcept {
    if (block == 0 || (block == 1 && used == 0)) {
      // Nothing is in use. If one block did not do, the next call finds one that does.
      used_ = 0;
      if (blocks_.size() == 1 && blocks_[0].size >= peak_) return;
      blocks_.clear();
      MHA_TRY {
        if (peak_ > 0) grow(peak_);
      }
      MHA_CATCH(...) {
        blocks_.clear();  // nothing is lost: the next call allocates again
      }
    } else {
      blocks_.resize(block);
      used_ = used;
    }
  }

  std::vector<Block> blocks_;
  std::size_t used_ = 0;  ///< bytes of the last block that are taken
  std::size_t peak_ = 0;  ///< the most that was ever in use at once
  int allocations_ = 0;
};

/// Scratch memory of the host. Give one to each thread that calls a layer; the layer itself is const and may be shared.
class Workspace : public Arena<HostMemory> {
 public:
  static constexpr bool is_workspace = true;
  using Arena::Arena;
};

namespace detail {

/// Takes nothing: counts the bytes that a Workspace's frame would give.
class SizeOfFrame {
 public:
  template <class T> T* take(std::size_t n) {
    bytes_ += (n * sizeof(T) + HostMemory::alignment - 1) / HostMemory::alignment * HostMemory::alignment;
    return nullptr;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

template <class E>
concept WorkspaceArgument = requires {
  requires std::remove_cvref_t<E>::is_workspace;
};

/// The call's workspace, or the fallback.
template <class Workspace> Workspace& workspace_or(Workspace& own) { return own; }
template <class Workspace, class E, class... Rest> Workspace& workspace_or(Workspace& own, E& first, Rest&... rest) {
  if constexpr (WorkspaceArgument<E>) {
    static_assert(std::same_as<std::remove_const_t<E>, Workspace>,
                  "mha: this backend has a Workspace type of its own: B::Workspace (see mha/backend/backend.hpp)");
    static_assert(std::same_as<E, Workspace> || !std::same_as<std::remove_const_t<E>, Workspace>,
                  "mha: a call writes to its Workspace, and this one is const (see mha/core/workspace.hpp)");
    if constexpr (std::same_as<E, Workspace>)
      return first;
    else
      return own;
  } else {
    return workspace_or(own, rest...);
  }
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
