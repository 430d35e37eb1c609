// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "../backend/backend.hpp"
#include "../block/kept_arrays.hpp"
#include "../core/view.hpp"
#include "../policy/call_shape.hpp"
#include "memory_rows.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What layer.project_memory(memory, tape) leaves for its backward pass. Calls reuse its memory; the last one counts.
///
///   auto tape = layer.memory_tape();
///   const auto projected = layer.project_memory(memory, tape);
///   auto d = layer.key_value_gradients(1, length);
///   …  // layer(x, projected, …) and layer.backward(dy, …, d) for many x
///   const auto d_memory = layer.backward(d, tape, gradients);
///
/// Keeps     with QkNorm k before it, else only where each row stands
/// Borrows   the memory, until backward() has run
template <class T, class B> class MemoryTape {
 public:
  static constexpr bool is_memory_tape = true;
  using Scalar = T;
  using OnBackend = B;

  MemoryTape() = default;
  MemoryTape(const MemoryTape&) = delete;
  MemoryTape(MemoryTape&& other) noexcept : call_(std::exchange(other.call_, {})), arrays_(std::move(other.arrays_)) {}
  MemoryTape& operator=(const MemoryTape&) = delete;
  MemoryTape& operator=(MemoryTape&& other) noexcept {
    call_ = std::exchange(other.call_, {});
    arrays_ = std::move(other.arrays_);
    return *this;
  }
  ~MemoryTape() = default;

  /// Whether a call has been recorded.
  bool recorded() const { return call_.version != 0; }

 private:
  template <class, Backend, class> friend class RecordingLayer;
  template <class, Backend, class> friend class TrainableLayer;

  struct Call {
    std::uint64_t version = 0;  ///< of the weights; none has 0
    detail::MemoryRows<T> memory{};
    TensorView<const T, 4> key_before_norm{};
    std::vector<Index> offsets{}, positions{};
    Index position = 0, longest = 0;

    Index sequences() const { return offsets.empty() ? memory.keys.extent[0] : static_cast<Index>(offsets.size()) - 1; }
    /// Where its rows stand, on the host.
    RowPositions rows() const {
      return {positions.empty() ? Origins(position) : Origins(positions.data()),
              offsets.empty() ? nullptr : offsets.data(), sequences(), longest};
    }
  };

  void take(const detail::MemoryRows<T>& memory, const TensorView<const T, 4>& key_before_norm,
            const RowPositions& at) {
    call_.memory = memory;
    call_.key_before_norm = key_before_norm;
    call_.offsets.clear();
    call_.positions.clear();
    if (at.offsets != nullptr) call_.offsets.assign(at.offsets, at.offsets + at.sequences + 1);
    if (at.first.each != nullptr) call_.positions.assign(at.first.each, at.first.each + at.sequences);
    call_.position = at.first.all;
    call_.longest = at.longest;
  }

  Call call_;
  detail::KeptArrays<T, B> arrays_;
};

namespace detail {

template <class E>
concept MemoryTapeArgument = requires {
  requires std::remove_cvref_t<E>::is_memory_tape;
};
/// Whether what follows the memory of a project_memory() begins with a tape.
template <class... Extra> constexpr bool records_memory = false;
template <class First, class... Rest> constexpr bool records_memory<First, Rest...> = MemoryTapeArgument<First>;

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
