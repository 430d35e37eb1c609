// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "../core/tensor.hpp"
#include "../core/view.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// The numbers that a layer owns, in one row. A copy has memory of its own. A holder of owner() reads them as they
/// were then: writable() writes in place if no other holder is left, else in new memory.
template <class T> class OwnWeights {
 public:
  OwnWeights() = default;
  /// Zero at first.
  explicit OwnWeights(Index size) : row_(std::make_shared<Tensor<T, 1>>(size)) {}
  OwnWeights(const OwnWeights& other) : row_(copy(other.row_)) {}
  OwnWeights(OwnWeights&&) noexcept = default;
  OwnWeights& operator=(const OwnWeights& other) {
    row_ = copy(other.row_);
    return *this;
  }
  OwnWeights& operator=(OwnWeights&&) noexcept = default;
  ~OwnWeights() = default;

  std::size_t size() const { return row_ != nullptr ? row_->size() : 0; }
  const T* data() const { return row_ != nullptr ? std::as_const(*row_).data() : nullptr; }
  TensorView<const T, 1> view() const {
    return row_ != nullptr ? std::as_const(*row_).view() : TensorView<const T, 1>{};
  }

  /// The numbers to write.
  T* writable() {
    if (row_.use_count() > 1) row_ = copy(row_);
    std::atomic_thread_fence(std::memory_order_acquire);  // after the last reads of an owner() that is gone
    return row_->data();
  }

  /// Holds this memory alive; null if there is none.
  std::shared_ptr<const void> owner() const { return row_; }

 private:
  static std::shared_ptr<Tensor<T, 1>> copy(const std::shared_ptr<Tensor<T, 1>>& row) {
    return row != nullptr ? std::make_shared<Tensor<T, 1>>(*row) : nullptr;
  }

  std::shared_ptr<Tensor<T, 1>> row_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
