// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "../backend/backend.hpp"
#include "../core/check.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Uninitialised elements in the memory that B computes in, the host's for void.
template <class T, class B> struct ArrayOn {
  using Type = std::unique_ptr<T[], AlignedDelete>;
  static Type make(std::size_t n) { return aligned_array<T>(n); }
  static T* data(const Type& array) { return array.get(); }
};
template <class T, class B>
requires(!computes_on_host<B>) struct ArrayOn<T, B> {
  using Type = TensorOf<B, T, 2>;
  /// More than an Index counts may be wanted.
  static Type make(std::size_t n) {
    constexpr std::size_t row = std::size_t{1} << 16;
    if (n <= row) return Type(1, static_cast<std::int64_t>(n));
    return Type(static_cast<std::int64_t>((n + row - 1) / row), static_cast<std::int64_t>(row));
  }
  static T* data(Type& array) { return array.view().data; }
  static const T* data(const Type& array) { return array.view().data; }
};

/// Arrays of T that are kept from call to call.
template <class T, class B = void> class KeptArrays {
  static constexpr std::size_t most = 8;
  using On = ArrayOn<T, B>;
  struct Array {
    Array() = default;
    explicit Array(std::size_t n) : memory(On::make(n)), size(n) {}
    Array(Array&& other) noexcept : memory(std::move(other.memory)), size(std::exchange(other.size, 0)) {}
    Array& operator=(Array&& other) noexcept {
      memory = std::move(other.memory);
      size = std::exchange(other.size, 0);
      return *this;
    }
    T* data() { return size > 0 ? On::data(memory) : nullptr; }
    TensorView<const T, 1> view() const { return {size > 0 ? On::data(memory) : nullptr, {1}, {1}}; }

    typename On::Type memory;
    std::size_t size = 0;
  };

 public:
  /// Memory for a call that may still be refused: the arrays that are kept change in keep() only. The n-th take() of
  /// every call is of the same array.
  class Draft {
   public:
    /// Errors    as require_reachable()
    template <class Backend> Draft(KeptArrays& of, const Backend& backend, const char* call) : of_(of) {
      of.require_reachable(backend, call);
    }
    template <class U> U* take(std::size_t n) {
      static_assert(std::is_same_v<U, T>);
      const std::size_t i = used_++;
      require(i < most, "tape: more than ", most, " arrays are wanted");
      if (n <= of_.arrays_[i].size) return of_.arrays_[i].data();
      grown_[i] = Array(n);
      return grown_[i].data();
    }
    void keep() {
      for (std::size_t i = 0; i < most; ++i)
        if (grown_[i].size > 0) of_.arrays_[i] = std::move(grown_[i]);
    }

   private:
    KeptArrays& of_;
    std::array<Array, most> grown_;
    std::size_t used_ = 0;
  };

  /// Errors    ShapeError that names both devices if an array is not on the one that the backend computes on
  template <class Backend> void require_reachable(const Backend& backend, const char* call) const {
    for (const Array& array : arrays_)
      if (array.size > 0) detail::require_reachable(backend, call, "the tape", array.view());
  }

 private:
  std::array<Array, most> arrays_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
