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
  MemoryTape(MemoryTape&& other) noexcept
      : version_(std::exchange(other.version_, 0)),
        memory_(other.memory_),
        key_before_norm_(other.key_before_norm_),
        arrays_(std::move(other.arrays_)),
        offsets_(std::move(other.offsets_)),
        positions_(std::move(other.positions_)),
        position_(other.position_),
        longest_(other.longest_) {}
  MemoryTape& operator=(const MemoryTape&) = delete;
  MemoryTape& operator=(MemoryTape&& other) noexcept {
    if (this == &other) return *this;
    version_ = std::exchange(other.version_, 0);
    memory_ = other.memory_;
    key_before_norm_ = other.key_before_norm_;
    arrays_ = std::move(other.arrays_);
    offsets_ = std::move(other.offsets_);
    positions_ = std::move(other.positions_);
    position_ = other.position_;
    longest_ = other.longest_;
    return *this;
  }
  ~MemoryTape() = default;

  /// Whether a call has been recorded.
  bool recorded() const { return version_ != 0; }

 private:
  template <class, Backend, class> friend class RecordingLayer;
  template <class, Backend, class> friend class TrainableLayer;

  void record(const TensorView<const T, 3>& memory, const RowPositions& at, std::uint64_t version) {
    memory_ = memory;
    offsets_.clear();
    positions_.clear();
    const Index sequences = at.offsets != nullptr ? at.sequences : memory.extent[0];
    if (at.offsets != nullptr) offsets_.assign(at.offsets, at.offsets + sequences + 1);
    if (at.first.each != nullptr) positions_.assign(at.first.each, at.first.each + sequences);
    position_ = at.first.all;
    longest_ = at.offsets != nullptr ? at.longest : memory.extent[1];
    version_ = version;
  }
  Index sequences() const { return offsets_.empty() ? memory_.extent[0] : static_cast<Index>(offsets_.size()) - 1; }
  /// Where its rows stand, on the host.
  RowPositions positions() const {
    return {positions_.empty() ? Origins(position_) : Origins(positions_.data()),
            offsets_.empty() ? nullptr : offsets_.data(), sequences(), longest_};
  }

  std::uint64_t version_ = 0;  // of the weights; none has 0
  TensorView<const T, 3> memory_{};
  TensorView<const T, 4> key_before_norm_{};
  detail::KeptArrays<T, B> arrays_;
  std::vector<Index> offsets_, positions_;
  Index position_ = 0, longest_ = 0;
};

namespace detail {

template <class E>
concept MemoryTapeArgument = requires {
  requires std::remove_cvref_t<E>::is_memory_tape;
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
