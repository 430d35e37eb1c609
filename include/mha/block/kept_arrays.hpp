// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "../core/check.hpp"
#include "../core/tensor.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// Arrays of T that are kept from call to call.
template <class T> class KeptArrays {
  static constexpr std::size_t most = 8;
  struct Array {
    Array() = default;
    explicit Array(std::size_t n) : memory(aligned_array<T>(n)), size(n) {}
    Array(Array&& other) noexcept : memory(std::move(other.memory)), size(std::exchange(other.size, 0)) {}
    Array& operator=(Array&& other) noexcept {
      memory = std::move(other.memory);
      size = std::exchange(other.size, 0);
      return *this;
    }
    std::unique_ptr<T[], AlignedDelete> memory;
    std::size_t size = 0;
  };

 public:
  /// Memory for a call that may still be refused: the arrays that are kept change in keep() only. The n-th take() of
  /// every call is of the same array.
  class Draft {
   public:
    explicit Draft(KeptArrays& of) : of_(of) {}
    template <class U> U* take(std::size_t n) {
      static_assert(std::is_same_v<U, T>);
      const std::size_t i = used_++;
      require(i < most, "tape: more than ", most, " arrays are wanted");
      if (n <= of_.arrays_[i].size) return of_.arrays_[i].memory.get();
      grown_[i] = Array(n);
      return grown_[i].memory.get();
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

 private:
  std::array<Array, most> arrays_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
